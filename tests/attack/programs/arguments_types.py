"""Ranks whose elements differ in type: no rank takes what is not of its type, whatever the number of bytes.

    mpiexec -n 3 python arguments_types.py [EVERY [ALGORITHM]]

Without ``COLLECTIVES_CHECK`` the node-local engine finds out, on every rank that reads what a rank of another type has;
with it all ranks raise, whatever the algorithm ("schedule": the first of each collective's that is one).
Of the calls that must raise, one in EVERY is made: each takes as long as a rank asks those that have left the call.
"""

import itertools
import os
import sys

import ml_dtypes
import numpy as np
from arguments_kinds import PAIR_OF_DOUBLES, RECORD
from forms import forms
from mpi4py import MPI

import collectives
from collectives.arguments.calls import COLLECTIVES

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
CHECKED = os.environ.get("COLLECTIVES_CHECK") == "1"
MOVING = ("bcast", "gather", "gatherv", "scatter", "scatterv", "allgather", "allgatherv", "alltoall")
LENGTHS = 48, 48 * 1024
WAITED_BY_MPI = 2  # of the forms; MPI's own wait knows no more than that there was an error, and nothing of a check
FORMS = [form for form in range(4) if not (CHECKED and form == WAITED_BY_MPI)]
TRIALS = {"trials": 0, "wrong": 0}


def as_type(dtype, datatype=None):
    """How a rank hands over a block of 48 bytes, in an array of any number of them."""

    def of(memory, blocks, vector):
        made = memory.view(dtype)
        if not vector and datatype is None:
            return made
        count = made.size // blocks if datatype is None else memory.nbytes // datatype.extent // blocks
        counts = [count] * blocks if vector else count
        return [made, counts] if datatype is None else [made, counts, datatype]

    return of


BIG = as_type("i4", RECORD), as_type("i8", MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.LONG]).Commit())
#: Ways of rank 0 and of the others that must not meet.
DIFFERENT = {
    "double, float": (as_type("f8"), as_type("f4")),
    "double, int64": (as_type("f8"), as_type("i8")),
    "float, int32": (as_type("f4"), as_type("i4")),
    "byte order": (as_type(">f8"), as_type("<f8")),
    "order of integers": (as_type("<i4"), as_type(">i4")),
    "half, bfloat16": (as_type("f2"), as_type(ml_dtypes.bfloat16)),
    "complex, double": (as_type("c16"), as_type("f8")),
    "named": (as_type("u1", MPI.DOUBLE), as_type("u1", MPI.LONG)),
    "derived": (as_type("f8", PAIR_OF_DOUBLES), as_type("f4")),
    "derived, named": (as_type("i8", PAIR_OF_DOUBLES), as_type("u1", MPI.INT)),
}
#: Those that only the check can tell apart.
RECORDS = {"records": BIG, "times": (as_type("M8[s]"), as_type("M8[ms]")), "record, double": (BIG[0], as_type("f8"))}
#: Ways that may meet: MPI's rule is the sequence of basic types, and bytes match anything.
ALIKE = {
    "bytes": (as_type("f8"), as_type("u1")),
    "MPI.BYTE": (as_type("f8"), as_type("f4", MPI.BYTE)),
    "MPI.PACKED": (as_type("f4", MPI.PACKED), as_type("i8")),
    "derived": (as_type("f8"), as_type("f8", PAIR_OF_DOUBLES)),
    "long": (as_type("l"), as_type("q")),
    "named": (as_type("f4"), as_type("u1", MPI.FLOAT)),
    "big-endian": (as_type(">f8"), as_type(">f8")),
    "strings": (as_type("S3"), as_type("i2,S1")),
    "record": (BIG[0], as_type("i4", RECORD.Create_contiguous(3).Commit())),
    "floats": (as_type("f4"), as_type("f4", MPI.Datatype.Create_struct([1, 2], [0, 4], [MPI.FLOAT] * 2).Commit())),
}  # fmt: skip


def arguments(collective, way, length):
    """Arguments of a call with blocks of so many bytes; the memory that it writes, and what is to be there."""
    base, root = collective.base, RANK == 0
    first, blocks = np.full(length, 1, np.uint8), np.repeat(np.arange(1, SIZE + 1, dtype=np.uint8), length)
    own, all_ = np.full(length, RANK + 1, np.uint8), np.full(length * SIZE, RANK + 1, np.uint8)
    back = np.zeros_like(own), np.zeros_like(all_)

    def whole(memory):
        return way(memory, SIZE, collective.vector)

    def block(memory):
        return way(memory, 1, False)

    match base:
        case "bcast":
            return (block(own if root else back[0]), 0), back[0], back[0].copy() if root else first
        case "gather":
            return (block(own), whole(back[1]) if root else None, 0), back[1], blocks if root else back[1].copy()
        case "scatter":
            return (whole(all_) if root else None, block(back[0]), 0), back[0], first
        case "allgather":
            return (block(own), whole(back[1])), back[1], blocks
    return (whole(all_), whole(back[1])), back[1], blocks


def must_raise(collective):
    """Whether this rank reads what another has."""
    if CHECKED or collective.base in ("allgather", "alltoall"):
        return True
    return RANK == 0 if collective.base == "gather" else RANK != 0


def judge(good, *words):
    TRIALS["trials"] += 1
    if not good:
        TRIALS["wrong"] += 1
        print("wrong:", RANK, *words, flush=True)


def options_for(name):
    """Which algorithm is asked for."""
    if len(sys.argv) < 3:
        return {}
    algorithm = sys.argv[2]
    if algorithm == "schedule":
        algorithm = next(one for one in collectives.algorithms(name) if one not in ("shm", "mpi"))
    return {"algorithm": algorithm}


def meet(name):
    """Types that may meet, in every form."""
    collective, comm = COLLECTIVES[name], collectives.Communicator(WORLD)
    for (what, ways), length in itertools.product(ALIKE.items(), LENGTHS):
        for call in forms(comm, collective):
            given, back, expected = arguments(collective, ways[RANK > 0], length)
            call(*given, **options_for(name))
            judge((back == expected).all(), name, what, length)


def must_not_meet(name, what, ways, length, form):
    """A call whose ranks differ, on a communicator of its own."""
    collective, comm = COLLECTIVES[name], collectives.Communicator(WORLD)
    comm.timeout = 20
    WORLD.Barrier()
    given, _, _ = arguments(collective, ways[RANK > 0], length)
    try:
        forms(comm, collective)[form](*given, **options_for(name))
        raised = None
    except (collectives.CollectiveError, MPI.Exception) as e:
        raised = e
    kinds = collectives.CollectiveMismatch, *([MPI.Exception] if form == WAITED_BY_MPI else [])
    good = isinstance(raised, kinds) if must_raise(collective) else True
    judge(good, name, what, length, form, repr(raised))
    WORLD.Barrier()


def main():
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    different = {**DIFFERENT, **RECORDS} if CHECKED else DIFFERENT
    for name in MOVING:
        meet(name)
    pairs = itertools.product(MOVING, different.items(), LENGTHS, FORMS)
    for name, (what, ways), length, form in itertools.islice(pairs, 0, None, every):
        must_not_meet(name, what, ways, length, form)
    print("attack: {trials} trials, {wrong} wrong".format(**TRIALS), flush=True)
    WORLD.Barrier()
    os._exit(0)  # broken communicators would end the program by MPI_Abort


main()
