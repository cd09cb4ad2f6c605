"""What one stage of a pipeline holds while its program runs: activations and versions of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .instructions import LAST, Instruction, Kind

__all__ = ["Held", "held"]


@dataclass(frozen=True)
class Held:
    """The most that a stage holds at once, and how old the gradients of its steps are.

    ``activations`` counts one for each micro-batch and chunk, from the forward pass until the gradients of the weights
    are known. ``activation_bytes`` is the most bytes of them; messages under way are not counted.
    ``versions`` counts the newest weights and those that a later instruction uses.
    ``staleness`` has a value for each step: by how many steps the oldest weights that its gradient comes from are older
    than those that it changes.
    """

    activations: int
    activation_bytes: float
    versions: int
    staleness: tuple[int, ...]


def held(program: Sequence[Instruction], activation_bytes: Sequence[float]) -> Held:
    """Count along the program of a stage that is proved otherwise.

    ``activation_bytes`` is the size of an activation in each chunk of the stage.
    """
    computations = [instruction for instruction in program if instruction.peer is None]
    activations, most_bytes = _activations(computations, activation_bytes)
    return Held(activations, most_bytes, _versions(computations), _staleness(computations))


def _activations(computations: list[Instruction], activation_bytes: Sequence[float]) -> tuple[int, float]:
    """The most activations, and the most bytes of them."""
    live = [0] * len(activation_bytes)
    most, most_bytes = 0, 0.0
    for instruction in computations:
        live[instruction.chunk] += (instruction.kind is Kind.FORWARD) - (instruction.kind in LAST)
        most = max(most, sum(live))
        most_bytes = max(most_bytes, sum(n * size for n, size in zip(live, activation_bytes, strict=True)))
    return most, most_bytes


def _versions(computations: list[Instruction]) -> int:
    """The most versions that are there at once. A step changes the newest in place if nothing later uses it."""
    last_use = {i.version: index for index, i in enumerate(computations) if i.kind is not Kind.STEP}
    there, newest, most = {0}, 0, 1
    for index, instruction in enumerate(computations):
        if instruction.kind is Kind.STEP:
            newest = instruction.version
            there.add(newest)
        there = {version for version in there if version == newest or last_use.get(version, -1) > index}
        most = max(most, len(there))
    return most


def _staleness(computations: list[Instruction]) -> tuple[int, ...]:
    found: list[int] = []
    used: list[int] = []  # versions from which gradients come that no step has used
    for instruction in computations:
        if instruction.kind in LAST:
            used.append(instruction.version)
        elif instruction.kind is Kind.STEP:
            found.append(instruction.version - 1 - min(used))
            used = []
    return tuple(found)
