"""Tunes the limits of the node-local engine: each is moved up and down, and kept there if that is faster."""

from __future__ import annotations

from collections.abc import Iterator

from ..selection.policy import Limits, Rules, Tuned
from .measure import Bench
from .race import Result, race, shuffled

__all__ = ["search_limits"]

_KB, _MB = 1 << 10, 1 << 20
FACTOR = 4
TOGETHER = 5  # consecutive measurements of which the median is taken
#: For each limit its range, and calls whose time depends on it: collective and bytes of the vector.
PROBES: dict[str, tuple[int, int, list[tuple[str, int]]]] = {
    "read": (_KB, 64 * _KB, [("allreduce", 2 * _KB), ("allreduce", 8 * _KB), ("allreduce", 32 * _KB)]),
    "copy": (128, 16 * _KB, [("allreduce", _KB), ("bcast", 2 * _KB), ("alltoall", 8 * _KB)]),
    "shortest": (4 * _KB, 256 * _KB, [("allreduce", 64 * _KB), ("bcast", 64 * _KB), ("reduce", 128 * _KB)]),
    "segment": (16 * _KB, 256 * _KB, [("allreduce", _MB), ("allreduce", 4 * _MB), ("reduce", 4 * _MB)]),
    "private": (16 * _KB, 4 * _MB, [("bcast", 128 * _KB), ("allgather", 512 * _KB), ("alltoall", 2 * _MB)]),
}


def search_limits(bench: Bench, start: Limits, longest: int, seconds: float) -> Limits:
    """Limits that are nowhere slower than ``start`` and somewhere faster. Collective.

    The calls measured have vectors of up to ``longest`` bytes. Takes about ``seconds``.
    """
    deadline = bench.now() + seconds
    limits = start
    for name, (low, high, _) in PROBES.items():
        if bench.over(deadline):
            break
        calls = _calls(name, longest)
        values = [limits, *_moved(limits, name, low, high)]
        if len(values) > 1 and calls:
            limits = _best(limits, [_probe(bench, values, *call, deadline) for call in calls])
    return limits


class Doubts:
    """Compares the limits found with the initial ones several times more, since a search lasts only seconds."""

    def __init__(self, bench: Bench, start: Limits, found: Limits, longest: int):
        self._bench, self._start, self._found = bench, start, found
        moved = [name for name in PROBES if getattr(start, name) != getattr(found, name)]
        calls = sorted({call for name in moved for call in _calls(name, longest)})
        self._times: dict[tuple[str, int], dict[Limits, list[float]]] = {c: {start: [], found: []} for c in calls}
        for limits in (start, found):
            bench.name(limits, Rules(tuned=Tuned({}, "a measurement", limits)))

    def look(self) -> None:
        """Measure the calls that depend on the changed limits, under both. Collective."""
        for (collective, nbytes), times in self._times.items():
            length = self._bench.lengths(collective, [nbytes])[0]
            for limits in shuffled(list(times), len(times[self._start])):
                times[limits].append(self._bench.seconds(collective, limits, length))

    def settled(self) -> Limits:
        """The limits found, unless a call was slower under them at some time; then the initial ones."""
        results = [Result(times, [self._start, self._found]) for times in self._times.values()]
        slower = any(result.ever_slower(self._found, self._start, TOGETHER) for result in results)
        return self._start if self._bench.agreed(slower) else self._found


def _calls(name: str, longest: int) -> list[tuple[str, int]]:
    return [(collective, nbytes) for collective, nbytes in PROBES[name][2] if nbytes <= longest]


def _moved(limits: Limits, name: str, low: int, high: int) -> Iterator[Limits]:
    """``limits`` with ``name`` divided or multiplied by FACTOR, within its range; invalid combinations are left out."""
    value = getattr(limits, name)
    for other in sorted({min(max(other, low), high) for other in (value // FACTOR, value * FACTOR)}):
        made = limits._replace(**{name: other})
        if other != value and made.copy <= made.read and made.shortest <= made.segment:
            yield made


def _probe(bench: Bench, values: list[Limits], collective: str, nbytes: int, deadline: float) -> Result[Limits]:
    for limits in values:
        bench.name(limits, Rules(tuned=Tuned({}, "a measurement", limits)))
    length = bench.lengths(collective, [nbytes])[0]

    def measure(limits: Limits) -> float:
        return bench.seconds(collective, limits, length)

    return race(values, measure, enough=lambda: bench.over(deadline))


def _best(limits: Limits, results: list[Result[Limits]]) -> Limits:
    """The best of the limits that all races left in, if ``limits`` itself was found slower; else ``limits``."""
    good = [c for c in results[0].times if all(c in result.left for result in results)]
    if limits in good or not good:
        return limits
    return min(good, key=lambda c: sum(result.median(c) / result.median(limits) for result in results))
