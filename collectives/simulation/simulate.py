"""The time of a schedule on a network: by clocks as long as no two messages share a port, otherwise by events."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from ..schedules.registry import ScheduleAlgorithm
from .clocks import Clocks
from .network import Network
from .rounds import MOST_MESSAGES, bytes_of_block, rounds

__all__ = ["Outcome", "bound", "simulate"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """``ends``: seconds at which each rank ends. ``sent``: bytes that left each host.

    ``engine``: clocks, events, or inexact clocks, which may have served messages in another order, and whose messages
    are too many for events. ``messages`` counts the messages simulated, of all segments; ``elapsed`` is what the
    simulation took, in seconds.
    """

    ends: np.ndarray
    sent: np.ndarray
    messages: int
    engine: str
    elapsed: float

    @property
    def seconds(self) -> float:
        """When the last rank ends."""
        return float(self.ends.max())


def simulate(
    algorithm: ScheduleAlgorithm,
    network: Network,
    nbytes: int,
    *,
    root: int = 0,
    segments: int = 1,
    in_flight: int = 4,
) -> Outcome:
    """Simulate one call on a vector of ``nbytes`` bytes, cut into ``segments``, of which ``in_flight`` run at once.

    A rank begins a round when its messages of the round before have left, those of others have arrived, and what
    arrived is folded. TooMany if the messages do not fit in memory; ValueError if there is no such root, or if the
    algorithm cannot be cut into segments.
    """
    size = network.size
    if nbytes < 0:
        raise ValueError(f"nbytes: expected 0 or more, not {nbytes}")
    if segments < 1 or in_flight < 1:
        raise ValueError(f"segments, in_flight: expected at least 1, not {segments} and {in_flight}")
    if segments > 1 and not algorithm.divisible(size):
        raise ValueError(f"segments: {algorithm.collective} {algorithm.name} on {size} ranks cannot be cut")
    begin = time.perf_counter()
    each = bytes_of_block(algorithm, size, nbytes) / segments
    if segments == 1:
        clocks = Clocks(network, each)
        whole = all(clocks.run(messages, times) for messages, times in rounds(algorithm, size, root))
        if whole and not (clocks.overtaken and clocks.messages <= MOST_MESSAGES):
            engine = "inexact clocks" if clocks.overtaken else "clocks"
            return Outcome(clocks.time, clocks.sent, clocks.messages, engine, time.perf_counter() - begin)
    from .events import run

    ends, sent, messages = run(rounds(algorithm, size, root), network, each, segments, in_flight)
    return Outcome(ends, sent, messages, "events", time.perf_counter() - begin)


def bound(collective: str, network: Network, nbytes: int) -> float | None:
    """Seconds that the busiest link needs at least, without latency; None where no bound is known here.

    For an all-reduce on h hosts 2n(h-1)/h bytes leave each; for a reduce-scatter or all-gather n(h-1)/h; for a
    broadcast or a reduction n, if there are two hosts or more. The link is that of the fastest host, less its burst.
    """
    h = network.nhosts
    parts = {"allreduce": 2 * (h - 1) / h, "reduce_scatter": (h - 1) / h, "allgather": (h - 1) / h}
    parts |= dict.fromkeys(("bcast", "reduce"), float(h > 1))
    if collective not in parts:
        return None
    return max(0.0, parts[collective] * nbytes - network.burst) * float(network.host_gap().min())
