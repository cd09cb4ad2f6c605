"""Every collective, checked on all ranks: for numbers of ranks and for launchers that longer tests cannot have.

mpiexec -n 32 python tests/runtime/programs/every_collective.py [between]

All ranks are on one node, and the node-local engine serves every call; with ``between`` they are on several, and it
serves none.
"""

import sys
import traceback

import numpy as np
from mpi4py import MPI

import collectives

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
ROOT = SIZE // 2
LENGTHS = (0, 1, 3, 500, 20_000)  # elements of a block
BETWEEN = sys.argv[1:] == ["between"]


def values(rank, first, count):
    """What a rank contributes from an element on."""
    return (np.arange(first, first + count) % 1009 * (rank + 1) + rank).astype(np.int64)


def calls(block):
    """Every collective: its name, input, length of the output, other arguments, and what the output must be."""
    whole, mine, mine_only = block * SIZE, values(RANK, 0, block), values(RANK, 0, block * SIZE)
    at = slice(RANK * block, (RANK + 1) * block)
    everything = np.concatenate([values(r, 0, block) for r in range(SIZE)])
    total = sum(values(r, 0, whole) for r in range(SIZE))
    up_to = sum((values(r, 0, whole) for r in range(RANK)), np.zeros(whole, np.int64))
    rooted, sent = (ROOT,), values(ROOT, 0, whole)
    turned = np.concatenate([values(r, RANK * block, block) for r in range(SIZE)])
    lengths = [block * (r % 3) // 2 for r in range(SIZE)]
    uneven = np.concatenate([values(r, 0, n) for r, n in enumerate(lengths)])
    yield "Barrier", None, None, (), None
    yield "Bcast", None, whole, rooted, sent
    yield "Allgather", mine, whole, (), everything
    yield "Allgatherv", values(RANK, 0, lengths[RANK]), (len(uneven), lengths), (), uneven
    yield "Gather", mine, whole if RANK == ROOT else None, rooted, everything
    yield "Scatter", sent if RANK == ROOT else None, block, rooted, sent[at]
    yield "Alltoall", mine_only, whole, (), turned
    yield "Reduce", mine_only, whole if RANK == ROOT else None, (MPI.SUM, ROOT), total
    yield "Allreduce", mine_only, whole, (MPI.SUM,), total
    yield "Reduce_scatter_block", mine_only, block, (MPI.SUM,), total[at]
    yield "Scan", mine_only, whole, (MPI.SUM,), up_to + mine_only
    yield "Exscan", mine_only, whole, (MPI.SUM,), up_to if RANK else np.full(whole, -7)


def check(comm, call, form, place):
    """Make a call in one of the three forms, on private arrays or on the heap."""
    name, given, length, others, expected = call
    length, *counts = length if isinstance(length, tuple) else (length,)
    output = None if length is None else place(length)
    if name == "Barrier":
        arguments = ()
    elif name == "Bcast":
        output[:] = expected if RANK == ROOT else -7
        arguments = output, ROOT
    else:
        send = None if given is None else place(len(given))
        if send is not None:
            send[:] = given
        arguments = send, [output, *counts] if counts else output, *others
    if output is not None and name != "Bcast":
        output[:] = -7
    if form == "blocking":
        getattr(comm, name)(*arguments)
    elif form == "starting":
        getattr(comm, f"I{name.lower()}")(*arguments).Wait()
    else:
        request = getattr(comm, f"{name}_init")(*arguments)
        request.Start()
        request.Wait()
        request.Free()
    assert comm.last.algorithm not in ("shm", "mpi") if BETWEEN else comm.last.algorithm == "shm", comm.last
    if output is not None:
        np.testing.assert_array_equal(output, expected, f"{name}, {form}, {length} elements")


def main():
    comm = collectives.Communicator(MPI.COMM_WORLD)
    places = [lambda n: np.empty(n, np.int64), lambda n: comm.empty(n, np.int64)]
    number = 0
    for block in LENGTHS:
        for call in calls(block):
            for form in ("blocking", "starting", "lasting") if block in (1, 500) else ("blocking",):
                check(comm, call, form, places[(RANK + number) % 2 if number % 3 else number % 2])
                number += 1
    comm.Free()
    if RANK == 0:
        print(f"{number} calls on {SIZE} ranks: every result right")


try:
    main()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(1)
