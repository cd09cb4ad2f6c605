"""Hierarchical calls of ranks that take themselves for those of several hosts: argument 1 names the host of each rank.

Argument 2 is "every" for more lengths and roots.
Every result is compared with what NumPy or MPI itself computes, in every form of a call.
"""

import os
import sys
import time
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
EVERY = "every" in sys.argv[2:]  # and not the quick part only
WORDS = {"algorithm": "hierarchical"}
OPS = {name: getattr(MPI, name.upper()) for name in {op for _, op in ALL} - {"avg"}} | {"avg": collectives.AVG}
COUNTS = (0, 1, 2, 3, 7, 1000, 4099, 300_007)
UNROOTED, ROOTED = ("allgather", "reduce_scatter_block", "alltoall"), ("gather", "scatter")
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


def check_reduce_scatter(dtype, op, count):
    vectors = operands(dtype, op, SIZE, SIZE * count)
    y = np.zeros(count, DTYPES[dtype])
    comm.Reduce_scatter_block(given(vectors[RANK], dtype), given(y, dtype), OPS[op], **WORDS)
    assert comm.last.algorithm == "hierarchical", comm.last
    check(dtype, op, [vector[RANK * count : (RANK + 1) * count] for vector in vectors], y)


def check_bcast(count, call, root, on_heap):
    sent = np.random.default_rng(root).integers(0, 256, count, np.uint8)
    x = both(on_heap, count, np.uint8, sent if RANK == root else 0)
    call(x, root, **WORDS)
    assert x.tobytes() == sent.tobytes(), (count, root)


def check_blocks(name, count, call, root, in_place, on_heap):
    """A collective whose ranks have a block of ``count`` doubles each, beside the MPI library's own."""
    numbers = np.random.default_rng([RANK, count]).integers(0, 1 << 20, SIZE * count).astype(float)
    one, many = count, SIZE * count
    sent = many if name in ("reduce_scatter_block", "scatter", "alltoall") else one
    received = one if name in ("reduce_scatter_block", "scatter") else many
    has_x, has_y = (RANK == root or name != part for part in ("scatter", "gather"))
    results = []
    for own in (True, False):
        x, y = both(on_heap, sent, float, numbers[:sent]), both(on_heap, received, float, -1)
        kept = MPI.IN_PLACE if in_place and (RANK == root or name not in ROOTED) else None
        if kept is not None and name in ("allgather", "gather"):
            y[RANK * count : (RANK + 1) * count] = x
        if kept is not None and name in ("reduce_scatter_block", "alltoall"):
            y = both(on_heap, many, float, numbers)
        given, target = (x if has_x else None) if kept is None else kept, y if has_y else None
        if name == "scatter" and kept is not None:
            given, target = x, kept
        words = [root] if name in ROOTED else []
        if own:
            call(given, target, *words, **WORDS)
            assert comm.last.algorithm == "hierarchical" or call != getattr(comm, name.capitalize()), comm.last
        else:
            getattr(WORLD, name.capitalize())(given, target, *words)
        valid = count if name == "reduce_scatter_block" else None  # in place, the rest is undefined
        results.append((y[:valid].tobytes() if has_y else b"", x.tobytes()))
    assert results[0] == results[1], (name, count, root, in_place, on_heap)


