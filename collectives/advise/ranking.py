"""The best plan of each mesh, and the meshes in order of the time of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .links import Links
from .machine import Machine
from .memory import Memory, memory
from .model import Model
from .plan import Choices, Mesh, Plan, meshes, plans
from .step import Estimate, Step

__all__ = ["Advice", "Entry", "Excess", "advise", "judged"]

NEAR = 1.005  # a factor of time for which no more pipelines are replayed


@dataclass(frozen=True)
class Entry:
    """A plan that fits, with its terms of time and memory."""

    plan: Plan
    step: Step
    memory: Memory


@dataclass(frozen=True)
class Excess:
    """The plan of a mesh that needs the least memory, where that is too much."""

    plan: Plan
    memory: Memory


@dataclass(frozen=True)
class Advice:
    """The fastest meshes that fit, each with its best plan; ``too_large`` are those that do not, smallest first.

    ``others`` is the number of meshes that fit and are slower than all in ``ranked``.
    """

    model: Model
    machine: Machine
    batch: int
    ranked: Sequence[Entry]
    too_large: Sequence[Excess]
    others: int


def judged(model: Model, machine: Machine, plan: Plan) -> Entry:
    """One plan with its terms, whether it fits or not."""
    return Entry(plan, Estimate(model, machine, plan).step(), memory(model, plan))


class _Candidates:
    """The plans of a mesh that fit, in order of the least time that they take."""

    def __init__(self, model: Model, machine: Machine, mesh: Mesh, batch: int, choices: Choices) -> None:
        links = Links(machine, mesh.pipeline, mesh.data, mesh.tensor)
        self.smallest: Excess | None = None
        self._fitting: list[tuple[Estimate, Memory]] = []
        easy: set[tuple[object, ...]] = set()  # plans that fit with less recomputation: more makes them slower only
        for plan in plans(model, batch, mesh, choices):
            without = (plan.micro_batch, plan.schedule, plan.chunks, plan.zero)
            if without in easy:
                continue
            needed = memory(model, plan)
            if self.smallest is None or needed.total < self.smallest.memory.total:
                self.smallest = Excess(plan, needed)
            if needed.total <= machine.memory:
                easy.add(without)
                self._fitting.append((Estimate(model, machine, plan, links), needed))
        self._fitting.sort(key=lambda pair: pair[0].least)

    @property
    def least(self) -> float | None:
        """Seconds that all plans take at least; None if none fits."""
        return self._fitting[0][0].least if self._fitting else None

    def best(self) -> Entry:
        """The fastest plan, or one that is less than NEAR slower; of equal ones the one that needs the least memory."""
        found: list[tuple[float, float, Estimate, Memory]] = []
        for estimate, needed in self._fitting:
            if found and estimate.least * NEAR > min(found, key=lambda one: one[0])[0]:
                break
            found.append((round(estimate.seconds, 9), needed.total, estimate, needed))
        *_, estimate, needed = min(found, key=lambda one: one[:2])
        return Entry(estimate.plan, estimate.step(), needed)


def advise(model: Model, machine: Machine, batch: int, choices: Choices | None = None, top: int = 10) -> Advice:
    """The ``top`` fastest meshes for a step of ``batch`` samples; times are within 0.5 % of the best plan's.

    ValueError if there is no mesh, or if none fits; it says how much the smallest one needs. ValueError for a machine
    that is too slow, as :class:`Estimate` has it.
    """
    choices = choices or Choices()
    if batch < 1:
        raise ValueError(f"batch: expected at least 1 sample, not {batch}")
    found = [_Candidates(model, machine, mesh, batch, choices) for mesh in meshes(model, batch, machine.ranks, choices)]
    too_large = [one.smallest for one in found if one.least is None and one.smallest is not None]
    too_large.sort(key=lambda excess: excess.memory.total)
    fitting = sorted((one for one in found if one.least is not None), key=lambda one: one.least or 0.0)
    if not fitting:
        raise ValueError(_nothing_fits(machine, too_large))
    ranked: list[Entry] = []
    for candidates in fitting:
        ranked.sort(key=lambda entry: entry.step.seconds)
        if len(ranked) >= top and (candidates.least or 0.0) * NEAR > ranked[top - 1].step.seconds:
            break
        ranked.append(candidates.best())
    ranked.sort(key=lambda entry: entry.step.seconds)
    return Advice(model, machine, batch, ranked[:top], too_large, len(fitting) - len(ranked[:top]))


def _nothing_fits(machine: Machine, too_large: Sequence[Excess]) -> str:
    if not too_large:
        return (
            "no plan has these settings: another schedule or micro-batch may, or a lower stage of ZeRO, of which 2 and "
            "3 need a mesh without a pipeline"
        )
    least = too_large[0]
    return (
        f"nothing fits {machine.memory / 1e9:.4g} GB: the smallest, {least.plan.mesh}, {least.plan.settings}, needs "
        f"{least.memory.total / 1e9:.4g} GB on a rank"
    )
