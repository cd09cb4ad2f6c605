"""Puts the clocks of several machines on one time axis, that of rank 0's clock.

Processes of one machine read the same CLOCK_MONOTONIC, unless they are in different time namespaces. For other
processes the offset is estimated from messages in both directions. Of many exchanges the one with the shortest round
trip is the most exact: its error is at most half of the round trip (Cristian, Probabilistic clock synchronization,
Distributed Computing 3, 1989). Estimates at the start and at the end also give the drift between them.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import numpy as np

from ..system import machine

__all__ = ["Estimate", "compare", "domain"]

EXCHANGES = 100


class Estimate(NamedTuple):
    """When this clock showed ``local`` ns, rank 0's clock showed ``offset`` ns more, to within ``error`` ns."""

    local: int
    offset: int
    error: int


def domain() -> str:
    """A name of the clock of this process: the machine and the time namespace. Equal names mean the same clock."""
    try:
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:  # a kernel without time namespaces
        namespace = ""
    return f"{machine.boot_id()} {namespace}"


def compare(comm: Any, domains: list[str]) -> Estimate | None:
    """The offset of this rank's clock to rank 0's; None if both are one clock. Collective.

    ``domains`` are the results of :func:`domain` on all ranks. The first rank of each domain exchanges messages with
    rank 0, one domain after the other. ``comm`` must be a communicator that only the library uses.
    """
    leaders: dict[str, int] = {}
    for rank, name in enumerate(domains):
        leaders.setdefault(name, rank)
    found: dict[str, Estimate] = {}
    for name, leader in leaders.items():
        if leader == 0:
            continue
        if comm.rank == 0:
            found[name] = _ask(comm, leader)
        elif comm.rank == leader:
            _answer(comm)
    return comm.bcast(found, root=0).get(domains[comm.rank])


def _ask(comm: Any, leader: int) -> Estimate:
    there, best = np.zeros(1, np.int64), None
    for _ in range(EXCHANGES):
        before = time.monotonic_ns()
        comm.Send(there, leader)
        comm.Recv(there, leader)
        after = time.monotonic_ns()
        if best is None or after - before < 2 * best.error:
            local = int(there[0])
            best = Estimate(local, (before + after) // 2 - local, (after - before + 1) // 2)
    assert best is not None
    return best


def _answer(comm: Any) -> None:
    here = np.zeros(1, np.int64)
    for _ in range(EXCHANGES):
        comm.Recv(here, 0)
        here[0] = time.monotonic_ns()
        comm.Send(here, 0)
