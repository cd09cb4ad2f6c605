"""Every collective in every form: buffers, datatypes, places, algorithms, errors before anything is sent."""

import inspect

import ml_dtypes
import numpy as np
import pytest
from forms import RANK, ROOT, SIZE, Strided, datatypes, forms, moved, ours
from mpi4py import MPI

import collectives
from collectives.arguments.calls import COLLECTIVES
from collectives.schedules import registry
from collectives.system import mpi_library

EVERY = list(COLLECTIVES.values())
MOVING = [c for c in EVERY if not c.reduces and c.name != "barrier"]


@pytest.mark.parametrize("collective", MOVING, ids=lambda c: c.name)
def test_data_of_every_type_moves(world, collective):
    for dtype in ("i1", "i4", "f8", "c16", "f2", ml_dtypes.bfloat16, "g", ">i4", "S5", "M8[s]", "i4,f8"):
        for number, call in enumerate(forms(world, collective)):
            for name in (None, *ours(collective.name))[: 1 if number else None]:

                def make(values, dtype=dtype):
                    plain = np.array(values)
                    return plain.astype("i8").astype(dtype) if dtype == "M8[s]" else plain.astype(dtype)

                def spec(array, *counts):
                    return array if not collective.vector or counts == (3,) else [array, *counts]

                arguments, result, expected = moved(collective, make, spec, spec)
                call(*arguments, algorithm=name)
                assert (result() == make(expected)).all()
                assert world.last.algorithm == (name or world.last.algorithm) != "mpi"


@pytest.mark.parametrize("collective", MOVING, ids=lambda c: c.name)
def test_datatypes_may_differ_between_ranks_and_sides(world, collective):
    kinds = list(datatypes().values())
    for turn in range(len(kinds)):
        for call in forms(world, collective):
            kind = kinds[(RANK + turn) % len(kinds)]
            back = kinds[(RANK + 2 * turn + 1) % len(kinds)]
            used = []

            def make(values):
                used.append(Strided(values, back if -1 in values else kind))  # noqa: B023
                return used[-1]  # noqa: B023

            def spec(array, *counts):
                return [array.memory, *counts, array.datatype]

            arguments, result, expected = moved(collective, make, spec, spec)
            call(*arguments)
            assert result().tobytes() == np.array(expected, float).tobytes()
            assert world.last.algorithm != "mpi"
    for kind in kinds:
        kind.Free()


def test_displacements(world):
    """Blocks in another order than the ranks', with room between them."""
    places = [4 * (SIZE - 1 - r) for r in range(SIZE)]
    counts = [r % 3 + 1 for r in range(SIZE)]
    expected = np.full(4 * SIZE, -1)
    for r in range(SIZE):
        expected[places[r] : places[r] + counts[r]] = r
    mine = np.full(counts[RANK], RANK)
    for spec in (
        lambda a: [a, (counts, places)], lambda a: [a, counts, places, MPI.INT64_T],
        lambda a: [a, (np.array(counts), tuple(places)), "q"],
    ):  # fmt: skip
        for call in forms(world, COLLECTIVES["allgatherv"]):
            target = np.full(4 * SIZE, -1)
            call(mine, spec(target))
            np.testing.assert_array_equal(target, expected)
        for call in forms(world, COLLECTIVES["gatherv"]):
            target = np.full(4 * SIZE, -1)
            call(mine, spec(target) if RANK == ROOT else None, ROOT)
            assert (target == (expected if RANK == ROOT else -1)).all()
        for call in forms(world, COLLECTIVES["scatterv"]):
            target = np.zeros(counts[RANK], int)
            call(spec(expected) if RANK == ROOT else None, target, ROOT)
            assert (target == RANK).all()
    target = np.full(4 * SIZE, -1)
    target[places[RANK] : places[RANK] + counts[RANK]] = RANK
    world.Allgatherv(MPI.IN_PLACE, [target, (counts, places)])
    np.testing.assert_array_equal(target, expected)


def test_absolute_addresses(world):
    a, b = np.arange(4.0) + RANK, np.zeros(4 * SIZE)
    where = [MPI.DOUBLE.Create_hindexed([4], [MPI.Get_address(x)]).Commit() for x in (a, b)]
    world.Bcast([MPI.BOTTOM, 1, where[0]])
    assert a.tolist() == [0, 1, 2, 3]
    world.Allgather([MPI.BOTTOM, 1, where[0]], b)
    assert b.tolist() == [0, 1, 2, 3] * SIZE
    with pytest.raises(TypeError, match="needs a datatype"):
        world.Bcast([MPI.BOTTOM, 0])
    for t in where:
        t.Free()


