"""What holds for every compression, on several ranks in lockstep: nothing is lost, all ranks get the same bits."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep import World, bucket, exchange, residuals
from mpi4py import MPI

import collectives
from collectives import train

pytestmark = pytest.mark.filterwarnings("ignore:TopK")  # of a few elements it sends all
KINDS = {
    "float16": train.Float16Wire,
    "bfloat16": train.BFloat16Wire,
    "int8": train.Int8,
    "topk": lambda: train.TopK(0.1),
    "powersgd": lambda: train.PowerSGD(2),
}
WITH_RESIDUALS = ["int8", "topk", "powersgd"]
KEPT = {"float16": 2**-11, "bfloat16": 2**-8}  # relative error of a rounding
SHAPES = [(24, 17), (5,), (3, 4, 5), (1,), (6, 40), ()]  # 715 elements


def gradients(seed, size, count, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((size, count)) * 10.0 ** rng.integers(-3, 3, count)).astype(dtype)


def count_of(shapes):
    return sum(int(np.prod(shape)) for shape in shapes)


@pytest.mark.parametrize("kind", WITH_RESIDUALS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(size=st.integers(1, 4), seed=st.integers(0, 99), rows=st.integers(1, 50), tail=st.integers(1, 2100))
@settings(max_examples=15, deadline=None)
def test_result_and_residuals_are_together_what_was_given(kind, dtype, size, seed, rows, tail):
    shapes = [(rows, 13), (tail,)]
    ranks, world = [KINDS[kind]() for _ in range(size)], World(size)
    kept = np.zeros((size, count_of(shapes)))
    for step in range(3):
        g = gradients([seed, step], size, count_of(shapes), dtype)
        result = exchange(ranks, g, shapes, world)
        before, kept = g + kept, residuals(ranks)
        eps = np.finfo(np.float32 if kind == "int8" else dtype).eps
        np.testing.assert_allclose(
            result[0] + kept.mean(axis=0), before.mean(axis=0), rtol=0, atol=200 * eps * np.abs(before).max()
        )
        assert (result == result[0]).all()


@pytest.mark.parametrize("kind", KINDS)
@given(size=st.integers(1, 4), count=st.integers(1, 40), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_a_gradient_that_all_ranks_share_is_its_own_mean_in_the_long_run(kind, size, count, seed):
    g = np.repeat(gradients(seed, 1, count), size, axis=0)
    ranks, world, steps = [KINDS[kind]() for _ in range(size)], World(size), 60
    total = sum(exchange(ranks, g, world=world)[0].astype(np.float64) for _ in range(steps))
    if kind in KEPT:
        np.testing.assert_allclose(total / steps, g[0], rtol=2 * KEPT[kind], atol=1e-7)
    else:
        left = residuals(ranks).mean(axis=0) / steps
        np.testing.assert_allclose(total / steps + left, g[0], rtol=0, atol=1e-5 * np.abs(g).max())
        assert np.abs(left).max() <= np.abs(g).max() * (1 if kind == "topk" else 1 / 60)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_zeros_stay_zeros(kind, size):
    ranks = [KINDS[kind]() for _ in range(size)]
    for _ in range(2):
        assert not exchange(ranks, np.zeros((size, count_of(SHAPES)), np.float32), SHAPES).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 410, 714])
def test_what_is_not_finite_on_one_rank_shows_on_all_and_is_not_kept(kind, wrong, at):
    ranks, world = [KINDS[kind]() for _ in range(3)], World(3)
    for step in range(3):
        g = gradients(step, 3, count_of(SHAPES))
        if step == 1:
            g[1, at] = wrong
        result = exchange(ranks, g, SHAPES, world)
        np.testing.assert_array_equal(result, np.repeat(result[:1], 3, axis=0))
        assert np.isfinite(result).all() == (step != 1)
        assert not np.isfinite(result[0, at]) == (step == 1)
        if kind in WITH_RESIDUALS:
            assert np.isfinite(residuals(ranks)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_more_nonfinite_elements_than_are_sent(kind):
    ranks = [KINDS[kind]() for _ in range(2)]
    assert not np.isfinite(exchange(ranks, np.full((2, count_of(SHAPES)), np.nan, np.float32), SHAPES)).all()
    assert np.isfinite(exchange(ranks, gradients(0, 2, count_of(SHAPES)), SHAPES)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_is_restored_goes_on_with_the_same_bits(kind):
    def go_on(ranks, first):
        world = World(3)
        return [exchange(ranks, gradients(i, 3, count_of(SHAPES)), SHAPES, world) for i in range(first, 5)]

    undisturbed = go_on([KINDS[kind]() for _ in range(3)], 0)
    ranks, world = [KINDS[kind]() for _ in range(3)], World(3)
    for i in range(2):
        exchange(ranks, gradients(i, 3, count_of(SHAPES)), SHAPES, world)
    restored = [KINDS[kind]() for _ in range(3)]
    for old, new in zip(ranks, restored, strict=True):
        new.load_state_dict(old.state_dict())
        assert str(new.state_dict()) == str(old.state_dict())  # before a bucket has come
        exchange([old], gradients(9, 1, count_of(SHAPES)), SHAPES)  # must not change what was saved
    np.testing.assert_array_equal(go_on(restored, 2), undisturbed[2:])


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_reset_all_is_as_at_first(kind):
    ranks, g = [KINDS[kind]() for _ in range(2)], gradients(0, 2, count_of(SHAPES))
    first = exchange(ranks, g, SHAPES)
    for compression in ranks:
        compression.reset()
        assert compression.state_dict() == {}
    np.testing.assert_array_equal(exchange(ranks, g, SHAPES), first)


@pytest.mark.parametrize("kind", WITH_RESIDUALS)
def test_residuals_go_on_with_another_communicator(kind):
    """A rank was lost: the others keep what they have not sent yet."""
    ranks, g = [KINDS[kind]() for _ in range(3)], gradients(0, 3, count_of(SHAPES))
    exchange(ranks, g, SHAPES)
    given = gradients(1, 2, count_of(SHAPES)) + residuals(ranks)[:2]
    result = exchange(ranks[:2], gradients(1, 2, count_of(SHAPES)), SHAPES)
    np.testing.assert_allclose(
        result[0] + residuals(ranks[:2]).mean(axis=0), given.mean(axis=0), rtol=0, atol=1e-5 * np.abs(given).max()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_buckets_do_not_disturb_each_other(kind):
    """Two exchanges under way, each advanced in turn, do what they do one after the other."""
    world, other = World(1), World(1)
    compression, alone = KINDS[kind](), KINDS[kind]()
    for step in range(2):
        pair = [bucket(gradients(step, 1, 300)[0], [(20, 15)], index) for index in (0, 1)]
        under_way = [compression.exchange(b, world.ranks[0]) for b in pair]
        while under_way:
            under_way = [e for e in under_way if next(e, None) is not None and world.complete() is None]
        for index, b in enumerate(pair):
            expected = bucket(gradients(step, 1, 300)[0], [(20, 15)], index)
            other.run([alone.exchange(expected, other.ranks[0])])
            np.testing.assert_array_equal(b.grads, expected.grads)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_come_before_anything_is_sent(kind):
    compression, world = KINDS[kind](), World(1)
    with pytest.raises(TypeError, match=r"takes float32 and float64 gradients, not float16"):
        next(compression.exchange(bucket(np.zeros(4, np.float16)), world.ranks[0]))
    if kind in WITH_RESIDUALS:
        exchange([compression], gradients(0, 1, 40), [(8, 5)])
        other = KINDS[kind]()
        other.load_state_dict(compression.state_dict())
        with pytest.raises(ValueError, match=r"residual is for another bucket: its shape is \(40,\), not \(50,\)"):
            next(other.exchange(bucket(gradients(0, 1, 50)[0], [(10, 5)]), world.ranks[0]))
        other.load_state_dict({"0": {}})
        with pytest.raises(ValueError, match="has no residual: another compression has saved it"):
            next(other.exchange(bucket(gradients(0, 1, 50)[0], [(10, 5)]), world.ranks[0]))
    assert world.calls == [None]


@pytest.mark.parametrize("kind", KINDS)
def test_messages_lie_on_the_heap_and_arrays_are_made_once(kind):
    made, moved = [], []

    def heap(*args):
        made.append(np.zeros(*args))
        return made[-1]

    def move(send, receive, op=None):  # of one rank
        moved.append(receive)
        if send is not MPI.IN_PLACE:
            receive[...] = send
        return "request"

    comm = SimpleNamespace(rank=0, size=1, zeros=heap, Iallreduce=move, Iallgather=move, Ialltoall=move)
    compression, b = KINDS[kind](), bucket(gradients(0, 1, 400_000)[0], [(500, 800)])
    for _ in compression.exchange(b, comm):
        pass
    first = len(made)
    tracemalloc.start()
    for _ in compression.exchange(b, comm):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < b.grads.nbytes
    assert 1 <= first == len(made)
    assert all(any(np.shares_memory(array, own) for own in made) for array in moved)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shapes", [SHAPES, [(7,)], [(1, 1)], [(0, 3)]])
def test_one_rank_on_a_real_communicator(kind, shapes):
    comm, compression, expected = collectives.Communicator(MPI.COMM_SELF), KINDS[kind](), KINDS[kind]()
    for step in range(3):
        g = gradients(step, 1, count_of(shapes))
        made = bucket(g[0], shapes)
        for request in compression.exchange(made, comm):
            request.Wait()
        np.testing.assert_array_equal(made.grads, exchange([expected], g, shapes)[0])


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_16_bits_need_our_communicator(kind):
    with pytest.raises(TypeError, match=r"Op"):
        next(KINDS[kind]().exchange(bucket(gradients(0, 1, 5)[0]), MPI.COMM_SELF))


@pytest.mark.parametrize("kind", WITH_RESIDUALS)
def test_others_do_with_any_communicator(kind):
    made, g = bucket(gradients(0, 1, 1000)[0], [(20, 50)]), gradients(0, 1, 1000)
    for request in KINDS[kind]().exchange(made, MPI.COMM_SELF):
        request.Wait()
    np.testing.assert_array_equal(made.grads, exchange([KINDS[kind]()], g, [(20, 50)])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_are_counted(kind):
    ranks = [KINDS[kind]() for _ in range(4)]
    for step in (1, 2):
        exchange(ranks, gradients(step, 4, 4000), [(100, 40)])
        expected = {
            "float16": 8000,
            "bfloat16": 8000,
            "int8": 5 * (1000 + 4),  # an all-to-all of 4 parts, and one part
            "topk": 400 * 8,
            "powersgd": 2 * 140 * 4,
        }[kind]
        assert {c.sent for c in ranks} == {step * expected}
    assert all(c.per_rank == (kind in WITH_RESIDUALS) for c in ranks)


@pytest.mark.parametrize("kind", KINDS)
def test_settings_are_plain_and_name_the_kind(kind):
    compression = KINDS[kind]()
    assert compression.settings() == KINDS[kind]().settings()
    assert compression.settings()["compression"] == type(compression).__name__
    assert all(isinstance(value, (str, int, float)) for value in compression.settings().values())
