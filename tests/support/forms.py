"""What tests of collectives make their calls from: every form of a call, blocks that move, datatypes with gaps."""

import time

import numpy as np
from mpi4py import MPI

from collectives.core import _core
from collectives.schedules import registry

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
ROOT = SIZE - 1


def ours(name):
    """Algorithms of this library that serve a collective on one node."""
    return [a for a in registry.algorithms(name) if a not in ("mpi", "hierarchical")]


def forms(comm, collective):
    """The three methods of a collective as functions that return when the result is there."""

    def starting(*args, **kwargs):
        getattr(comm, "I" + collective.name)(*args, **kwargs).Wait()

    def waited_by_mpi(*args, **kwargs):
        MPI.Request.Waitall([getattr(comm, "I" + collective.name)(*args, **kwargs)])

    def lasting(*args, **kwargs):
        plan = getattr(comm, collective.method + "_init")(*args, **kwargs)
        plan.Start()
        plan.Wait()
        plan.Free()

    return [getattr(comm, collective.method), starting, waited_by_mpi, lasting]


def moved(collective, make, spec, spec_back):
    """Arguments of a call that moves blocks of 3 elements, each rank's 10 * rank + block; and the check."""
    block = lambda r, b: [10 * r + b] * 3  # noqa: E731
    mine, all_mine = make(block(RANK, RANK)), make(sum((block(RANK, b) for b in range(SIZE)), []))
    one, many = make([-1] * 3), make([-1] * 3 * SIZE)
    counts = ([3] * SIZE,) if collective.vector else ()
    gathered = sum((block(r, r) for r in range(SIZE)), [])
    exchanged = sum((block(r, RANK) for r in range(SIZE)), [])
    base = collective.base
    if base == "bcast":
        buffer = all_mine if RANK == ROOT else many
        argument = spec(buffer, 3 * SIZE) if RANK == ROOT else spec_back(buffer, 3 * SIZE)
        return (argument, ROOT), lambda: buffer, sum((block(ROOT, b) for b in range(SIZE)), [])
    whole = counts or (3,)
    if base == "allgather":
        return (spec(mine, 3), spec_back(many, *whole)), lambda: many, gathered
    if base == "gather":
        here = RANK == ROOT
        target = spec_back(many, *whole) if here else None
        return (spec(mine, 3), target, ROOT), lambda: many, gathered if here else [-1] * 3 * SIZE
    if base == "scatter":
        source = spec(all_mine, *whole) if RANK == ROOT else None
        return (source, spec_back(one, 3), ROOT), lambda: one, block(ROOT, RANK)
    return (spec(all_mine, *whole), spec_back(many, *whole)), lambda: many, exchanged


def datatypes():
    """Different datatypes of one signature, 3 doubles: contiguous, with gaps, in another order in memory."""
    d = MPI.DOUBLE
    made = {
        "contiguous": d.Create_contiguous(1), "gaps": d.Create_vector(1, 1, 2).Create_resized(0, 16),
        "shifted": d.Create_hindexed([1], [8]).Create_resized(0, 24), "dup": d.Dup(),
        "struct": MPI.Datatype.Create_struct([1], [16], [d]).Create_resized(0, 32),
    }  # fmt: skip
    return {name: t.Commit() for name, t in made.items()}


class Strided:
    """Doubles in memory as a datatype lays them out."""

    def __init__(self, values, datatype):
        self.datatype = datatype
        step, first = datatype.extent // 8, datatype.true_lb // 8
        self.memory = np.full(step * len(values) + 4, -7.0)
        self.places = first + step * np.arange(len(values))
        self.memory[self.places] = values

    def tobytes(self):
        assert (np.delete(self.memory, self.places) == -7).all(), "written outside the datatype"
        return self.memory[self.places].tobytes()


def settle():
    """Wait until nothing is under way and nothing is held."""
    while _core.outstanding():
        time.sleep(0.001)
    _core.sweep()


class Job:
    """A vector, its all-reduce in place (by ``start``, a method of a communicator) and the result that it must have."""

    def __init__(self, start, i, count=None, **options):
        self.count = 7 * i + 1 if count is None else count
        self.result = np.arange(self.count) * (RANK + 1) + i
        self.expected = np.arange(self.count) * (SIZE * (SIZE + 1) // 2) + SIZE * i
        self.request = start(MPI.IN_PLACE, self.result, **options)

    def check(self):
        np.testing.assert_array_equal(self.result, self.expected)
