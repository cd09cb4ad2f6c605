"""The limits of the node-local engine: each is moved up and down, and stays there if that is measured to be faster."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..select import Limits, Rules, Tuned
from .measure import Bench
from .race import Result, race

__all__ = ["search_limits"]

_KB, _MB = 1 << 10, 1 << 20
FACTOR = 4
#: Each limit's range, and calls on whose time it tells: collective and bytes of the vector.
PROBES: dict[str, tuple[int, int, list[tuple[str, int]]]] = {
    "read": (_KB, 64 * _KB, [("allreduce", 2 * _KB), ("allreduce", 8 * _KB), ("allreduce", 32 * _KB)]),
    "copy": (128, 16 * _KB, [("allreduce", _KB), ("bcast", 2 * _KB), ("alltoall", 8 * _KB)]),
    "shortest": (4 * _KB, 256 * _KB, [("allreduce", 64 * _KB), ("bcast", 64 * _KB), ("reduce", 128 * _KB)]),
    "segment": (16 * _KB, 256 * _KB, [("allreduce", _MB), ("allreduce", 4 * _MB), ("reduce", 4 * _MB)]),
    "private": (16 * _KB, 4 * _MB, [("bcast", 128 * _KB), ("allgather", 512 * _KB), ("alltoall", 2 * _MB)]),
}


def search_limits(bench: Bench, start: Limits, longest: int, seconds: float) -> Limits:
    """Limits that are nowhere slower than ``start`` and somewhere faster; on all ranks together.

    Probes are of vectors up to ``longest`` bytes; it takes about so many seconds.
    """
    deadline = bench.agreed(time.monotonic()) + seconds
    limits = start
    for name, (low, high, probes) in PROBES.items():
        if bench.over(deadline):
            break
        calls = [(collective, nbytes) for collective, nbytes in probes if nbytes <= longest]
        values = [limits, *_moved(limits, name, low, high)]
        if len(values) > 1 and calls:
            limits = _best(limits, [_probe(bench, values, *call, deadline) for call in calls])
    return limits


def _moved(limits: Limits, name: str, low: int, high: int) -> Iterator[Limits]:
    """The limits with one of them a few times less and more, as far as they go together."""
    value = getattr(limits, name)
    for other in (value // FACTOR, value * FACTOR):
        other = min(max(other, low), high)
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
    """The one that most races leave, of those that all races leave, if some race found the present one slower."""
    good = [c for c in results[0].times if all(c in result.left for result in results)]
    if limits in good or not good:
        return limits
    return min(good, key=lambda c: sum(result.median(c) / result.median(limits) for result in results))
