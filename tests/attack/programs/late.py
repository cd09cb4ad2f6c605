"""One rank comes late to a call that others give up: their buffers do not change afterwards, nobody goes on unaware.

late.py ENGINE TRIALS SEED: each trial on a communicator of its own. ENGINE is "node" or "schedules".
"""

import contextlib
import random
import sys
import time

import numpy as np
from mpi4py import MPI

import collectives
from collectives.schedules import registry

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
engine, trials, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)
TIMEOUT = 0.05
COLLECTIVES = [
    "Allreduce", "Reduce", "Bcast", "Allgather", "Gather", "Scatter", "Reduce_scatter_block", "Alltoall", "Scan",
    "Exscan", "Allgatherv", "Gatherv", "Scatterv", "Alltoallv", "Reduce_scatter",
]  # fmt: skip
FOLDS = ("Allreduce", "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan")
ROOTED = ("Reduce", "Bcast", "Gather", "Scatter", "Gatherv", "Scatterv")
OBJECTS = ["allreduce", "bcast", "allgather", "gather", "scatter", "alltoall", "scan", "barrier"]
AFTERWARDS = 7.0


def algorithms(name):
    """Schedules that serve a collective."""
    found = []
    for algorithm in registry.algorithms(name.removesuffix("_block").removesuffix("v")):
        with contextlib.suppress(ValueError):
            registry.find(name, algorithm)
            found.append(algorithm)
    return [algorithm for algorithm in found if algorithm not in ("mpi", "shm", "hierarchical")]


class Case:
    """One trial, drawn alike on all ranks."""

    def __init__(self):
        self.form = draw.choice(["blocking", "blocking", "starting", "persistent", "objects"])
        self.name = draw.choice(OBJECTS if self.form == "objects" else COLLECTIVES)
        self.root = draw.randrange(size)
        self.n = draw.choice([1, 100, 1000, 8 << 10, 128 << 10, 512 << 10]) // (1 if self.moves_one else size) + 1
        self.heap = [draw.random() < 0.7 for _ in range(size)][rank]
        self.late = draw.randrange(size)
        # None: after all others are through
        self.delay = draw.choice([0, TIMEOUT, 1.03 * TIMEOUT, 1.1 * TIMEOUT, None, None, None])
        scheduled = engine == "schedules" and self.form != "objects"
        self.algorithm = draw.choice(algorithms(self.name.lower())) if scheduled else None
        self.buffers = []

    @property
    def moves_one(self):
        return self.name in ("Allreduce", "Reduce", "Bcast", "Scan", "Exscan", "Allgather", "Gather")

    def only_gives(self):
        """Whether this rank takes nothing of the others, and so may end its part before it hears of them."""
        name, root = self.name.lower(), rank == self.root
        return (
            root
            if name.startswith(("bcast", "scatter"))
            else name.startswith(("reduce", "gather")) and ("scatter" not in name and not root)
        )

    def __str__(self):
        return (
            f"{self.form} {self.name} of {self.n} ({self.algorithm or 'shm'}), root {self.root}, "
            f"rank {self.late} late by {self.delay or 'far'}"
        )

    def array(self, comm, values):
        """Float64 on the heap or not."""
        made = comm.empty(len(values), "f8") if self.heap else np.empty(len(values))
        made[:] = values
        self.buffers.append(made)
        return made

    def prepare(self, comm):
        """The arguments of this rank, and what must be in its last buffer at the end, or None."""
        n, r = self.n, np.arange(size)
        mine = lambda times=1: self.array(comm, np.repeat(10.0 * rank + np.arange(times), n))  # noqa: E731
        room = lambda times=1: self.array(comm, np.full(n * times, -1.0))  # noqa: E731
        base = self.name.removesuffix("v") if self.name != "Reduce_scatter" else self.name
        here = rank == self.root
        counts = [n] * size
        vector = lambda array: [array, counts] if self.name.endswith("v") else array  # noqa: E731
        if base == "Bcast":
            return [self.array(comm, np.full(n, 10.0 * self.root if here else -1.0))], np.full(n, 10.0 * self.root)
        if base in ("Allreduce", "Scan", "Exscan", "Reduce"):
            last = {"Scan": rank + 1, "Exscan": rank}.get(base, size)
            gets = (base != "Reduce" or here) and last
            expected = np.full(n, 10.0 * r[:last].sum()) if gets else None
            return [mine(), None if base == "Reduce" and not here else room()], expected
        if base in ("Reduce_scatter_block", "Reduce_scatter"):
            more = [counts] if base == "Reduce_scatter" else []
            return [mine(size), room(), *more], np.full(n, 10.0 * r.sum() + size * rank)
        if base == "Scatter":
            return [vector(mine(size)) if here else None, room()], np.full(n, 10.0 * self.root + rank)
        if base == "Alltoall":
            return [vector(mine(size)), vector(room(size))], np.repeat(10.0 * r + rank, n)
        gathered = np.repeat(10.0 * r, n)
        if base == "Gather" and not here:
            return [mine(), None], None
        return [mine(), vector(room(size))], gathered

    def keywords(self):
        named = {"root": self.root} if self.name in ROOTED else {}
        return {**named, **({"algorithm": self.algorithm} if self.algorithm else {})}


