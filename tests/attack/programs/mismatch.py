"""One rank makes another call than the others: who learns of it, and when.

mismatch.py ENGINE FIRST STEP FORM ODD: of all ordered pairs of calls every STEP-th from FIRST on, each on a
communicator of its own. ENGINE is "node", "schedules" or "both" (the odd rank's call is a schedule, the others' are
not). FORM is "blocking" or "non-blocking". ODD says who the one rank is: "first", "middle" or "last".
"""

import itertools
import sys
import time

import numpy as np
from mpi4py import MPI

import collectives
from collectives.waiting import watching

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
engine, first, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TIMEOUT = 4.0  # generous: what is told by then only is told too late
nonblocking = sys.argv[4] == "non-blocking"
ODD = {"first": 0, "middle": size // 2, "last": size - 1}[sys.argv[5]]
BYTES = 80


def call(name, root=None, op=None, count=10, dtype="f8"):
    """One of the calls, and its name."""

    def make(comm, algorithm):
        words = {} if root is None else {"root": root}
        words |= {} if op is None else {"op": op}
        words |= {"algorithm": ALGORITHMS[name]} if algorithm else {}
        mine, whole = np.ones(count, dtype), np.ones(count * size, dtype)
        first = {"Scatter": whole, "Alltoall": whole, "Reduce_scatter_block": whole}.get(name, mine)
        second = whole.copy() if name in ("Allgather", "Gather", "Alltoall") else mine.copy()
        arguments = [] if name == "Barrier" else [first] if name == "Bcast" else [first, second]
        if nonblocking:
            getattr(comm, f"I{name.lower()}")(*arguments, **words).Wait()
        else:
            getattr(comm, name)(*arguments, **words)

    parts = (name, None if root is None else f"root {root}", op and ("SUM" if op == MPI.SUM else "MAX"), count, dtype)
    make.words = " ".join(str(part) for part in parts if part is not None)
    return make


ALGORITHMS = {
    "Allreduce": "ring", "Reduce": "binomial", "Bcast": "binomial", "Allgather": "ring", "Gather": "binomial",
    "Scatter": "binomial", "Reduce_scatter_block": "ring", "Alltoall": "pairwise", "Scan": "recursive_doubling",
    "Exscan": "recursive_doubling", "Barrier": "dissemination",
}  # fmt: skip
CALLS = [
    call("Barrier"), call("Allreduce", op=MPI.SUM), call("Allreduce", op=MPI.MAX),
    call("Allreduce", op=MPI.SUM, count=11),
    call("Allreduce", op=MPI.SUM, dtype="i8"), call("Allreduce", op=MPI.SUM, count=100_000),
    call("Bcast", 0), call("Bcast", 1), call("Bcast", 0, count=11), call("Bcast", 0, count=500_000),
    call("Bcast", 1, count=500_000), call("Reduce", 0, MPI.SUM), call("Reduce", 1, MPI.SUM), call("Reduce", 0, MPI.MAX),
    call("Allgather"), call("Gather", 0), call("Gather", 1), call("Scatter", 0), call("Scatter", 1),
    call("Reduce_scatter_block", op=MPI.SUM), call("Alltoall"), call("Scan", op=MPI.SUM), call("Exscan", op=MPI.SUM),
]  # fmt: skip


def attempt(make):
    """What it raised, and the message."""
    try:
        make()
    except collectives.CollectiveError as e:
        return type(e).__name__, str(e)
    return "", ""


def trial(mine, others):
    """Of this rank: what the call raised, what the next one did, and after how long."""
    comm = collectives.Communicator(world)
    comm.timeout = TIMEOUT
    world.Barrier()
    begin = time.monotonic()
    scheduled = engine == "schedules" or (engine == "both" and rank == ODD)
    raised, words = attempt(lambda: (mine if rank == ODD else others)(comm, scheduled))
    took = time.monotonic() - begin
    after, words_after = attempt(lambda: comm.Allreduce(np.ones(3), np.ones(3)))
    took_after = time.monotonic() - begin
    world.Barrier()
    return raised, after, took if raised else took_after, words + words_after


def judge(outcomes):
    """What is wrong with what all ranks have raised."""
    raised = [one or two for one, two, *_ in outcomes]
    late = [text for *_, text in outcomes if "not complete after" in text]
    if late:
        return f"found by the timeout only: {raised}"
    if not all(raised):
        return f"nobody told some: {raised}"
    if set(raised) - {"CollectiveMismatch"}:
        return f"not called a mismatch: {raised}"
    return ""


def main():
    watching.PATIENCE = 0.2, 0.5
    pairs = list(itertools.permutations(CALLS, 2))[first::step]
    bad = afterwards = 0
    for mine, others in pairs:
        outcomes = world.allgather(trial(mine, others))
        wrong = judge(outcomes)
        silent = not any(one for one, *_ in outcomes)
        afterwards += silent
        if rank == 0 and (silent or wrong):
            mark = "WRONG" if wrong else "in the next call"
            print(f"{mark}: {mine.words} | {others.words}: {wrong} {max(o[2] for o in outcomes):.1f} s", flush=True)
        bad += bool(wrong)
    if rank == 0:
        print(f"attack: {len(pairs)} trials, {bad} wrong; {afterwards} pairs ended, and were told in the next call")
        sys.stdout.flush()
    world.Barrier()


main()
