"""The link between the hosts of a communicator: latency and rate, from a few messages when the communicator is made.

The first rank of each host sends to that of the next host and receives from that of the one before, all at once: short
messages, of which the quickest counts, then long ones. The first of these do not count, for a link that a token bucket
limits lets them through too fast; of the others the quickest counts, without the latency. All ranks get the slowest
latency and rate of any host.

A process measures once: ranks that all know a link take the slowest that one of them knows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ..selection.hosts import Link

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["known", "measured"]

SHORT, LONG = 6, 3  # messages of each kind that count
LENGTH = 128 << 10  # bytes of a long message
FIRST = 2  # long messages that do not count: 256 KiB are a common size of token buckets
LEAST = 1e-6  # seconds of a long message, if it was as quick as a short one
TAG = 0  # on a communicator that has no other messages yet

_known: Link | None = None


def known() -> Link | None:
    """The link that this process has measured, or heard of."""
    return _known


def measured(making: Any, comm: MPI.Intracomm, hosts: bytes) -> Link:
    """Measure; collective. ``hosts`` is an int32 array, the number of each rank's host; there are several."""
    from mpi4py import MPI  # not above, since groups without MPI ask what is known

    global _known
    _, firsts = np.unique(np.frombuffer(hosts, np.int32), return_index=True)
    leaders, mine, most = firsts.tolist(), np.zeros(2), np.empty(2)
    if comm.rank in leaders:
        place = leaders.index(comm.rank)
        ends = leaders[(place + 1) % len(leaders)], leaders[place - 1]
        mine[0] = min(_exchange(making, comm, ends, 1) for _ in range(SHORT))
        took = [_exchange(making, comm, ends, LENGTH) for _ in range(FIRST + LONG)]
        mine[1] = max(min(took[FIRST:]) - mine[0], LEAST) / LENGTH
    making.wait(comm.Iallreduce(mine, most, MPI.MAX), (mine, most))
    _known = Link(*most.tolist())
    return _known


def _exchange(making: Any, comm: MPI.Intracomm, ends: tuple[int, int], nbytes: int) -> float:
    """Seconds of a message to the one rank and one from the other."""
    there, here = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    begin = time.perf_counter()
    requests = [comm.Irecv(here, ends[1], TAG), comm.Isend(there, ends[0], TAG)]
    for request in requests:
        making.wait(request, (there, here))
    return time.perf_counter() - begin
