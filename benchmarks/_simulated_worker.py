"""The ranks of ``simulated.py``: time messages, fit the model's parameters to them, and time collectives.

The folder in the first argument has a file ``asked``; rank 0 writes ``found`` there: the fitted parameters of
:class:`collectives.simulation.network.Network`, and for each call its seconds in every round.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import collectives
from collectives.bench.programs import messages_of
from collectives.bench.workloads import Workload
from collectives.communicator import internal
from collectives.core import _core
from collectives.schedules import registry
from collectives.schedules.registry import ScheduleAlgorithm

WORLD = MPI.COMM_WORLD
BURST = 384 << 10  # bytes: more than a link lets through at once
SHORT, MESSAGE, LONG = 8, 32 << 10, (2 << 20, 8 << 20)  # bytes of messages, and of exchanges of several
SHORT_TIMES, LONG_TIMES = 100, 2
MANY = 500  # short messages in a row
FOLD = 1 << 20  # bytes
UNCUT = 1 << 30  # bytes of a message on an MPI whose announced messages the library does not avoid
NEVER = 1e18  # bytes from which on messages are announced if none is
REST = 0.1  # seconds


def use_up_bursts(each: int) -> None:
    """Send and receive, to and from the next host, what links let through at once; then meet."""
    there, back = (WORLD.rank + each) % WORLD.size, (WORLD.rank - each) % WORLD.size
    sent, came = np.zeros((2, BURST), np.uint8)
    WORLD.Sendrecv(sent, there, recvbuf=came, source=back)
    WORLD.Barrier()


def ping(peer: int, first: bool) -> float:
    """Seconds of a short message one way: half of the median round trip."""
    message = np.zeros(SHORT, np.uint8)
    times = []
    for _ in range(SHORT_TIMES):
        begin = time.perf_counter()
        if first:
            WORLD.Send(message, peer)
            WORLD.Recv(message, peer)
        else:
            WORLD.Recv(message, peer)
            WORLD.Send(message, peer)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) / 2


def exchange(peer: int, nbytes: int, number: int = LONG_TIMES) -> float:
    """Seconds in which two ranks send each other bytes, in messages of 32 KiB that are all under way at once.

    So no direction of the link rests, and the rate is that of the link rather than of one message's protocol.
    """
    sent, came = np.zeros((2, nbytes // MESSAGE, MESSAGE), np.uint8)
    times = []
    for _ in range(number):
        begin = time.perf_counter()
        MPI.Request.Waitall([*(WORLD.Irecv(m, peer) for m in came), *(WORLD.Isend(m, peer) for m in sent)])
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def after_a_rest(peer: int) -> float:
    """Seconds of an exchange for which the links have rested."""
    time.sleep(REST)
    return exchange(peer, LONG[0], 1)


def mean(value: float | None) -> float:
    """The mean of what ranks have found, on all ranks; None: this rank has found nothing."""
    found = np.array([0.0 if value is None else value, value is not None])
    WORLD.Allreduce(MPI.IN_PLACE, found)
    return float(found[0] / max(found[1], 1))


def between(peer: int | None, each: int) -> dict[str, float]:
    """Latency in seconds, bytes per second and bytes of a burst between pairs of ranks; None: this rank has no peer."""
    use_up_bursts(each)
    latency = rested = short = long = None
    if peer is not None:
        latency = ping(peer, WORLD.rank < peer)
        exchange(peer, LONG[0], 1)  # the ping has let bursts grow again
        short, long = (exchange(peer, nbytes) for nbytes in LONG)
        rested = after_a_rest(peer)
    latency, rested, short, long = map(mean, (latency, rested, short, long))
    beta = (LONG[1] - LONG[0]) / max(long - short, 1e-9)
    return {"alpha": latency, "beta": beta, "burst": max(0.0, (short - rested) * beta)}


def overhead(peer: int | None) -> float:
    """Seconds of a rank's processor for each of many short messages."""
    spent = None
    if peer is not None:
        messages = np.zeros((MANY, SHORT), np.uint8)
        begin = time.perf_counter()
        if WORLD.rank < peer:
            MPI.Request.Waitall([WORLD.Isend(message, peer) for message in messages])
        else:
            MPI.Request.Waitall([WORLD.Irecv(message, peer) for message in messages])
        spent = (time.perf_counter() - begin) / MANY
    return mean(spent)


