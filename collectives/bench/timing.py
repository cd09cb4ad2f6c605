"""Times single calls, and combines the times of all ranks."""

from __future__ import annotations

import functools
import gc
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

__all__ = ["Summary", "clock_overhead", "combine", "sample"]


@functools.cache
def clock_overhead() -> int:
    """Nanoseconds between two readings of the clock with nothing in between: the minimum of 2000 pairs.

    About 40 ns where the kernel serves the clock from user space. It is subtracted from every sample. As the minimum it
    is never more than the readings added, so that no call seems faster than it is.
    """
    now = time.perf_counter_ns
    apart = []
    for _ in range(2000):
        begin = now()
        end = now()
        apart.append(end - begin)
    return min(apart)


def sample(comm: Any, call: Callable[[], Any], iterations: int, warmup: int = 0) -> np.ndarray:
    """Seconds of each of ``iterations`` calls on this rank, after ``warmup`` calls that are not timed; float64.

    As in the OSU Micro-Benchmarks, all ranks leave a barrier of ``comm``; then every call is timed separately, with a
    barrier after it that is not timed. The time includes the Python call; reading the clock is subtracted
    (:func:`clock_overhead`). The garbage collector is disabled. Collective. ValueError if ``iterations`` < 1.
    """
    if iterations < 1 or warmup < 0:
        raise ValueError(f"iterations: expected at least 1 after at least 0 to warm up, not {iterations}, {warmup}")
    overhead = clock_overhead()
    now, barrier = time.perf_counter_ns, comm.Barrier
    times: list[int] = []
    note = times.append
    enabled = gc.isenabled()
    gc.disable()
    try:
        barrier()
        for _ in itertools.repeat(None, warmup + iterations):
            begin = now()
            call()
            end = now()
            note(end - begin)
            barrier()
    finally:
        if enabled:
            gc.enable()
    seconds = np.array(times[warmup:], np.float64)
    seconds -= overhead
    return np.maximum(seconds, 0, out=seconds) * 1e-9


@dataclass(frozen=True)
class Summary:
    """The combined times of all ranks, in seconds.

    ``mean``, ``low`` and ``high`` are mean, minimum and maximum of the ranks' means, as in OSU's tables.
    ``percentiles`` are over all samples of all ranks, interpolated linearly, so that one slow call shows in the tail.
    """

    mean: float
    low: float
    high: float
    percentiles: dict[float, float]
    iterations: int

    @property
    def median(self) -> float:
        """The 50th percentile over all samples of all ranks."""
        return self.percentiles[50]


def combine(comm: MPI.Intracomm, samples: np.ndarray, percentiles: Sequence[float] = (50, 90, 99)) -> Summary:
    """The summary of all ranks' samples (float64, equally many on each rank), on every rank. Collective.

    Rank 0 needs ``8 * size * len(samples)`` bytes for all samples.
    """
    plain = MPI.Intracomm(comm)  # mpi4py's own calls, not those that are measured
    every = np.empty((plain.size, len(samples))) if plain.rank == 0 else None
    plain.Gather(np.ascontiguousarray(samples, np.float64), every, 0)
    made = None
    if every is not None:
        means = every.mean(axis=1)
        wanted = sorted({50, *percentiles})
        found = dict(zip(wanted, np.percentile(every, wanted).tolist(), strict=True))
        made = Summary(float(means.mean()), float(means.min()), float(means.max()), found, len(samples))
    summary = plain.bcast(made, 0)
    assert summary is not None
    return summary
