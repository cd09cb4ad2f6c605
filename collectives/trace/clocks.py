"""Clocks of several machines on one time axis, rank 0's.

Processes of one machine read the same CLOCK_MONOTONIC, unless they are in different time namespaces. Elsewhere the
offset is estimated from messages to and fro: of many exchanges the one with the shortest round trip tells most, and
its error is at most half of that (Cristian, Probabilistic clock synchronization, Distributed Computing 3, 1989). Done
at the begin and at the end, this gives the drift between the two as well.
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
    """At ``local`` ns of this clock rank 0's showed ``offset`` ns more, give or take ``error`` ns."""

    local: int
    offset: int
    error: int


def domain() -> str:
    """What processes have in common that read the same clock: the machine, and the time namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:  # a kernel without them
        namespace = ""
    return f"{machine.boot_id()} {namespace}"


def compare(comm: Any, domains: list[str]) -> Estimate | None:
    """This rank's clock beside rank 0's; None where it is the same. Collective; ``domains`` are those of all ranks.

    The first rank of each domain exchanges messages with rank 0, one domain after the other; ``comm`` must be the
    library's own.
    """
    found: dict[str, Estimate] = {}
    for name in dict.fromkeys(domains):
        leader = domains.index(name)
        if name == domains[0]:
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
