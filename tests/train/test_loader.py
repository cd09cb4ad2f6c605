"""What the loader promises about shards and batches, for any number of samples, ranks and any batch."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from collectives import train
from collectives.train.data.loader import SHARDS

sizes = {"n": st.integers(1, 60), "p": st.integers(1, 9), "batch": st.integers(1, 70)}
LIMITS = settings(deadline=None)  # loaders of several ranks take their time


def loaders(n, p, batch, shard="shuffled", seed=0, labels=None, **kwargs):
    y = np.arange(n) % 4 if labels is None else labels
    ranks = [SimpleNamespace(rank=r, size=p) for r in range(p)]
    return [train.Loader((np.arange(n), y), batch, seed=seed, comm=c, shard=shard, **kwargs) for c in ranks]


def epoch(loader):
    return [x for x, _ in loader]


@LIMITS
@given(**sizes, shard=st.sampled_from(SHARDS))
def test_every_sample_once_and_steps_add_up(n, p, batch, shard):
    of_rank = [epoch(loader) for loader in loaders(n, p, batch, shard)]
    assert sorted(np.concatenate([x for steps in of_rank for x in steps])) == list(range(n))
    for k, parts in enumerate(zip(*of_rank, strict=True)):
        assert sum(map(len, parts)) == min(batch, n - k * batch)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@LIMITS
@given(**sizes, seed=st.integers(0, 5))
def test_global_batches_do_not_depend_on_the_ranks(n, p, batch, seed):
    (alone,) = loaders(n, 1, batch, seed=seed)
    together = loaders(n, p, batch, seed=seed)
    for _ in range(2):
        steps = list(zip(*(epoch(loader) for loader in together), strict=True))
        assert [sorted(x) for x in epoch(alone)] == [sorted(np.concatenate(parts)) for parts in steps]


@LIMITS
@given(**sizes, shard=st.sampled_from(SHARDS))
def test_drop_last_leaves_out_the_batch_that_is_not_full(n, p, batch, shard):
    if batch > n:
        with pytest.raises(ValueError, match="make no batch"):
            loaders(n, p, batch, shard, drop_last=True)
        return
    ranks = loaders(n, p, batch, shard, drop_last=True)
    indices = [loader.indices(0).tolist() for loader in ranks]
    of_rank = [epoch(loader) for loader in ranks]
    assert [len(steps) for steps in of_rank] == [len(loader) for loader in ranks] == [n // batch] * p
    assert all(sum(map(len, parts)) == batch for parts in zip(*of_rank, strict=True))
    assert [np.concatenate(steps).tolist() for steps in of_rank] == indices
    assert len({i for mine in indices for i in mine}) == n // batch * batch
    assert all((loader.epoch, loader.position, loader.step) == (1, 0, 0) for loader in ranks)


@LIMITS
@given(**sizes, shard=st.sampled_from(["strided", "sorted"]))
def test_own_shards_stay_and_are_disjoint(n, p, batch, shard):
    sets = [set(loader.indices(0)) for loader in loaders(n, p, batch, shard)]
    assert sum(map(len, sets)) == len(set().union(*sets)) == n
    assert sets == [set(loader.indices(5)) for loader in loaders(n, p, batch, shard)]


def test_strided_ranks_have_every_pth_sample():
    assert [sorted(loader.indices(3)) for loader in loaders(10, 3, 4, "strided")] == [
        [0, 3, 6, 9], [1, 4, 7], [2, 5, 8]
    ]  # fmt: skip


def test_sorted_ranks_know_few_labels():
    y = np.random.default_rng(0).permutation(np.arange(80) % 8)
    for r, loader in enumerate(loaders(80, 4, 16, "sorted", labels=y)):
        assert set(y[loader.indices(0)]) == {2 * r, 2 * r + 1}


@pytest.mark.parametrize("shard", SHARDS)
def test_order_depends_on_seed_and_epoch_alone(shard):
    (a,), (b,), (c,) = loaders(50, 1, 8, shard), loaders(50, 1, 8, shard), loaders(50, 1, 8, shard, seed=1)
    first = np.concatenate(epoch(a))
    np.testing.assert_array_equal(first, np.concatenate(epoch(b)))
    assert not np.array_equal(first, np.concatenate(epoch(a)))  # the next epoch
    assert not np.array_equal(first, np.concatenate(epoch(c)))
    assert (a.epoch, b.epoch) == (2, 1)


def test_the_order_of_a_seed_stays_from_version_to_version():
    """A run may be resumed with another version of NumPy, and of this library."""
    assert loaders(1000, 1, 4, seed=7)[0].indices(2)[:8].tolist() == [925, 786, 544, 345, 54, 136, 537, 427]


def test_position_and_step_count_what_was_yielded():
    (loader,) = loaders(50, 1, 8)
    seen = []
    for _ in loader:
        seen.append((loader.epoch, loader.step, loader.position))
    assert seen == [(0, k + 1, min(8 * k + 8, 50)) for k in range(7)]
    assert (loader.epoch, loader.step, loader.position, loader.samples, len(loader)) == (1, 0, 0, 50, 7)


def test_rows_of_all_arrays_belong_together():
    x, y = np.random.default_rng(0).random((20, 3)), np.arange(20)
    loader = train.Loader((x, y), 6, comm=SimpleNamespace(rank=1, size=3))
    for a, b in loader:
        np.testing.assert_array_equal(a, x[b])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_only_the_latest_of_several_iterators_goes_on(prefetch):
    (loader,) = loaders(50, 1, 8, prefetch=prefetch)
    first = iter(loader)
    seen = [next(first)[0]]
    second = iter(loader)
    seen.append(next(second)[0])
    with pytest.raises(RuntimeError, match="a later iterator"):
        next(first)
    seen += [x for x, _ in second]
    assert sorted(np.concatenate(seen)) == list(range(50))
    assert (loader.epoch, loader.position) == (1, 0)


@pytest.mark.parametrize(
    ("arrays", "kwargs", "error", "message"),
    [
        ((np.zeros(3), np.zeros(4)), {}, ValueError, r"\[3, 4\]"),
        ((np.zeros(0), np.zeros(0)), {}, ValueError, "at least 1"),
        ((), {}, ValueError, "same number of rows"),
        ((np.zeros(3),), {"batch": 0}, ValueError, "batch must be at least 1"),
        ((np.zeros(3),), {"batch": 1.5}, TypeError, "batch must be an integer, not "),
        ((np.zeros(3),), {"shard": "cut"}, ValueError, "shuffled, strided, sorted"),
        ((np.zeros(3),), {"placement": "here"}, ValueError, "shared, local"),
        ((np.zeros(3),), {"placement": "local", "shard": "sorted"}, ValueError, "not for 'local'"),
        ((np.zeros(3),), {"placement": "local"}, TypeError, "allgather"),
        ((np.zeros(3),), {"seed": -1}, ValueError, "seed"),
        ((np.zeros(3),), {"prefetch": -1}, ValueError, "prefetch"),
        ((np.zeros(3),), {"batch": 4, "drop_last": True}, ValueError, "3 samples make no batch of 4"),
        ((np.zeros((3, 2)),), {"shard": "sorted"}, ValueError, "one label per sample"),
        ([(1, 2), (3, 4)], {"shard": "sorted"}, TypeError, "needs arrays"),
        ((np.zeros(3), [1, 2, 3]), {}, TypeError, "this has ndarray, list"),
        ((np.array([None]),), {}, TypeError, "Python objects"),
        (iter([1]), {}, TypeError, "not list_iterator"),
        ({3, 4}, {}, TypeError, "not set"),
        ([], {}, ValueError, "at least 1"),
    ],
)
def test_bad_arguments(arrays, kwargs, error, message):
    with pytest.raises(error, match=message):
        train.Loader(arrays, **{"batch": 2, **kwargs}, comm=SimpleNamespace(rank=0, size=1))


def test_parts_on_demand_are_the_samples_of_the_next_batches():
    numbers = itertools.count()
    data = train.Loader((np.arange(50),), 8, seed=3, comm=SimpleNamespace(rank=0, size=3))
    whole = np.concatenate([x for (x,) in train.Loader((np.arange(50),), 8, seed=3, comm=MPI.COMM_SELF)])
    series = set()

    def take(count):
        series.add(count)
        return next(numbers)

    parts = [x for (x,) in data.on_demand(4, take)]
    np.testing.assert_array_equal(np.concatenate(parts), whole[:32])
    assert (max(map(len, parts)), data.position, data.step, data.epoch) == (3, 32, 4, 0)
    numbers = itertools.count(2)  # other ranks have the first two parts
    np.testing.assert_array_equal(np.concatenate([x for (x,) in data.on_demand(9, take)]), whole[38:])
    assert (data.position, data.epoch, len(series)) == (0, 1, 2)


def test_parts_on_demand_go_on_in_batches_of_another_length():
    """As the plain loop: the samples that are left, not those of the epoch, are divided into whole batches."""
    state = {}
    data = train.Loader((np.arange(10),), 3, comm=MPI.COMM_SELF, drop_last=True)
    for number, _ in enumerate(data):
        if number == 1:
            state = data.state_dict()
            break
    found = []
    for on_demand in (False, True):
        data = train.Loader((np.arange(10),), 4, comm=MPI.COMM_SELF, drop_last=True)
        data.load_state_dict(state)
        numbers = iter(range(99))
        parts = data.on_demand(9, lambda series, numbers=numbers: next(numbers)) if on_demand else data
        found.append(np.concatenate([x for (x,) in parts]))
        assert data.epoch == 1
    assert len(found[0]) == 4
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("how", [{"shard": "strided"}, {"placement": "local"}])
def test_samples_that_belong_to_ranks_are_not_dealt_on_demand(how):
    data = train.Loader((np.arange(50),), 8, comm=MPI.COMM_SELF, **how)
    assert not data.serves_any
    with pytest.raises(ValueError, match="on demand"):
        next(data.on_demand(1, lambda count: 0))
