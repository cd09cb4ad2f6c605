"""Reductions of elements of every size up to 4096 bytes, odd ones too.   long_elements.py rows|bytes"""

import itertools
import math
import sys

import numpy as np
from mpi4py import MPI

import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
SIZES = (1, 3, 24, 63, 65, 127, 129, 131, 255, 280, 1000, 1023, 2049, 3000, 4095, 4096)


def rows():
    """Exact sums of rows: their accumulators are 280 bytes long."""
    trials = wrong = 0
    for count in (20_000, 9_973, 1, 7):
        x = np.random.default_rng(comm.rank).standard_normal((count, 2))
        sums = collectives.reproducible_sum(x, 1, comm=comm)
        expected = [math.fsum(row) for row in np.concatenate(comm.allgather(x), 1)]
        trials += count
        wrong += int((sums != expected).sum())
    return trials, wrong


def add_bytes(a, b, _):
    np.frombuffer(b, np.uint8)[:] += np.frombuffer(a, np.uint8)


def reduced(op, datatype, size, nbytes, form, places):
    """Whether reductions of about so many bytes are right, with arrays on heaps or not by the bits of `places`."""
    count = max(nbytes // size, 1)
    here = places >> comm.rank * 2
    x = (comm.empty if here & 1 else np.empty)(count * size, "u1")
    y = (comm.empty if here & 2 else np.empty)(count * size, "u1")
    base = np.random.default_rng(count).integers(0, 256, count * size, "u1")
    x[:], y[:] = base * np.uint8(comm.rank + 1), 93
    factor = comm.size * (comm.size + 1) // 2
    if form == "reduce":
        comm.Reduce([x, count, datatype], [y, count, datatype], op, 0)
        return comm.rank != 0 or (y == base * np.uint8(factor % 256)).all()
    if form == "scan":
        comm.Scan([x, count, datatype], [y, count, datatype], op)
        factor = (comm.rank + 1) * (comm.rank + 2) // 2
    elif form == "in place":
        y[:] = x
        comm.Allreduce(MPI.IN_PLACE, [y, count, datatype], op)
    else:
        comm.Allreduce([x, count, datatype], [y, count, datatype], op)
    return (y == base * np.uint8(factor % 256)).all()


def user_ops():
    """Ops of the user's on elements of every size, on arrays that end in the middle of a segment."""
    op = MPI.Op.Create(add_bytes, commute=True)
    trials = wrong = 0
    datatypes = {size: MPI.BYTE.Create_contiguous(size).Commit() for size in SIZES}
    cases = [
        (3000, 4 << 20, "allreduce", 0),
        *((size, n, form, p) for size, (n, form, p) in zip(itertools.cycle(SIZES), itertools.product(
            (5000, 300_000, 1 << 20), ("allreduce", "reduce", "scan", "in place"), (0, 0b011100101101, 0b0110_1010)
        ), strict=False)),
    ]  # fmt: skip
    for size, nbytes, form, places in cases:
        trials += 1
        wrong += not reduced(op, datatypes[size], size, nbytes, form, places)
    return trials, wrong


print("attack: {} trials, {} wrong".format(*{"rows": rows, "bytes": user_ops}[sys.argv[1]]()))
