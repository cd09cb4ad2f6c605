"""The ranks of a job of ``hosts.py``: time our default and the MPI library's own collective, in turns.

Argument 1 is JSON: ``order``, the number in the job of each rank of the communicator; ``cases``, lists of a collective
and the bytes of its vector; ``rounds``; ``rest``, seconds before each call; ``short`` and ``batch``: for a vector of at
most ``short`` bytes, ``batch`` calls in a row are timed, without rests. Rank 0 prints a line of JSON for each case.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

import collectives
from collectives.bench.programs import messages_of
from collectives.bench.workloads import Workload

NAP = 2e-4  # seconds between looks at whether all ranks are there
START = 5e-3  # seconds from when the last rank came until all begin: by then all know


def workload(comm: MPI.Intracomm, collective: str, nbytes: int) -> Workload:
    """The call on a float32 vector of about ``nbytes`` bytes, all blocks together."""
    count, messages = nbytes // 4 // comm.size, messages_of(collective, comm.size)
    return Workload(comm, collective, (count * comm.size or nbytes // 4) // messages)


def latest(comm: MPI.Intracomm, times: Sequence[float]) -> list[float]:
    """The most of each of the times over all ranks. Ranks that wait sleep: they leave the cores to those at work."""
    found = np.empty(len(times))
    request = comm.Iallreduce(np.array(times), found, MPI.MAX)
    while not request.Test():
        time.sleep(NAP)
    return [float(each) for each in found]


def seconds(comm: MPI.Intracomm, call: Callable[[], object], rest: float, batch: int) -> float:
    """Seconds of one of ``batch`` calls, from when the last rank begins the first until the last rank ends the last.

    The links rest before. The hosts are namespaces of one machine, so the ranks have one clock, by which they begin.
    They share cores, too, which hosts do not: some begin 1 to 8 ms late, since the first ones are busy with their
    messages or poll. Until then messages of the first ones use the links, so a short call may seem too fast.
    """
    (met,) = latest(comm, [time.monotonic()])
    time.sleep(max(0.0, met + rest + START - time.monotonic()))
    began = time.monotonic()
    for _ in range(batch):
        call()
    begin, end = latest(comm, [began, time.monotonic()])
    return (end - begin) / batch


def measured(comm: MPI.Intracomm, collective: str, nbytes: int, told: dict[str, Any]) -> dict[str, object]:
    """Seconds by contestant and round, the bytes of the vector, and our algorithm."""
    own = comm
    ours = collectives.Communicator(comm)
    work = {"ours": workload(ours, collective, nbytes), "own": workload(own, collective, nbytes)}
    for name, each in work.items():
        wrong = each.validate()
        if wrong is not None:
            raise AssertionError(f"{name}, {collective} of {each.nbytes} bytes: {wrong}")
    chosen = ours.explain(collective, work["ours"].nbytes)
    calls = {name: each.call() for name, each in work.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    rest, batch = (0.0, told["batch"]) if nbytes <= told["short"] else (told["rest"], 1)
    for number in range(told["rounds"]):
        for name in random.Random(number).sample(sorted(calls), len(calls)):  # the same order on all ranks
            times[name].append(seconds(own, calls[name], rest, batch))
    nbytes = work["ours"].nbytes
    ours.Free()
    return {"collective": collective, "nbytes": nbytes, "algorithm": chosen, **times}


def main() -> None:
    """Measure all cases."""
    told = json.loads(sys.argv[1])
    world = MPI.COMM_WORLD
    comm = MPI.Intracomm(world.Split(0, told["order"].index(world.rank)))
    for collective, nbytes in told["cases"]:
        found = measured(comm, collective, nbytes, told)
        if comm.rank == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
