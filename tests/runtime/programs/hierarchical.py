"""Hierarchical calls of ranks that take themselves for those of several hosts: argument 1 names the host of each rank.

Every result is compared with what NumPy or MPI itself computes, in every form of a call.
"""

import sys
import traceback

import numpy as np
import pytest
from forms import forms
from mpi4py import MPI
from operands import ALL, DTYPES, check, operands

import collectives
from collectives.arguments.calls import COLLECTIVES
from collectives.arguments.datatypes import PAIRS
from collectives.communicator import internal
from collectives.system import machine

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
HOST = sys.argv[1].split(",")[RANK]
WORDS = {"algorithm": "hierarchical"}
OPS = {name: getattr(MPI, name.upper()) for name in {op for _, op in ALL} - {"avg"}} | {"avg": collectives.AVG}
COUNTS = (0, 1, 2, 3, 7, 1000, 4099, 300_007)
LONG = 1_500_007  # doubles: a dozen segments

machine.boot_id = lambda: HOST
comm = collectives.Communicator(WORLD)


def both(places, count, kind, values):
    """Arrays with these values for a call, private or on the heap."""
    made = comm.empty(count, kind) if places else np.empty(count, kind)
    made[:] = values
    return made


def given(array, dtype):
    """An array as an argument; NumPy has no name for pairs."""
    return [array, PAIRS[dtype]] if dtype in PAIRS else array


def check_allreduce(dtype, op, count, call, in_place, on_heap):
    vectors = operands(dtype, op, SIZE, count)
    x = both(on_heap, count, DTYPES[dtype], vectors[RANK])
    y = both(on_heap, count, DTYPES[dtype], vectors[RANK] if in_place else np.zeros(count, DTYPES[dtype]))
    call(MPI.IN_PLACE if in_place else given(x, dtype), given(y, dtype), OPS[op], **WORDS)
    assert comm.last.algorithm == "hierarchical", comm.last
    check(dtype, op, vectors, y)
    assert (x == vectors[RANK]).all()
    if dtype not in PAIRS:  # which have gaps
        assert len(set(WORLD.allgather(y.tobytes()))) == 1, "ranks have different bits"


def check_reduce(dtype, op, count, call, root, in_place, on_heap):
    vectors = operands(dtype, op, SIZE, count)
    x = both(on_heap, count, DTYPES[dtype], vectors[RANK])
    here = RANK == root
    y = both(on_heap, count, DTYPES[dtype], vectors[RANK]) if here else None
    source, target = given(x, dtype), given(y, dtype) if here else None
    call(MPI.IN_PLACE if here and in_place else source, target, OPS[op], root, **WORDS)
    if here:
        check(dtype, op, vectors, y)
    assert (x == vectors[RANK]).all()


def check_bcast(count, call, root, on_heap):
    sent = np.random.default_rng(root).integers(0, 256, count, np.uint8)
    x = both(on_heap, count, np.uint8, sent if RANK == root else 0)
    call(x, root, **WORDS)
    assert x.tobytes() == sent.tobytes(), (count, root)


