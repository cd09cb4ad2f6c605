"""Deterministic mode and reproducible sums: the same bits whatever the algorithm, the cut, the place and the form."""

import itertools
import math
import re

import ml_dtypes
import numpy as np
import pytest
from forms import ours
from mpi4py import MPI

import collectives
from collectives import AVG, REPRODUCIBLE_SUM, Communicator
from collectives.arguments.calls import COLLECTIVES
from collectives.communicator import exact_sums, wide_accumulation
from collectives.schedules import registry

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
ROOT = SIZE - 1
REDUCING = [c for c in COLLECTIVES.values() if c.reduces]
DTYPES = [np.dtype(d) for d in ("f4", "f8", "f2", ml_dtypes.bfloat16)]


def linear(collective):
    return [a for a in ours(collective) if registry.find(collective, a).linear]


def form_of(comm, collective, number, again):
    """One of the ways to make a call, as a function that returns when the result is there."""

    def starting(*args, **kwargs):
        getattr(comm, "I" + collective.name)(*args, **kwargs).Wait()

    def lasting(*args, **kwargs):
        plan = getattr(comm, collective.method + "_init")(*args, **kwargs)
        for _ in range(1 + again):
            plan.Start()
            plan.Wait()
        plan.Free()

    def grouped(*args, **kwargs):
        with comm.group():
            getattr(comm, collective.method)(*args, **kwargs)

    forms = [getattr(comm, collective.method), starting, lasting]
    if collective.name in ("allreduce", "reduce", "scan", "exscan"):
        forms.append(grouped)
    return forms[number % len(forms)]