def test_blocks_of_arrays(world):
    rows = np.arange(3.0 * SIZE).reshape(SIZE, 3)
    mine = np.zeros(3)
    world.Scatter(rows if RANK == 0 else None, mine)
    assert mine.tolist() == rows[RANK].tolist()
    back = np.zeros_like(rows)
    world.Allgather(mine, back)
    np.testing.assert_array_equal(back, rows)
    world.Gather(MPI.IN_PLACE if RANK == ROOT else mine, back if RANK == ROOT else None, ROOT)
    np.testing.assert_array_equal(back, rows)
    world.Scatter([rows, 3], MPI.IN_PLACE if RANK == 0 else mine)
    raw = bytearray(8 * SIZE)
    world.Allgather(RANK.to_bytes(8, "little"), raw)
    assert np.frombuffer(raw, np.int64).tolist() == list(range(SIZE))


@pytest.mark.parametrize("spec", [[MPI.IN_PLACE, 3, MPI.DOUBLE], (MPI.IN_PLACE, MPI.DOUBLE)])
def test_in_place_with_count_and_datatype(world, spec):
    """mpi4py takes these for MPI.IN_PLACE."""
    for call in forms(world, COLLECTIVES["allreduce"]):
        a = np.full(3, float(RANK))
        call(spec, a)
        assert (a == SIZE * (SIZE - 1) // 2).all()
    for call in forms(world, COLLECTIVES["allgather"]):
        rows = np.full((SIZE, 3), -1.0)
        rows[RANK] = RANK
        call(spec, rows)
        assert (rows == np.arange(SIZE)[:, None]).all()
    rows = np.arange(3.0 * SIZE).reshape(SIZE, 3)
    mine = rows[RANK].copy()
    world.Scatter(rows if RANK == 0 else None, spec if RANK == 0 else mine)
    assert (mine == rows[RANK]).all()


def test_reductions_in_every_form(world):
    total = SIZE * (SIZE - 1) // 2
    counts = [r + 1 for r in range(SIZE)]
    for call in forms(world, COLLECTIVES["reduce"]):
        b = np.zeros(5)
        call(np.full(5, RANK), b.astype(int), MPI.SUM, ROOT)
        b = np.full(5, float(RANK))
        call(MPI.IN_PLACE if RANK == ROOT else b, b if RANK == ROOT else None, root=ROOT)
        assert (b == (total if RANK == ROOT else RANK)).all()
    for call in forms(world, COLLECTIVES["reduce_scatter"]):
        a, b = np.arange(sum(counts)) + RANK, np.zeros(counts[RANK], int)
        expected = (SIZE * np.arange(sum(counts)) + total)[sum(counts[:RANK]) :][: counts[RANK]]
        for recvcounts in (counts, np.array(counts), None):
            call(a, b, recvcounts)
            np.testing.assert_array_equal(b, expected)
        call(MPI.IN_PLACE, a, counts)
        np.testing.assert_array_equal(a[: counts[RANK]], expected)
    for call in forms(world, COLLECTIVES["reduce_scatter_block"]):
        a, b = np.arange(2 * SIZE) + RANK, np.zeros(2, int)
        expected = (SIZE * np.arange(2 * SIZE) + total)[2 * RANK :][:2]
        call(a, b)
        np.testing.assert_array_equal(b, expected)
        call(MPI.IN_PLACE, a)
        np.testing.assert_array_equal(a[:2], expected)
    for name, some in (("scan", RANK + 1), ("exscan", RANK)):
        for call in forms(world, COLLECTIVES[name]):
            b = np.full(3, -1)
            call(np.full(3, RANK), b)
            assert (b == (sum(range(some)) if some else -1)).all()
            b[:] = RANK
            call(MPI.IN_PLACE, b)
            assert (b == (sum(range(some)) if some else RANK)).all()


def compose(a, b, datatype):
    """b = a then b, of permutations of 4: associative, not commuting."""
    left, right = np.frombuffer(a, np.int64).reshape(-1, 4), np.frombuffer(b, np.int64).reshape(-1, 4)
    right[:] = np.take_along_axis(left.copy(), right, axis=1)


def test_ops_that_do_not_commute(world):
    op, quad = MPI.Op.Create(compose, commute=False), MPI.INT64_T.Create_contiguous(4).Commit()
    chance = np.random.default_rng(5)
    everyone = np.array([[chance.permutation(4) for _ in range(2 * SIZE)] for _ in range(SIZE)])
    partial = [everyone[0]]
    for right in everyone[1:]:
        partial.append(np.take_along_axis(partial[-1], right, axis=1))
    mine = everyone[RANK].copy()
    for collective in (c for c in EVERY if c.reduces):
        names = [n for n in ours(collective.name) if registry.find(collective.name, n).ordered]
        for name in (None, *names):
            blocks = collective.base == "reduce_scatter"
            result = np.zeros((2 if blocks else 2 * SIZE, 4), np.int64)
            more = ([2] * SIZE,) if collective.name == "reduce_scatter" else ()
            root = (ROOT,) if collective.name == "reduce" else ()
            arguments = [mine, quad], [result, quad], *more, op, *root
            getattr(world, collective.method)(*arguments, algorithm=name)
            if mpi_library.locks_ops() is False:
                getattr(world, "I" + collective.name)(*arguments, algorithm=name).Wait()
            expected = partial[-1]
            if blocks:
                expected = expected[2 * RANK : 2 * RANK + 2]
            elif collective.name == "scan":
                expected = partial[RANK]
            elif collective.name == "exscan":
                expected = partial[RANK - 1] if RANK else result
            elif root and RANK != ROOT:
                expected = result
            np.testing.assert_array_equal(result, expected)
        for name in set(ours(collective.name)) - set(names):
            with pytest.raises(ValueError, match="does not commute"):
                getattr(world, collective.method)(*arguments, algorithm=name)
    op.Free()
    quad.Free()


def test_deterministic_folds(world):
    vectors = np.random.default_rng(1).standard_normal((SIZE, 3 * SIZE)).astype("f4")
    folds = np.add.accumulate(vectors, axis=0, dtype="f4")
    for name, expected in (("Scan", folds[RANK]), ("Allreduce", folds[-1])):
        result = np.zeros(3 * SIZE, "f4")
        getattr(world, name)(vectors[RANK], result, deterministic=True)
        assert result.tobytes() == expected.tobytes()
    result = np.zeros(3, "f4")
    world.Reduce_scatter_block(vectors[RANK], result, deterministic=True)
    assert result.tobytes() == folds[-1][3 * RANK : 3 * RANK + 3].tobytes()


@pytest.mark.parametrize("collective", EVERY, ids=lambda c: c.name)
def test_signatures_are_mpi4pys(collective):
    for name in (collective.method, "I" + collective.name, collective.method + "_init"):
        method = getattr(collectives.Communicator, name)
        theirs = inspect.signature(getattr(MPI.Intracomm, name)).parameters.values()
        mine = inspect.signature(method).parameters.values()
        assert [p.name for p in mine if p.kind is not p.KEYWORD_ONLY] == [p.name for p in theirs]
        own = {p.name for p in mine if p.kind is p.KEYWORD_ONLY}
        assert {"algorithm", "deterministic", "stream"} <= own
        assert method.__name__ == name
        assert method.__doc__


@pytest.mark.parametrize("collective", EVERY, ids=lambda c: c.name)
def test_every_algorithm_can_be_explained(world, collective):
    for nbytes in (0, 8, 1 << 20, 1 << 40):
        assert ": " in world.explain(collective.name, nbytes)
    with pytest.raises(ValueError, match="known: .*mpi"):
        registry.find(collective.name, "nonsense")


def test_a_reduce_scatter_in_place_takes_the_count_of_a_block(world):
    for spec in (lambda x: x, lambda x: [x, 3], lambda x: [x, 3, MPI.DOUBLE]):
        x = np.arange(3.0 * SIZE) + RANK
        world.Reduce_scatter_block(MPI.IN_PLACE, spec(x))
        own = np.arange(3.0 * RANK, 3 * RANK + 3)
        np.testing.assert_array_equal(x[:3], SIZE * own + SIZE * (SIZE - 1) / 2)


def test_wrong_arguments_are_refused_before_anything_is_sent(world):
    a, b = np.zeros(2 * SIZE), np.zeros(2 * SIZE)
    few = [1] * (SIZE + 1)
    for call, error, message in (
        (lambda: world.Bcast(a, SIZE), ValueError, "^root: "),
        (lambda: world.Bcast(a, -1), MPI.Exception, "^root: "),
        (lambda: world.Bcast(a, 1.5), TypeError, "^root: "),
        (lambda: world.Bcast(None), TypeError, "^buf: expected a buffer"),
        (lambda: world.Bcast(MPI.IN_PLACE), TypeError, "^buf: expected a buffer"),
        (lambda: world.Bcast(np.zeros(4)[::2]), ValueError, "^buf: .*strided"),
        (lambda: world.Bcast([a, 2 * SIZE + 1]), ValueError, "^buf: "),
        (lambda: world.Allgather(a, b), ValueError if SIZE > 1 else None, "^sendbuf has"),
        (lambda: world.Allgather(a[:2], bytes(16 * SIZE)), ValueError, "^recvbuf: .*read-only"),
        (lambda: world.Allgather(b[:2], b), ValueError, "overlap"),
        (lambda: world.Allgather(a[:1], np.zeros(SIZE + 1)), ValueError if SIZE > 1 else None, "^recvbuf: |^sendbuf"),
        (lambda: world.Allgatherv(a, [b, few]), ValueError, "^recvbuf: expected"),
        (lambda: world.Allgatherv(a, [b, [-1] * SIZE]), ValueError, "^recvbuf: .*negative"),
        (lambda: world.Alltoallv([a, ([2] * SIZE, [2 * SIZE] * SIZE)], b), ValueError, "^sendbuf: 2 elements"),
        (lambda: world.Alltoall(a, [b, "nonsense"]), TypeError, "^recvbuf: "),
        (lambda: world.Reduce_scatter(a, b[:2], few), ValueError, "^recvcounts: expected"),
        (lambda: world.Reduce_scatter(a, b[:2], [3] * SIZE), ValueError, "recvcounts ask for"),
        (lambda: world.Reduce_scatter(MPI.IN_PLACE, b), TypeError, "^recvcounts: "),
        (lambda: world.Reduce_scatter_block(a, b), ValueError if SIZE > 1 else None, "elements"),
        (lambda: world.Reduce_scatter_block(a, b[:2].astype("i8")), TypeError, "float64, recvbuf of int64"),
        (lambda: world.Scan(a, b, "sum"), TypeError, "op must be"),
        (lambda: world.Scan(a, b, collectives.AVG), TypeError, "^op: .*AVG has no meaning"),
        (lambda: world.Bcast(a, algorithm="binomial", rooot=1), TypeError, "Bcast.. got an unexpected"),
        (lambda: world.Bcast(), TypeError, "(?i)bcast.*argument"),
        (lambda: world.Ibcast(a, timeout=1), TypeError, "Ibcast.. got an unexpected"),
        (lambda: world.Bcast(a, stream=1), ValueError, "^stream"),
        (lambda: world.Bcast(a, algorithm=["binomial"]), TypeError, "^algorithm: "),
        (lambda: world.Reduce_scatter_block(MPI.IN_PLACE, [b, 3, MPI.DOUBLE]), ValueError, "^recvbuf: "),
        (lambda: world.empty(-1), ValueError, "^shape: "),
        (lambda: world.explain("bcast", -1), ValueError, "^nbytes: "),
        (lambda: world.explain("bcast", "8"), TypeError, "integer"),
        (lambda: collectives.reproducible_sum(a, comm=MPI.COMM_SELF), TypeError, "^comm: "),
    ):  # fmt: skip
        if error is not None:
            with pytest.raises(error, match=message):
                call()
    assert world.allreduce(1) == SIZE


@pytest.mark.parametrize("collective", MOVING, ids=lambda c: c.name)
def test_the_readable_executor(world, collective):
    for name in ours(collective.name):
        if name == "shm":
            continue

        def spec(array, *counts):
            return array if not collective.vector or counts == (3,) else [array, *counts]

        arguments, result, expected = moved(collective, np.array, spec, spec)
        getattr(world, collective.method)(*arguments, algorithm=name, engine="python")
        assert result().tolist() == expected


def test_handed_over_by_name(world):
    for collective in EVERY:
        if collective in MOVING:

            def spec(array, *counts):
                return array if not collective.vector or counts == (3,) else [array, *counts]  # noqa: B023

            arguments, result, expected = moved(collective, np.array, spec, spec)
            getattr(world, collective.method)(*arguments, algorithm="mpi")
            assert result().tolist() == expected
            assert world.last.algorithm == "mpi"
            assert world.last.collective == collective.name
            getattr(world, "I" + collective.name)(*arguments, algorithm="mpi").Wait()
    request = world.Ireduce_scatter_block(np.ones(SIZE), np.zeros(1), algorithm="mpi")
    request.Wait()


@pytest.mark.parametrize(
    "name", ["INT32_T", "INT64_T", "INT", "LONG", "FLOAT", "DOUBLE", "UINT8_T", "C_DOUBLE_COMPLEX"]
)
def test_named_datatypes_have_kernels(world, name):
    """Some ranks name the type, others pass the array: that is one call, which the same algorithm serves."""
    datatype = getattr(MPI, name)
    vector = np.full(50, RANK + 1, datatype.tocode())
    result = np.empty_like(vector)
    by_name = RANK % 2 == 0
    world.Allreduce([vector, datatype] if by_name else vector, [result, datatype] if by_name else result)
    assert (result == SIZE * (SIZE + 1) // 2).all()
    assert world.last.algorithm == "shm"