def run_objects(case, comm):
    """The call, and whether its result is right."""
    mine = self_object(rank, case)
    call = getattr(comm, case.name)
    if case.name == "barrier":
        call()
        return True
    if case.name == "bcast":
        return same(call(mine, case.root), self_object(case.root, case))
    if case.name in ("allreduce", "scan"):
        got = call(rank)
        return got == sum(range(rank + 1 if case.name == "scan" else size))
    if case.name == "scatter":
        got = call([self_object(i, case) for i in range(size)] if rank == case.root else None, case.root)
        return same(got, self_object(rank, case))
    if case.name == "alltoall":
        return all(same(got, self_object(i, case)) for i, got in enumerate(call([mine] * size)))
    got = call(mine, case.root) if case.name == "gather" else call(mine)
    return got is None or all(same(each, self_object(i, case)) for i, each in enumerate(got))


def self_object(of, case):
    """Another object for each rank; this rank's own array is watched."""
    made = np.full(case.n, 10.0 * of)
    if of == rank:
        case.buffers.append(made)
    return made


def same(one, other):
    return np.array_equal(one, other)


def start(case, comm):
    """What the rank runs when it is there; it returns whether the result is right."""
    if case.form == "objects":
        return lambda: run_objects(case, comm)
    arguments, expected = case.prepare(comm)
    right = lambda: expected is None or np.array_equal(case.buffers[-1], expected)  # noqa: E731
    if case.form == "persistent":
        plan = getattr(comm, f"{case.name}_init")(*arguments, **case.keywords())
    comm.timeout = TIMEOUT

    def call():
        if case.form == "blocking":
            getattr(comm, case.name)(*arguments, **case.keywords())
        elif case.form == "starting":
            getattr(comm, f"I{case.name.lower()}")(*arguments, **case.keywords()).Wait()
        else:
            plan.Start()
            plan.Wait()
        return right()

    return call


def be_late(case):
    """Come as late as the case has it."""
    if case.delay is not None:
        time.sleep(case.delay)
        return
    for other in range(size):
        if other != rank:
            world.recv(source=other, tag=1)


def watch(case, raised):
    """Until all ranks are through: buffers that are in use again do not change."""
    if case.delay is None and rank != case.late:
        world.send(None, case.late, tag=1)
    if raised:
        for each in case.buffers:
            each[:] = AFTERWARDS
    everybody, clean = world.Ibarrier(), True
    last = 0.0
    while not everybody.Test() or time.monotonic() < last + 0.01:
        if not everybody:
            last = last or time.monotonic()
        clean = clean and not (raised and any((each != AFTERWARDS).any() for each in case.buffers))
        time.sleep(0.001)
    return clean


def aware(comm):
    """Whether the next call says that somebody has given up."""
    try:
        comm.Barrier(timeout=1.0)
    except collectives.CollectiveError:
        return True
    return False


def trial(case):
    """What is wrong, in words, on this rank."""
    comm = collectives.Communicator(world)
    call = start(case, comm)
    comm.timeout = TIMEOUT
    world.Barrier()
    if rank == case.late:
        be_late(case)
    raised, right, wrong = "", True, []
    try:
        right = call()
    except collectives.CollectiveError as e:
        raised = type(e).__name__
    if not watch(case, raised):
        wrong.append("its buffers changed after the error")
    if not right:
        wrong.append("a wrong result")
    others = world.allgather(raised)
    if any(others) and not aware(comm):
        wrong.append(f"it goes on although {others}")
    if comm._context.waits:
        wrong.append("it is still said to wait")
    needed = others[:rank] if case.name.lower() in ("scan", "exscan") else others
    if case.name.lower() in ("scatter", "scatterv"):  # on a busy machine others may have given up before the root came
        needed = [others[case.root]]
    if rank == case.late and not raised and case.delay is None and any(needed) and not case.only_gives():
        wrong.append(f"it was late and completed although {others}")
    return [f"rank {rank}: {words}" for words in wrong], others


def main():
    bad = given_up = 0
    for number in range(trials):
        case = Case()
        wrong, raised = trial(case)
        told = world.allgather(wrong)
        given_up += any(raised)
        if any(told):
            bad += 1
            if rank == 0:
                print(f"trial {number}: {case}: {sum(told, [])}, raised {raised}", flush=True)
    if rank == 0:
        print(f"attack: {trials} trials, {bad} wrong ({given_up} given up)", flush=True)
    world.Barrier()


main()
