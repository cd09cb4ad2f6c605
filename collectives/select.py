"""Which algorithm serves a call: by rule, by environment, or by name. Rank 0's rules hold for all ranks."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

from . import registry
from .registry import Algorithm, ScheduleAlgorithm

__all__ = ["Choice", "Rules", "choose", "segments_for"]

#: Staging memory that one call may take, bytes; longer vectors are cut into more segments.
STAGING_LIMIT = 256 << 20

#: (largest message in bytes or None, algorithm, bytes of a segment or None), the first that fits; per collective.
DEFAULT: dict[str, list[tuple[int | None, str, int | None]]] = {
    "allreduce": [(16 << 10, "recursive_doubling", None), (None, "circulant", 1 << 20)],
    "barrier": [(None, "dissemination", None)],
}

#: Where all ranks share a node.
LOCAL = {"allreduce": "shm", "barrier": "shm"}

#: For ops that do not commute, and for deterministic=True.
ORDERED = {"allreduce": "recursive_doubling"}
LINEAR = {"allreduce": "naive"}


@dataclass
class Rules:
    """The selection table of one communicator, the same on all ranks."""

    table: dict[str, list[tuple[int | None, str, int | None]]] = field(default_factory=lambda: dict(DEFAULT))
    forced: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def from_environment() -> Rules:
        """Defaults, and ``COLLECTIVES_ALGORITHM``: ``ring``, or ``allreduce=ring,barrier=dissemination``."""
        rules = Rules()
        for part in filter(None, os.environ.get("COLLECTIVES_ALGORITHM", "").split(",")):
            collective, _, name = part.rpartition("=")
            collective = collective or "allreduce"
            registry.find(collective, name)
            rules.forced[collective] = name
        return rules


@dataclass(frozen=True, eq=False)
class Choice:
    """An algorithm for a call, the bytes of a segment (None: one segment), and why."""

    algorithm: Algorithm
    segment: int | None
    why: str

    def __str__(self) -> str:
        cut = f", segments of {self.segment} bytes" if self.segment else ""
        return f"{self.algorithm.name}{cut}: {self.why}"


def choose(
    rules: Rules, collective: str, nbytes: int, *, forced: str | None, commutes: bool, linear: bool, apart: str | None
) -> Choice:
    """The algorithm of one call.

    ``commutes``: whether the op does; ``linear``: only folds in rank order, element by element, will do; ``apart``:
    why the ranks do not share memory, None if they do. ValueError when an algorithm asked for by name cannot serve the
    call.
    """
    registry.algorithms(collective)  # there is such a collective
    source = "asked for in the call"
    if forced is None and collective in rules.forced:
        forced, source = rules.forced[collective], "set by COLLECTIVES_ALGORITHM"
    if forced is not None:
        algorithm = registry.find(collective, forced)
        _refuse(algorithm, commutes, linear, apart)
        return Choice(algorithm, _segment(rules, collective, forced), source)
    if apart is None:
        return Choice(registry.find(collective, LOCAL[collective]), None, "all ranks share a node")
    if linear:
        return Choice(registry.find(collective, LINEAR[collective]), 1 << 20, "deterministic: folds in rank order")
    if not commutes:
        return Choice(registry.find(collective, ORDERED[collective]), None, "the op does not commute")
    for limit, name, segment in rules.table[collective]:
        if limit is None or nbytes <= limit:
            bound = f"up to {limit} bytes" if limit is not None else "for longer messages"
            return Choice(registry.find(collective, name), segment, f"the table's choice {bound}")
    raise ValueError(f"the selection table has no rule for {collective} of {nbytes} bytes")


def _refuse(algorithm: Algorithm, commutes: bool, linear: bool, apart: str | None) -> None:
    if algorithm.name == "shm" and apart is not None:
        raise ValueError(f"algorithm 'shm' cannot serve this communicator: {apart}")
    if linear and not algorithm.linear:
        raise ValueError(f"{algorithm.name} does not fold in rank order, as deterministic=True demands")
    if not commutes and not algorithm.ordered:
        raise ValueError(f"{algorithm.name} changes the order of operands; this op does not commute")


def _segment(rules: Rules, collective: str, name: str) -> int | None:
    known = [segment for _, n, segment in rules.table[collective] if n == name]
    return known[0] if known else 1 << 20


def segments_for(choice: Choice, program: Any, nbytes: int, message_limit: int, depth: int) -> int:
    """Number of segments of a vector of ``nbytes``: by the choice, the transport's message limit, and memory."""
    assert isinstance(choice.algorithm, ScheduleAlgorithm)
    parts = -(-nbytes // choice.segment) if choice.segment else 1
    parts = max(parts, -(-nbytes // message_limit))
    staged = (program.slots * program.slot_blocks / program.nblocks + program.nscratch) * depth
    return max(1, parts, math.ceil(nbytes * staged / STAGING_LIMIT))
