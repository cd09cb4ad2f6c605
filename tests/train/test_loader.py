"""What the loader promises about shards and batches, for any number of samples, ranks and any batch."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import train
from collectives.train.data.loader import SHARDS

sizes = {"n": st.integers(1, 60), "p": st.integers(1, 9), "batch": st.integers(1, 70)}


def loaders(n, p, batch, shard="shuffled", seed=0, labels=None):
    y = np.arange(n) % 4 if labels is None else labels
    ranks = [SimpleNamespace(rank=r, size=p) for r in range(p)]
    return [train.Loader((np.arange(n), y), batch, seed=seed, comm=c, shard=shard) for c in ranks]


def epoch(loader):
    return [x for x, _ in loader]


@given(**sizes, shard=st.sampled_from(SHARDS))
def test_every_sample_once_and_steps_add_up(n, p, batch, shard):
    of_rank = [epoch(loader) for loader in loaders(n, p, batch, shard)]
    assert sorted(np.concatenate([x for steps in of_rank for x in steps])) == list(range(n))
    for k, parts in enumerate(zip(*of_rank, strict=True)):
        assert sum(map(len, parts)) == min(batch, n - k * batch)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(**sizes, seed=st.integers(0, 5))
def test_global_batches_do_not_depend_on_the_ranks(n, p, batch, seed):
    (alone,) = loaders(n, 1, batch, seed=seed)
    together = loaders(n, p, batch, seed=seed)
    for _ in range(2):
        steps = list(zip(*(epoch(loader) for loader in together), strict=True))
        assert [sorted(x) for x in epoch(alone)] == [sorted(np.concatenate(parts)) for parts in steps]


@given(**sizes, shard=st.sampled_from(["strided", "sorted"]))
def test_own_shards_stay_and_are_disjoint(n, p, batch, shard):
    sets = [set(loader.indices(0)) for loader in loaders(n, p, batch, shard)]
    assert sum(map(len, sets)) == len(set().union(*sets)) == n
    assert sets == [set(loader.indices(5)) for loader in loaders(n, p, batch, shard)]


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


@pytest.mark.parametrize("shard", SHARDS)
def test_goes_on_from_a_saved_position(shard):
    _, whole = loaders(50, 2, 8, shard)
    _, again = loaders(50, 2, 8, shard)
    batches = epoch(whole) + epoch(whole)
    state = {**again.state_dict(), "epoch": 0, "step": 3}
    again.load_state_dict(state)
    for got, expected in zip(epoch(again) + epoch(again), batches[3:], strict=True):
        np.testing.assert_array_equal(got, expected)


def test_position_of_other_data_is_refused():
    (a,), (b,) = loaders(50, 1, 8), loaders(50, 1, 9)
    with pytest.raises(ValueError, match="batch"):
        b.load_state_dict(a.state_dict())


def test_rows_of_all_arrays_belong_together():
    x, y = np.random.default_rng(0).random((20, 3)), np.arange(20)
    loader = train.Loader((x, y), 6, comm=SimpleNamespace(rank=1, size=3))
    for a, b in loader:
        np.testing.assert_array_equal(a, x[b])


@pytest.mark.parametrize(
    ("arrays", "kwargs", "message"),
    [
        ((np.zeros(3), np.zeros(4)), {}, r"\[3, 4\]"),
        ((np.zeros(0), np.zeros(0)), {}, "at least 1"),
        ((), {}, "at least 1"),
        ((np.zeros(3),), {"batch": 0}, "batch must be at least 1"),
        ((np.zeros(3),), {"shard": "cut"}, "shuffled, strided, sorted"),
        ((np.zeros(3),), {"seed": -1}, "seed"),
        ((np.zeros((3, 2)),), {"shard": "sorted"}, "one label per sample"),
    ],
)
def test_bad_arguments(arrays, kwargs, message):
    with pytest.raises(ValueError, match=message):
        train.Loader(arrays, **{"batch": 2, **kwargs}, comm=SimpleNamespace(rank=0, size=1))