def check_uneven(count):
    """The collectives all of whose ranks know the lengths of all blocks may have blocks of different lengths."""
    counts = [count * (rank % 3) + rank // 2 for rank in range(SIZE)]
    x, whole = np.random.default_rng(RANK).integers(0, 1 << 20, counts[RANK]).astype(float), sum(counts)
    ours, theirs = np.zeros(whole), np.zeros(whole)
    comm.Allgatherv(x, [ours, counts], **WORDS)
    WORLD.Allgatherv(x, [theirs, counts])
    assert ours.tobytes() == theirs.tobytes()
    ours, theirs = np.zeros(counts[RANK]), np.zeros(counts[RANK])
    comm.Reduce_scatter(numbers := np.arange(whole) + float(RANK), ours, counts, **WORDS)
    WORLD.Reduce_scatter(numbers, theirs, counts)
    assert ours.tobytes() == theirs.tobytes()


def every_block():
    """The collectives with blocks, in every form, in place and not, private and on the heap."""
    number = 0
    for name in (*UNROOTED, *ROOTED):
        for form in range(4):
            for count in COUNTS[:-1] if EVERY else (0, 1, 7, 4099):
                call = forms(comm, COLLECTIVES[name])[form]
                for root in range(SIZE) if EVERY and name in ROOTED else (number % SIZE,):
                    number += 1
                    check_blocks(name, count, call, root, number % 2, number // 2 % 2)
        for in_place in (True, False) if EVERY else (name in ROOTED,):
            for count in (COUNTS[-1], LONG) if EVERY else (COUNTS[-1],):
                check_blocks(name, count, getattr(comm, name.capitalize()), SIZE - 1, in_place, not in_place)
    for count in (0, 1, 4099, 150_001) if EVERY else (1, 4099):
        check_uneven(count)


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
    for number, (dtype, op) in enumerate(ALL):
        for count in (5, 4099) if EVERY else (5, 4099)[number % 2 :][:1]:
            check_allreduce(dtype, op, count, comm.Allreduce, count == 5, False)
            check_reduce_scatter(dtype, op, count)
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
            blocks_of(datatype, size, count)
        datatype.Free()
    op.Free()


def blocks_of(datatype, size, count):
    """The collectives with blocks of ``count`` elements of ``size`` bytes."""
    x = np.random.default_rng([RANK, size]).integers(0, 256, SIZE * count * size, np.uint8)
    for name in (*UNROOTED, *ROOTED):
        if name == "reduce_scatter_block":
            continue
        words, results = [SIZE - 1] if name in ROOTED else [], []
        for call, more in ((getattr(comm, name.capitalize()), WORDS), (getattr(WORLD, name.capitalize()), {})):
            y = np.zeros(SIZE * count * size, np.uint8)
            call([x, count, datatype], [y, count, datatype], *words, **more)
            results.append(y.tobytes())
        assert results[0] == results[1], (name, size, count)


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
    blocks = [np.zeros((SIZE, 1 + i * n // 5)) for i in range(6)]
    requests += [comm.Iallgather(np.full(y.shape[1], float(RANK)), y, **WORDS) for y in blocks[::2]]
    requests += [comm.Ialltoall(np.full(y.shape, float(RANK)), y, **WORDS) for y in blocks[1::2]]
    MPI.Request.Waitall(requests)
    for y in blocks:
        assert (y == np.arange(SIZE)[:, None]).all()
    for i, y in enumerate(ys):
        assert (y == SIZE * (SIZE - 1) / 2 + SIZE * i).all()
    assert (b == 1).all()
    assert (z == SIZE**2).all()
    for _ in range(3):
        plans = [comm.Allreduce_init(x, y, **WORDS) for x, y in zip(xs[:2], ys, strict=False)]
        plans.append(comm.Allgather_init(MPI.IN_PLACE, blocks[5], **WORDS))
        for _ in range(2):
            for plan in plans if RANK % 2 else plans[::-1]:
                plan.Start()
            MPI.Prequest.Waitall(plans)
        for plan in plans:
            plan.Free()
    groups = len(internal.side_of(comm).groups())
    assert groups <= 1 + 3 + 4, groups


def late_and_forked():
    """A rank that comes late, and one that forks while a call is under way: results are right, and the child ends."""
    x, y, z = np.full(SIZE * 4099, float(RANK)), np.zeros(SIZE * 4099), np.zeros(SIZE * 4099)
    for late in (0, SIZE - 1):
        WORLD.Barrier()
        if late == RANK:
            time.sleep(0.2)
        comm.Alltoall(x, y, **WORDS)
        comm.Allgather(x[:4099], z, **WORDS)
        assert (y == z).all()
        assert (y.reshape(SIZE, -1) == np.arange(SIZE)[:, None]).all()
        request = comm.Ialltoall(x, y, **WORDS)
        child = os.fork()
        if child == 0:
            os._exit(0)
        z.fill(0)
        request.Wait()
        assert os.waitpid(child, 0)[1] == 0
        assert (y.reshape(SIZE, -1) == np.arange(SIZE)[:, None]).all()


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
    whole = np.ones(4 * SIZE)
    assert "does not commute" in refused(comm.Reduce_scatter_block, whole, y, subtract)
    assert "of one length" in refused(comm.Gatherv, x, [whole, [4] * SIZE])
    assert "of one length" in refused(comm.Scatterv, [whole, [4] * SIZE], y)
    assert "of one length" in refused(comm.Alltoallv, [whole, [4] * SIZE], [whole.copy(), [4] * SIZE])
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
    every_block()
    every_op()
    long_elements()
    together()
    late_and_forked()
    refusals()
    comm.Free()
    print(f"right on rank {RANK}", flush=True)
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    WORLD.Abort(1)