def fold_rate() -> float:
    """Bytes per second that a rank folds while all ranks do, the least over the ranks."""
    left, right = np.ones((2, FOLD // 4), np.float32)
    dtype, op = _core.DTYPES.index("float32"), _core.OPS.index("sum")
    times = []
    WORLD.Barrier()
    for _ in range(9):
        begin = time.perf_counter()
        _core.reduce2(dtype, op, left, left, right)
        times.append(time.perf_counter() - begin)
    return FOLD / float(WORLD.allreduce(statistics.median(times), MPI.MAX))


def parameters(each: int) -> dict[str, float]:
    """Parameters of the model from one round: by the first ranks of pairs of hosts, then by pairs on each host."""
    host, local = divmod(WORLD.rank, each)
    other = (host ^ 1) * each
    away = between(other if local == 0 and other < WORLD.size else None, each)
    work = overhead(other if local == 0 and other < WORLD.size else None)
    found = {**away, "overhead": work, "fold": fold_rate(), "local_alpha": away["alpha"], "local_beta": away["beta"]}
    if each > 1:
        here = between(host * each + (local ^ 1) if local < 2 else None, each)
        found |= {"local_alpha": here["alpha"], "local_beta": here["beta"]}
    for name in ("alpha", "local_alpha"):
        found[name] = max(found[name] - 2 * work, 0.0)
    return found


Call = tuple[str, str, int]


def calls(names: Sequence[str], sizes: Sequence[int]) -> list[Call]:
    """All that is timed: collective, algorithm, bytes of the vector."""
    return [
        (collective, name, nbytes)
        for collective in names
        for nbytes in sizes
        for name in registry.algorithms(collective)
        if isinstance(registry.find(collective, name), ScheduleAlgorithm)
    ]


def workload(comm: collectives.Communicator, call: Call) -> Callable[[], Any]:
    """The call, on buffers of its own."""
    collective, name, nbytes = call
    return Workload(comm, collective, nbytes // 4 // messages_of(collective, comm.size)).call(algorithm=name)


def timed(made: Callable[[], Any], each: int) -> float:
    """Seconds until the last rank has its result."""
    use_up_bursts(each)
    begin = time.perf_counter()
    made()
    return float(WORLD.allreduce(time.perf_counter() - begin, MPI.MAX))


def main() -> None:
    """Fit, measure, write."""
    folder = Path(sys.argv[1])
    asked = json.loads((folder / "asked").read_text())
    each = asked["each"]
    comm = collectives.Communicator(WORLD)
    wanted = calls(asked["collectives"], asked["sizes"])
    for call in wanted:
        if call[2] == min(asked["sizes"]):
            workload(comm, call)()  # the first messages make connections
    times: dict[Call, list[float]] = {call: [] for call in wanted}
    fits = []
    for number in range(asked["rounds"]):
        fits.append(parameters(each))
        for call in random.Random(number).sample(wanted, len(wanted)):  # the same order on all ranks
            times[call].append(timed(workload(comm, call), each))
    if WORLD.rank == 0:
        network = {name: statistics.median(fit[name] for fit in fits) for name in fits[0]}
        if internal.side_of(comm).endpoint.message_limit < UNCUT:
            network["rendezvous"] = NEVER  # the library cuts messages so that none is announced
        found = {"network": network, "fits": fits, "calls": [[*call, seconds] for call, seconds in times.items()]}
        (folder / "found").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
