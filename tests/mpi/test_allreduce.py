"""Blocking all-reduce: every algorithm, datatype, op and buffer, the same bits on all ranks."""

import array
import sys

import numpy as np
import operands
import pytest
from forms import ours
from mpi4py import MPI

import collectives
from collectives.arguments.buffers import _KERNEL_OPS, AVG
from collectives.arguments.datatypes import PAIRS
from collectives.schedules import registry
from collectives.system import mpi_library

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
FULL = SIZE in (2, 3, 5)  # elsewhere a sample, so that all sizes and MPIs take a few minutes together
NAMES = ours("allreduce")
SCHEDULES = [name for name in NAMES if isinstance(registry.find("allreduce", name), registry.ScheduleAlgorithm)]
COUNTS = sorted({0, 1, SIZE - 1, SIZE, SIZE + 1, 4 * SIZE + 1, 1237, 70001})
OPS = {op.handle: op for op in (getattr(MPI, n) for n in (
    "SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "MINLOC", "MAXLOC"))}  # fmt: skip
OP_OF = {
    "avg": AVG,
    **{collectives.arguments.buffers._core.OPS[code]: OPS[handle] for handle, code in _KERNEL_OPS.items()},
}


def reduce_checked(comm, dtype, op, count, *, in_place=False, seed=0, **options):
    """All-reduce known operands and check the result; returns it."""
    vectors = operands.operands(dtype, op, SIZE, count, seed)
    mine = vectors[RANK].copy()
    result = mine if in_place else np.zeros_like(mine)
    spec = [result, PAIRS[dtype]] if dtype in PAIRS else result
    source = MPI.IN_PLACE if in_place else ([mine, PAIRS[dtype]] if dtype in PAIRS else mine)
    comm.Allreduce(source, spec, OP_OF[op], **options)
    operands.check(dtype, op, vectors, result)
    if not in_place:
        np.testing.assert_array_equal(mine, vectors[RANK])
    return result


def same_everywhere(comm, result):
    everyone = MPI.COMM_WORLD.allgather(result.tobytes())
    assert len(set(everyone)) == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("in_place", [False, True])
def test_every_algorithm(world, name, in_place):
    for count in COUNTS:
        for dtype in ("int32", "float64"):
            result = reduce_checked(world, dtype, "sum", count, in_place=in_place, algorithm=name)
            assert world.last.algorithm == name
            assert world.last.nbytes == result.nbytes
            same_everywhere(world, result)


def test_every_type_and_op(world):
    for i, (dtype, op) in enumerate(operands.ALL if FULL else operands.ALL[SIZE % 4 :: 4]):
        for count in (1, 2 * SIZE + 1, 3001):
            reduce_checked(world, dtype, op, count, in_place=bool(i % 2), seed=i)
        if FULL:
            for name in NAMES:
                reduce_checked(world, dtype, op, 97, in_place=not i % 2, algorithm=name)


@pytest.mark.parametrize("name", [None, *NAMES] if FULL else [None, "ring"])
def test_long_vectors_in_segments(world, name):
    count = 600_011 if FULL else 300_007
    same_everywhere(world, reduce_checked(world, "float32", "sum", count, algorithm=name))
    reduce_checked(world, "bfloat16", "sum", count, algorithm=name)


def test_types_that_the_op_does_not_suit(world):
    for dtype, op in (("int32", AVG), ("float64", MPI.BAND), ("complex64", MPI.MAX), ("bool", AVG)):
        a = np.zeros(3, dtype)
        with pytest.raises(TypeError, match=f"^op: .* does not apply to {dtype}"):
            world.Allreduce(MPI.IN_PLACE, a, op)
    with pytest.raises(TypeError, match="op must be"):
        world.Allreduce(MPI.IN_PLACE, np.zeros(3), "sum")
    reduce_checked(world, "int32", "sum", 5)


def test_specifications_of_buffers(world):
    a = np.arange(12.0) + RANK
    total = SIZE * np.arange(12.0) + SIZE * (SIZE - 1) / 2

    def reduced(spec, target=None, **options):
        """What a vector holds after a call with this specification of its parts."""
        b = np.zeros(12) if target is None else target
        world.Allreduce(spec(a), spec(b), **options)
        return b

    for spec in (
        lambda x: x, lambda x: [x, 12], lambda x: [x, MPI.DOUBLE], lambda x: [x, "d"],
        lambda x: [x, 12, MPI.DOUBLE], lambda x: [x, None, "d"], lambda x: [x, (12, 0), MPI.DOUBLE],
        lambda x: [x, 12, 0, MPI.DOUBLE], lambda x: x.reshape(3, 4), lambda x: x.reshape(3, 4).T, memoryview,
        lambda x: [memoryview(x).cast("B"), MPI.DOUBLE],
    ):  # fmt: skip
        assert reduced(spec).tolist() == total.tolist()
    for spec in (lambda x: [x, 5], lambda x: [x, (5, None)], lambda x: [x, 5, "d"]):
        assert reduced(spec).tolist() == [*total[:5], *[0] * 7]
    for spec in (lambda x: [x, (4, 3)], lambda x: [x, 4, 3, MPI.DOUBLE], lambda x: [x, (4, 3), "d"]):
        assert reduced(spec).tolist() == [*[0] * 3, *total[3:7], *[0] * 5]
    plain = array.array("d", a), array.array("d", bytes(96))
    world.Allreduce(*plain)
    assert plain[1].tolist() == total.tolist()
    raw = bytearray(a.tobytes())
    world.Allreduce(MPI.IN_PLACE, [raw, MPI.DOUBLE])
    assert np.frombuffer(raw).tolist() == total.tolist()
    world.Allreduce(a.tobytes(), bytearray(96), MPI.BOR)  # bytes are bytes
    one = np.array(RANK)
    world.Allreduce(MPI.IN_PLACE, one)
    assert one == SIZE * (SIZE - 1) // 2


def test_wrong_buffers_are_refused_before_anything_is_sent(world):
    a, b = np.zeros(10), np.zeros(10)
    readonly = np.zeros(10)
    readonly.flags.writeable = False
    for arguments, error, message in (
        ((a[::2], b[:5]), ValueError, "^sendbuf: .*strided"),
        ((a[:5], b[::2]), ValueError, "^recvbuf: .*strided"),
        ((memoryview(a)[::2], b[:5]), ValueError, "^sendbuf: .*strided"),
        ((a, readonly), ValueError, "^recvbuf: .*read-only"),
        ((a, bytes(80)), ValueError, "^recvbuf: .*read-only"),
        ((a, b[:9]), ValueError, "10 elements, recvbuf 9"),
        ((a, b.astype("f4")), TypeError, "sendbuf is of float64, recvbuf of float32"),
        ((a, b.astype("i8")), TypeError, "sendbuf is of float64, recvbuf of int64"),
        ((a[:6], a[3:9]), ValueError, "overlap"),
        ((1.5, b), TypeError, "^sendbuf: expected a buffer, not float"),
        ((a, None), TypeError, "^recvbuf: expected a buffer, not NoneType"),
        (([a, 11], b), ValueError, "^sendbuf: 11 elements .* buffer of 10"),
        (([a, -1], b), ValueError, "^sendbuf: -1 elements"),
        (([a, (5, 6)], b), ValueError, "^sendbuf: 5 elements from 6"),
        (([a, 1, 2, 3, 4], b), ValueError, "^sendbuf: expected .* got 5 parts"),
        ((a, MPI.IN_PLACE), TypeError, "^recvbuf: expected a buffer"),
        ((a.astype(">f8"), b.astype(">f8")), TypeError, "no kernel for .*; MPI does not know"),
        ((np.zeros(3, "M8[s]"), np.zeros(3, "M8[s]")), TypeError, "no kernel for .*; MPI does not know"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            world.Allreduce(*arguments)
        with pytest.raises(error, match=message):
            world.Iallreduce(*arguments)
    reduce_checked(world, "int32", "sum", 5)


def test_wrong_names_are_refused(world):
    a = np.zeros(3)
    with pytest.raises(ValueError, match="no algorithm 'rings'; known: .*ring"):
        world.Allreduce(MPI.IN_PLACE, a, algorithm="rings")
    with pytest.raises(ValueError, match="'gpu' is not one of"):
        world.Allreduce(MPI.IN_PLACE, a, engine="gpu")
    with pytest.raises(ValueError, match="^stream"):
        world.Allreduce(MPI.IN_PLACE, a, stream=1)
    with pytest.raises(ValueError, match="^engine: .*MPI library"):
        world.Allreduce(MPI.IN_PLACE, a, engine="python", algorithm="mpi")
    with pytest.raises(ValueError, match="rank order"):
        world.Allreduce(MPI.IN_PLACE, a, algorithm="ring", deterministic=True)
    with pytest.raises(ValueError, match="AVG"):
        world.Allreduce(MPI.IN_PLACE, a, AVG, algorithm="mpi")
    reduce_checked(world, "int32", "sum", 5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_readable_executor_gives_the_same_bits(world, name):
    for count in (0, 1, SIZE + 1, 1237):
        for dtype, op in (("float32", "sum"), ("bfloat16", "avg"), ("int64", "max")):
            for in_place in (False, True):
                c = reduce_checked(world, dtype, op, count, in_place=in_place, algorithm=name, engine="c")
                readable = reduce_checked(world, dtype, op, count, in_place=in_place, algorithm=name, engine="python")
                assert c.tobytes() == readable.tobytes()
    if FULL:
        a = np.random.rand(300_007).astype("f4")  # two segments
        c, readable = np.zeros_like(a), np.zeros_like(a)
        world.Allreduce(a, c, algorithm=name)
        world.Allreduce(a, readable, algorithm=name, engine="python")
        assert c.tobytes() == readable.tobytes()


def test_deterministic_folds_in_rank_order(world):
    for dtype in ("float32", "float64"):
        for count in (1, 17, 3001, 300_007):
            vectors = operands.operands(dtype, "sum", SIZE, count)
            expected = vectors[0]
            for v in vectors[1:]:
                expected = expected + v
            result = reduce_checked(world, dtype, "sum", count, deterministic=True)
            assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_same_bits_from_run_to_run(world, name):
    runs = {
        reduce_checked(world, "float32", "sum", 1237, algorithm=name, in_place=bool(i % 2)).tobytes() for i in range(6)
    }
    assert len(runs) == 1


def affine(a, b, datatype):
    """b = a after b, for maps x -> m x + t as pairs of int64: associative, not commuting."""
    left, right = np.frombuffer(a, np.int64).reshape(-1, 2), np.frombuffer(b, np.int64).reshape(-1, 2)
    right[:] = np.stack([left[:, 0] * right[:, 0], left[:, 0] * right[:, 1] + left[:, 1]], axis=1)


def add(a, b, datatype):
    """b = a + b for doubles."""
    np.frombuffer(b)[:] += np.frombuffer(a)


def test_user_defined_ops(world):
    plus = MPI.Op.Create(add, commute=True)
    for name in (None, *NAMES, "mpi"):
        for count in (0, 1, SIZE + 1, 1237):
            a, b = np.arange(count) + float(RANK), np.zeros(count)
            world.Allreduce(a, b, plus, algorithm=name)
            assert b.tolist() == (SIZE * np.arange(count) + SIZE * (SIZE - 1) / 2).tolist()
            if name not in NAMES or not mpi_library.locks_ops():
                world.Iallreduce(MPI.IN_PLACE, a, plus, algorithm=name).Wait()
                assert a.tolist() == b.tolist()
    if mpi_library.locks_ops():
        with pytest.raises(ValueError, match="'ring' cannot serve this call: this MPI holds its lock"):
            world.Iallreduce(MPI.IN_PLACE, a, plus, algorithm="ring")
    with pytest.raises(ValueError, match="predefined"):
        world.Allreduce(a, b, plus, engine="python")
    plus.Free()


def test_ops_that_do_not_commute(world):
    compose, pair = MPI.Op.Create(affine, commute=False), MPI.INT64_T.Create_contiguous(2).Commit()
    ordered = [name for name in NAMES if registry.find("allreduce", name).ordered]
    for count in (1, SIZE + 1, 257):
        maps = np.random.default_rng(count).integers(-9, 9, (SIZE, count, 2))
        expected = maps[0]
        for right in maps[1:]:
            m, t = expected[:, 0], expected[:, 1]
            expected = np.stack([m * right[:, 0], m * right[:, 1] + t], axis=1)
        for name in (None, *ordered, "mpi"):
            mine, result = maps[RANK].copy(), np.zeros((count, 2), np.int64)
            world.Allreduce([mine, pair], [result, pair], compose, algorithm=name)
            np.testing.assert_array_equal(result, expected)
            world.Allreduce(MPI.IN_PLACE, [mine, pair], compose, algorithm=name)
            np.testing.assert_array_equal(mine, expected)
    for name in set(NAMES) - set(ordered):
        with pytest.raises(ValueError, match=f"algorithm '{name}' changes the order of operands"):
            world.Allreduce(MPI.IN_PLACE, [mine, pair], compose, algorithm=name)
    compose.Free()
    pair.Free()


def test_what_the_mpi_library_must_serve(world):
    long = np.full(5, 1.25, np.longdouble)
    world.Allreduce(MPI.IN_PLACE, long)
    assert world.last.algorithm == "mpi"
    assert (long == 1.25 * SIZE).all()
    with pytest.raises(ValueError, match="'ring' cannot serve this call: no kernel for MPI_LONG_DOUBLE"):
        world.Allreduce(MPI.IN_PLACE, long, algorithm="ring")
    with pytest.raises(ValueError, match="no algorithm 'rings'"):
        world.Allreduce(MPI.IN_PLACE, long, algorithm="rings")
    every_other = MPI.DOUBLE.Create_vector(1, 1, 2).Create_resized(0, 16).Commit()
    first = MPI.Op.Create(lambda a, b, datatype: np.frombuffer(b)[::2].__iadd__(np.frombuffer(a)[::2]) is None)
    a = np.arange(8.0)
    world.Allreduce(MPI.IN_PLACE, [a, 4, every_other], first)
    assert world.last.algorithm == "mpi"
    assert a.tolist() == [i if i % 2 else i * SIZE for i in range(8)]
    with pytest.raises(ValueError, match="gaps"):
        world.Allreduce(MPI.IN_PLACE, [a, 4, every_other], first, algorithm="ring")
    column = MPI.DOUBLE.Create_vector(4, 1, 2).Commit()
    matrix = np.array([[RANK, -1.0]] * 4)
    world.Allreduce([matrix, 1, column], [matrix.ravel()[1:], 1, column], first)  # from one column to the other
    assert matrix.tolist() == [[RANK, SIZE * (SIZE - 1) / 2]] * 4
    first.Free()
    every_other.Free()
    column.Free()


def test_buffers_are_not_held_after_the_call(world):
    a, b = np.zeros(100), np.zeros(100)
    before = sys.getrefcount(a), sys.getrefcount(b)
    for name in (None, *NAMES):
        world.Allreduce(a, b, algorithm=name)
    assert (sys.getrefcount(a), sys.getrefcount(b)) == before


def test_plans_do_not_pile_up(world):
    for count in range(2, 700):
        world.Allreduce(MPI.IN_PLACE, np.zeros(count, np.int8), algorithm="recursive_doubling")
    context = world._context
    assert len(context.plans._idle) <= 256
    assert context.plans._bytes == sum(plan.footprint for plans in context.plans._idle.values() for plan in plans)


def test_barrier(world):
    for name in (None, *ours("barrier"), "mpi"):
        for _ in range(20):
            world.Barrier(algorithm=name)
    world.Barrier(timeout=60)
    world.Barrier(algorithm="mpi", timeout=60)
    assert world.last.collective == "barrier"


def test_timeouts_that_are_met(world):
    for name in (None, *NAMES, "mpi"):
        reduce_checked(world, "float64", "sum", 1000, algorithm=name, timeout=60)
    reduce_checked(world, "float64", "sum", 1000, timeout=60, engine="python")


def test_tags_come_round(world):
    """The tags of a communicator are used again after 65536 calls (fewer where MPI has few)."""
    world._context.drawn = world._context._calls - 5
    for i in range(10):
        reduce_checked(world, "int32", "sum", 100 + i, algorithm="ring")
