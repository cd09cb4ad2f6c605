"""Measures non-blocking calls during computation: how much of the communication the computation hides."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

__all__ = ["Work", "measure"]


class Work:
    """Computation of a given amount, not of a given time: it takes longer if something else uses the processor.

    One unit is a multiplication of 512 float64, which fit in the first-level cache.
    """

    def __init__(self) -> None:
        self.values, self.factors = np.ones(512), np.ones(512)
        self.do(1000)
        self.seconds = min(self._seconds(200) for _ in range(20)) / 200

    def do(self, units: int) -> None:
        """Compute ``units`` units."""
        multiply, values, factors = np.multiply, self.values, self.factors
        for _ in range(units):
            multiply(values, factors, values)

    def _seconds(self, units: int) -> float:
        begin = time.perf_counter()
        self.do(units)
        return time.perf_counter() - begin

    def beside(self, request: Any, units: int, tests: int) -> float:
        """Compute in ``tests + 1`` parts and test the request between them; returns the seconds that tests took."""
        spent = 0.0
        for part in range(tests + 1):
            self.do(units * (part + 1) // (tests + 1) - units * part // (tests + 1))
            if part < tests:
                begin = time.perf_counter()
                request.Test()
                spent += time.perf_counter() - begin
        return spent


def measure(
    comm: Any, start: Callable[[], Any], iterations: int, warmup: int, tests: int, work: Work
) -> tuple[dict[str, float], np.ndarray]:
    """Times of the calls alone, and with computation that lasts as long: us by column (see docs/benchmarks.md), equal
    on all ranks, and this rank's seconds of each call without computation. Collective.

    overlap = max(0, 100 - (overall - (compute - test)) / comm * 100), from the means over the ranks.
    """
    plain = MPI.Intracomm(comm)

    def run(units: int, tests: int, timed: int) -> np.ndarray:
        """Seconds of starting, computing, testing and waiting; shape (timed, 4)."""
        found = np.empty((timed, 4))
        comm.Barrier()
        for i in range(-warmup, timed):
            begin = time.perf_counter()
            request = start()
            started = time.perf_counter()
            spent = work.beside(request, units, tests) if units else 0.0
            worked = time.perf_counter()
            request.Wait()
            found[max(i, 0)] = started - begin, worked - started, spent, time.perf_counter() - worked
            comm.Barrier()
        return found

    alone = run(0, 0, iterations)
    seconds = alone[:, 0] + alone[:, 3]
    means = np.array(plain.allgather(float(seconds.mean())))
    units = max(1, round(float(means.mean()) / work.seconds))
    both = np.array(plain.allgather(run(units, tests, iterations).mean(axis=0).tolist())).mean(axis=0)
    init, compute, test, wait = (both * 1e6).tolist()
    overall, communication = init + compute + wait, float(means.mean()) * 1e6
    found = {
        "overall": overall, "compute": compute, "init": init, "test": test, "wait": wait, "avg": communication,
        "min": float(means.min()) * 1e6, "max": float(means.max()) * 1e6,
        "overlap": max(0.0, 100 - (overall - (compute - test)) / communication * 100),
    }  # fmt: skip
    return found, seconds
