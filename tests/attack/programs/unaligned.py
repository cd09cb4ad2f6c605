"""Reductions of every type by every op, of 1 to 33 elements that begin at any byte.   unaligned.py [EVERY]

EVERY takes one in so many of the cases.
"""

import itertools
import random
import sys

import numpy as np
import operands
from mpi4py import MPI

import collectives
from collectives.arguments.buffers import _KERNEL_OPS, AVG, _core
from collectives.arguments.datatypes import PAIRS
from collectives.schedules import registry

EVERY = int(sys.argv[1]) if len(sys.argv) > 1 else 1
OPS = {_core.OPS[code]: MPI.Op.fromhandle(handle) for handle, code in _KERNEL_OPS.items()} | {"avg": AVG}
comm = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = comm.rank, comm.size


def place(values, shift):
    """A writable copy of an array that begins `shift` bytes after a line."""
    raw = (comm.empty if shift % 2 and shift > 32 else np.empty)(values.nbytes + 128, "u1")
    first = -raw.ctypes.data % 64 + shift
    made = raw[first : first + values.nbytes].view(values.dtype)
    made[:] = values
    return made


def call(name, dtype, op, count, shift, algorithm):
    """One call on arrays out of line, and its result beside what is right: a list of vectors, folded."""
    blocks = SIZE if name == "Reduce_scatter_block" else 1
    vectors = operands.operands(dtype, op, SIZE, count * blocks, shift)
    x, y = place(vectors[RANK], shift), place(np.zeros(count, vectors[0].dtype), (shift * 7 + 1) % 64)
    source, target = ([x, PAIRS[dtype]], [y, PAIRS[dtype]]) if dtype in PAIRS else (x, y)
    options = {"algorithm": algorithm} if algorithm else {}
    getattr(comm, name)(source, target, OPS[op], **options)
    if blocks > 1:
        vectors = [v[RANK * count : (RANK + 1) * count] for v in vectors]
    used = {"Scan": RANK + 1, "Exscan": RANK, "Reduce": SIZE if RANK == 0 else 0}.get(name, SIZE)
    if used:
        operands.check(dtype, op, vectors[:used], y.copy())


trials = wrong = 0
schedules = {
    name: [a for a in registry.algorithms(name.lower()) if a not in ("mpi", "hierarchical")]
    for name in ("Allreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter_block")
}
draw = random.Random(1)
cases = itertools.product(operands.ALL, range(1, 34), schedules)
for i, ((dtype, op), count, name) in enumerate(cases):
    if draw.randrange(EVERY) or (op == "avg" and name in ("Scan", "Exscan")):
        continue
    for algorithm in (None, schedules[name][i % len(schedules[name])]):
        trials += 1
        try:
            call(name, dtype, op, count, i % 64, algorithm)
        except (AssertionError, ValueError, TypeError) as e:
            wrong += 1
            if wrong < 3:
                print(name, dtype, op, count, algorithm, e, file=sys.stderr, flush=True)
print(f"attack: {trials} trials, {wrong} wrong", flush=True)