def lengths_of(collective, n):
    """Of the blocks of a reduce-scatter: where they may differ, the last one has a single element."""
    lengths = np.full(SIZE, n // SIZE)
    if collective.vector and SIZE > 1:
        lengths[0], lengths[-1] = lengths[0] + lengths[-1] - 1, 1
    return lengths


def called(comm, collective, vectors, op, number, **options):
    """The result of one of many forms of a call (number says which), or None where this rank gets none."""
    n = vectors.shape[1]
    place = comm.empty if number // 2 % 2 else np.empty
    mine = place(n, vectors.dtype)
    mine[:] = vectors[RANK]
    run = form_of(comm, collective, number // 4, number % 2 == 0)  # in place, a second run would sum sums
    if collective.base == "reduce_scatter":
        lengths = lengths_of(collective, n)
        result = place(lengths[RANK], vectors.dtype)
        run(mine, result, *([lengths.tolist()] if collective.vector else []), op, **options)
        return result
    in_place = number % 2 and (collective.name != "reduce" or RANK == ROOT)
    result = mine if in_place else place(n, vectors.dtype)
    root = {"root": ROOT} if collective.rooted else {}
    receives = not root or RANK == ROOT
    run(MPI.IN_PLACE if in_place else mine, result if receives else None, op, **root, **options)
    return result if receives and not (collective.name == "exscan" and RANK == 0) else None


def own_part(collective, whole):
    """This rank's part of the fold over all ranks, from the fold over each number of them."""
    if collective.base == "reduce_scatter":
        ends = np.cumsum(lengths_of(collective, whole.shape[1]))
        return whole[-1][ends[RANK] - lengths_of(collective, whole.shape[1])[RANK] : ends[RANK]]
    return whole[RANK - ("ex" in collective.name) if "scan" in collective.name else -1]


def folds(vectors, op):
    """In rank order, over 1, 2, ... ranks: halves in float32, rounded once."""
    wide = vectors.astype("f4" if vectors.dtype.itemsize == 2 else vectors.dtype)
    folded = (np.multiply if op == MPI.PROD else np.add).accumulate(wide, axis=0, dtype=wide.dtype)
    if op is AVG:
        folded = folded / wide.dtype.type(SIZE)
    return folded.astype(vectors.dtype)


@pytest.mark.parametrize("collective", REDUCING, ids=lambda c: c.name)
def test_deterministic_calls_fold_in_rank_order(world, collective):
    number = itertools.count()
    for dtype in DTYPES:
        for n in (SIZE, 51 * SIZE, 5000 * SIZE):
            vectors = np.random.default_rng([n]).standard_normal((SIZE, n)).astype(dtype)
            for op in (MPI.SUM, AVG, MPI.PROD) if collective.averages else (MPI.SUM, MPI.PROD):
                expected = own_part(collective, folds(vectors, op))
                for name in [None, *linear(collective.name)]:
                    options = {"algorithm": name, "deterministic": True}
                    if next(number) % 11 == 0 and name not in (None, "shm"):
                        options["engine"] = "python"
                    form = 0 if "engine" in options else next(number)
                    got = called(world, collective, vectors, op, form, **options)
                    assert got is None or got.tobytes() == expected.tobytes(), (dtype, n, op, name, form)


def test_the_mean_of_gradients_in_any_buckets(world):
    """Cut in 5 ways, by any algorithm that is admitted, alone or as a group: the same bits."""
    n = 20_011
    comm = world.Dup()
    comm.deterministic = True
    cuts = [
        [],
        [n // 2],
        list(range(0, n, 997))[1:],
        [1, 2, 3, 5000],
        sorted(np.random.default_rng(7).integers(0, n, 9)),
    ]
    for dtype in DTYPES:
        vectors = np.random.default_rng(8).standard_normal((SIZE, n)).astype(dtype)
        expected = folds(vectors, AVG)[-1].tobytes()
        for i, cut in enumerate(cuts):
            for name in [None, *linear("allreduce")]:
                whole = vectors[RANK].copy() if i % 2 else comm.empty(n, dtype)
                whole[:] = vectors[RANK]
                if i % 3 == 0:
                    with comm.group():
                        for bucket in np.split(whole, cut):
                            comm.Allreduce(MPI.IN_PLACE, bucket, AVG, algorithm=name)
                else:
                    for bucket in np.split(whole, cut):
                        comm.Allreduce(MPI.IN_PLACE, bucket, AVG, algorithm=name)
                assert whole.tobytes() == expected, (dtype, i, name)
    comm.Free()


def test_the_attribute(world):
    assert world.deterministic is False
    comm = world.Dup()
    comm.deterministic = True
    children = [comm.Dup(), comm.Split(0, RANK), comm.Create(comm.Get_group()), comm.Create_cart([SIZE])]
    children += [collectives.Communicator(comm), children[0].Split(RANK % 2)]
    for child in children:
        assert child.deterministic is True
        child.Free()
    a = np.ones(5)
    with pytest.raises(ValueError, match="rank order"):
        comm.Allreduce(MPI.IN_PLACE, a, algorithm="ring")
    with pytest.raises(ValueError, match="rank order"):
        comm.Iallreduce(MPI.IN_PLACE, a, algorithm="mpi")
    comm.Allreduce(MPI.IN_PLACE, a, algorithm="ring", deterministic=False)
    comm.Allreduce(MPI.IN_PLACE, a, REPRODUCIBLE_SUM, algorithm="ring")  # has no order to keep
    assert a.tolist() == [SIZE * SIZE] * 5
    comm.Bcast(a, algorithm="binomial")
    for no_bool in ("no", 0, None):
        with pytest.raises(TypeError, match=f"^deterministic: expected a bool, not {type(no_bool).__name__}"):
            comm.deterministic = no_bool
    assert comm.deterministic is True
    comm.deterministic = np.False_
    assert comm.deterministic is False
    comm.Allreduce(MPI.IN_PLACE, a, algorithm="ring")
    assert world.deterministic is False
    comm.Free()


@pytest.mark.parametrize("collective", REDUCING, ids=lambda c: c.name)
@pytest.mark.parametrize("most", [wide_accumulation.MOST, 4096])
def test_reproducible_sums(world, collective, most, monkeypatch):
    """Every collective, algorithm and form gives the exact sum, rounded once, also in parts of little memory."""
    monkeypatch.setattr(wide_accumulation, "MOST", most)
    monkeypatch.setattr(exact_sums, "MOST", most)
    number = itertools.count()
    for dtype in ("f4", "f8"):
        for n in (SIZE, 51 * SIZE, 400 * SIZE):
            rng = np.random.default_rng(n)
            vectors = (rng.standard_normal((SIZE, n)) * 10.0 ** rng.integers(-9, 9, (SIZE, n))).astype(dtype)
            vectors[:, 0], vectors[ROOT, -1] = -0.0, np.inf
            sums = np.array([collectives.reproducible_sum(vectors[: r + 1], 0) for r in range(SIZE)])
            assert dtype == "f4" or sums[-1][1:9].tolist() == [math.fsum(vectors[:, k]) for k in range(1, min(9, n))]
            expected = own_part(collective, sums)
            for name in [None, *ours(collective.name)]:
                for _ in range(2):
                    got = called(world, collective, vectors, REPRODUCIBLE_SUM, next(number), algorithm=name)
                    assert got is None or got.tobytes() == expected.tobytes(), (dtype, n, name)
                if name not in (None, "shm") and n < 100 * SIZE:
                    got = called(world, collective, vectors, REPRODUCIBLE_SUM, 0, algorithm=name, engine="python")
                    assert got is None or got.tobytes() == expected.tobytes(), (dtype, n, name, "python")


@pytest.mark.parametrize("collective", [c for c in REDUCING if c.averages], ids=lambda c: c.name)
@pytest.mark.parametrize("elements", [3, 50_000])
def test_a_mean_of_float16_is_finite_where_the_sum_is_not(world, collective, elements):
    """By every algorithm, blocking or not, and by plans that an earlier call has left."""
    vectors = np.full((SIZE, elements * SIZE), 60_000, "f2")
    for name in [None, *ours(collective.name)]:
        for way in range(12):
            got = called(world, collective, vectors, AVG, way, algorithm=name)
            assert got is None or np.allclose(got.astype("f4"), 60_000, rtol=0.002), (name, way)


@pytest.mark.parametrize("nbytes", [400, 1 << 10, 3 << 10, 6 << 10])
def test_one_choice_for_each_call(nbytes):
    """By the length that the caller's data have, as ``explain`` tells, whatever it goes on as."""
    comm = Communicator(WORLD)
    context = comm._context
    context.apart, choose, made = "as if on several nodes", context.choose, []
    context.close()
    context.choose = lambda demand: made.append(demand.collective) or choose(demand)
    for dtype, op, order in (
        ("f8", REPRODUCIBLE_SUM, False), ("f4", REPRODUCIBLE_SUM, False),
        ("f2", MPI.SUM, True), ("f8", MPI.SUM, True), ("f8", MPI.SUM, False), ("g", MPI.SUM, False),
    ):  # fmt: skip
        comm.deterministic = order
        x = np.ones(nbytes // np.dtype(dtype).itemsize, dtype)
        for call in (comm.Allreduce, lambda *args: comm.Iallreduce(*args).Wait()):
            made.clear()
            call(x, y := np.empty_like(x), op)
            assert made.count("allreduce") == 1
            assert y.tolist() == [SIZE] * len(x)
            told = comm.explain("allreduce", x.nbytes, dtype, op)
            assert re.match(r"\w+", told)[0] == comm.last.algorithm
            assert comm.last.nbytes == x.nbytes
    comm.deterministic = False
    comm.Free()


def test_explain_knows_the_element_type(world):
    assert world.explain("allreduce", 64, "f8") == world.explain("allreduce", 64, MPI.DOUBLE)
    assert world.explain("allreduce", 64, "bfloat16").startswith("shm")
    assert world.explain("allreduce", 64, "longdouble") == "mpi: no kernel for MPI_LONG_DOUBLE"
    with pytest.raises(TypeError, match="band does not apply to float32"):
        world.explain("allreduce", 64, op=MPI.BAND)


def test_sums_of_what_is_spread_over_the_ranks(world):
    rng = np.random.default_rng(9)
    x = np.concatenate([y := rng.standard_normal(20_000) * 10.0 ** rng.uniform(-15, 15, 20_000), -y, [1e-20]])
    table = rng.standard_normal((1003, 5)).astype("f4")
    columns = collectives.reproducible_sum(table, 0).tobytes()
    for name in [None, *ours("allreduce")]:
        rng.shuffle(x)
        parts = np.split(x, np.sort(rng.integers(0, len(x) + 1, SIZE - 1)))
        assert collectives.reproducible_sum(parts[RANK], comm=world, algorithm=name) == 1e-20
        rng.shuffle(table)
        mine = table[RANK::SIZE] if len(name or "") % 2 else table[: 1003 if RANK == ROOT else 0]
        assert collectives.reproducible_sum(mine, 0, comm=world, algorithm=name).tobytes() == columns


def test_errors_before_anything_is_sent(world):
    for dtype in ("f2", "i8", "c16"):
        with pytest.raises(TypeError, match="reproducible_sum does not apply"):
            world.Allreduce(MPI.IN_PLACE, np.zeros(3, dtype), REPRODUCIBLE_SUM)
    with pytest.raises(ValueError, match="REPRODUCIBLE_SUM, which MPI does not know"):
        world.Allreduce(MPI.IN_PLACE, np.zeros(3), REPRODUCIBLE_SUM, algorithm="mpi")
    with pytest.raises(TypeError, match="sum does not apply to exact64"):
        world.Allreduce(MPI.IN_PLACE, collectives.Accumulator(3).data)
    with pytest.raises(TypeError, match="REPRODUCIBLE_SUM"):
        world.Allreduce(MPI.IN_PLACE, np.zeros(3), "sum")
    assert collectives.reproducible_sum(np.ones(3), comm=world) == 3 * SIZE