def every_form():
    """Every form of a call, private arrays and arrays on the heap, lengths around the limits, every root."""
    number = 0
    for form in range(4):
        for count in COUNTS:
            number += 1
            call = forms(comm, COLLECTIVES["allreduce"])[form]
            check_allreduce("float32", "sum", count, call, number % 2, number // 2 % 2)
            check_allreduce("int64", "max", count, call, number // 2 % 2, number % 2)
            for root in range(SIZE):
                call = forms(comm, COLLECTIVES["reduce"])[form]
                check_reduce("float64", "sum", count, call, root, (number + root) % 2, number // 2 % 2)
                check_bcast(8 * count, forms(comm, COLLECTIVES["bcast"])[form], root, (number + root) % 2)
        forms(comm, COLLECTIVES["barrier"])[form](**WORDS)
    check_allreduce("float64", "sum", LONG, comm.Allreduce, False, False)
    check_allreduce("float64", "sum", LONG, comm.Allreduce, True, True)
    check_reduce("float64", "sum", LONG, comm.Reduce, SIZE - 1, False, False)
    check_bcast(8 * LONG, comm.Bcast, SIZE - 1, False)


def every_op():
    """Every type with every op."""
    for dtype, op in ALL:
        for count in (5, 4099):
            check_allreduce(dtype, op, count, comm.Allreduce, count == 5, False)
        check_reduce(dtype, op, 4099, comm.Reduce, SIZE // 2, False, False)


def long_elements():
    """An op of the program's, which commutes, on elements of 1 to 4096 bytes."""

    def larger(a, b, datatype):
        size = datatype.Get_size()
        x, y = (np.frombuffer(m, np.uint8).reshape(-1, size) for m in (a, b))
        y[:] = np.where((x[:, :1] > y[:, :1]), x, y)

    op = MPI.Op.Create(larger, commute=True)
    for size in (1, 3, 100, 4096):
        datatype = MPI.BYTE.Create_contiguous(size).Commit()
        for count in (1, 3, 700):
            x = np.repeat(np.random.default_rng(RANK).integers(0, 256, count, np.uint8), size)
            every = np.array(WORLD.allgather(x))
            y = np.zeros_like(x)
            comm.Allreduce([x, count, datatype], [y, count, datatype], op, **WORDS)
            assert y.tobytes() == every.max(0).tobytes(), (size, count)
            comm.Reduce([x, count, datatype], [y, count, datatype] if RANK == 0 else None, op, 0, **WORDS)
        datatype.Free()
    op.Free()


def together():
    """Calls under way at the same time, some of them persistent and started in different orders."""
    n = 60_001
    xs = [np.full(n, float(RANK + i)) for i in range(6)]
    ys = [np.zeros(n) for _ in xs]
    requests = [comm.Iallreduce(x, y, **WORDS) for x, y in zip(xs, ys, strict=True)]
    b = np.full(n, float(RANK))
    requests.append(comm.Ibcast(b, 1, **WORDS))
    comm.Allreduce(MPI.IN_PLACE, z := np.ones(n), algorithm="ring")
    comm.Allreduce(MPI.IN_PLACE, z, **WORDS)
    MPI.Request.Waitall(requests)
    for i, y in enumerate(ys):
        assert (y == SIZE * (SIZE - 1) / 2 + SIZE * i).all()
    assert (b == 1).all()
    assert (z == SIZE**2).all()
    for _ in range(3):
        plans = [comm.Allreduce_init(x, y, **WORDS) for x, y in zip(xs[:3], ys, strict=False)]
        for _ in range(2):
            for plan in plans if RANK % 2 else plans[::-1]:
                plan.Start()
            MPI.Prequest.Waitall(plans)
        for plan in plans:
            plan.Free()
    groups = len(internal.side_of(comm).groups())
    assert groups <= 1 + 3 + 4, groups


def refused(call, *arguments, **words):
    """The reason with which a call is refused."""
    with pytest.raises(ValueError, match="hierarchical") as caught:
        call(*arguments, **WORDS, **words)
    return str(caught.value)


def refusals():
    """What the algorithm cannot serve is refused before anything is sent, with the reason."""
    x, y = np.ones(4), np.ones(4)
    subtract = MPI.Op.Create(lambda a, b, t: None, commute=False)
    assert "does not commute" in refused(comm.Allreduce, x, y, subtract)
    assert "rank order" in refused(comm.Allreduce, x, y, deterministic=True)
    assert "exact" in refused(comm.Allreduce, x, y, collectives.REPRODUCIBLE_SUM)
    assert "runs schedules" in refused(comm.Allreduce, x, y, engine="python")
    subtract.Free()
    one_host = comm.Split(HOST.encode()[0], RANK)
    one_of_each = comm.Split(one_host.rank, RANK)
    assert "all ranks share a node" in refused(one_host.Allreduce, x, y)
    why = "no two ranks share a node" if one_of_each.size > 1 else "all ranks share a node"
    assert why in refused(one_of_each.Allreduce, x, y)


try:
    every_form()
    every_op()
    long_elements()
    together()
    refusals()
    comm.Free()
    print(f"right on rank {RANK}", flush=True)
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    WORLD.Abort(1)
