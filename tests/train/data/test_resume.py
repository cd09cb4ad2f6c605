"""Every sample of an epoch exactly once, however often it is saved, and with any number of ranks after that."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import on_ranks

from collectives import train
from collectives.train.data.loader import SHARDS
from collectives.train.data.local import shares

LIMITS = settings(deadline=None, max_examples=60)  # loaders of several ranks take their time
#: Runs that follow each other in an epoch: ranks, steps that each makes, batch.
RUNS = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 5), st.integers(1, 12)), min_size=1, max_size=5)


def shared(n, p, batch, shard="shuffled", **kwargs):
    arrays = (np.arange(n), np.arange(n) * 7 % 5)
    return [train.Loader(arrays, batch, comm=SimpleNamespace(rank=r, size=p), shard=shard, **kwargs) for r in range(p)]


def local(sets, batch, **kwargs):
    """Loaders of ranks with these data sets; each data set is a list of numbers."""
    return on_ranks(
        len(sets),
        lambda c, mine: train.Loader((np.array(mine, int),), batch, comm=c, placement="local", **kwargs),
        sets,
    )


def steps(loaders, count=None):
    """The ranks' samples of so many steps, or of the rest of the epoch: a list for each step, of each rank's."""
    iterators = [iter(loader) for loader in loaders]
    made = []
    while count is None or len(made) < count:
        parts = [next(iterator, None) for iterator in iterators]
        if parts[0] is None:
            assert all(part is None for part in parts)  # the steps are as many on all ranks
            break
        made.append([part[0].tolist() for part in parts])
    for iterator in iterators:
        iterator.close()
    return made


def flat(made):
    return [sample for parts in made for mine in parts for sample in mine]


def saved(loaders):
    """The state, which is the same on all ranks and goes through JSON."""
    states = [json.dumps(loader.state_dict()) for loader in loaders]
    assert len(set(states)) == 1
    return json.loads(states[0])


@LIMITS
@given(n=st.integers(1, 90), runs=RUNS, shard=st.sampled_from(SHARDS), redeal=st.booleans())
def test_every_sample_exactly_once_over_any_runs(n, runs, shard, redeal):
    seen, state, loaders = [], None, []
    for p, count, batch in runs:
        if redeal and loaders and p <= len(loaders):
            loaders = loaders[:p]
            for rank, loader in enumerate(loaders):
                loader.redeal(SimpleNamespace(rank=rank, size=p))
        else:
            loaders = shared(n, p, batch, shard)
            for loader in loaders if state else []:
                loader.load_state_dict(state)
        seen += flat(steps(loaders, count))
        state = saved(loaders)
        if state["epoch"]:
            break
    if not state["epoch"]:
        seen += flat(steps(loaders))
    assert sorted(seen) == list(range(n))
    assert {(loader.epoch, loader.position) for loader in loaders} == {(1, 0)}
    assert sorted(flat(steps(loaders))) == list(range(n))  # the next epoch
    again = shared(n, len(loaders), loaders[0].batch, shard)
    assert [loader.indices(1).tolist() for loader in again] == [loader.indices(1).tolist() for loader in loaders]


def test_many_runs_of_an_epoch():
    rng = np.random.default_rng(0)
    for shard in SHARDS:
        seen, state = [], None
        while state is None or not state["epoch"]:
            loaders = shared(500, int(rng.integers(1, 9)), 16, shard)
            for loader in loaders if state else []:
                loader.load_state_dict(state)
            seen += flat(steps(loaders, int(rng.integers(0, 4))))
            state = saved(loaders)
        assert sorted(seen) == list(range(500))


@LIMITS
@given(n=st.integers(1, 60), p=st.integers(1, 5), batch=st.integers(1, 20), stop=st.integers(0, 9), data=st.data())
def test_the_same_number_of_ranks_goes_on_as_if_nothing_had_been(n, p, batch, stop, data):
    shard, prefetch = data.draw(st.sampled_from(SHARDS)), data.draw(st.sampled_from([0, 1, 3]))
    whole = shared(n, p, batch, shard)
    expected = steps(whole) + steps(whole)
    first, second = shared(n, p, batch, shard, prefetch=prefetch), shared(n, p, batch, shard, prefetch=prefetch)
    made = steps(first, stop)
    for loader in second:
        loader.load_state_dict(saved(first))
    made += steps(second)
    if len(made) == len(whole[0]):
        made += steps(second)
    assert made == expected


@pytest.mark.parametrize("shard", SHARDS)
def test_after_a_redeal_parts_are_still_even(shard):
    loaders = shared(100, 4, 10, shard)
    steps(loaders, 3)
    for rank, loader in enumerate(loaders[:3]):
        loader.redeal(SimpleNamespace(rank=rank, size=3))
        assert (loader.step, loader.position, loader.size) == (3, 30, 3)
    for parts in steps(loaders[:3]):
        assert sum(map(len, parts)) == 10
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_sorted_ranks_know_few_labels_after_a_redeal():
    y = np.repeat(np.arange(8), 20)
    comms = [SimpleNamespace(rank=r, size=8) for r in range(8)]
    loaders = [train.Loader((np.arange(160), y), 16, comm=c, shard="sorted") for c in comms]
    steps(loaders, 4)
    for rank, loader in enumerate(loaders[:4]):
        loader.redeal(SimpleNamespace(rank=rank, size=4))
    for mine in zip(*steps(loaders[:4]), strict=True):
        assert len({y[sample] for part in mine for sample in part}) == 2


def test_ranks_at_different_steps_go_on_from_the_earliest():
    """One rank had its batch when another died, the others had not."""
    loaders = shared(40, 4, 8)
    done = steps(loaders, 2)
    ahead = iter(loaders[2])
    next(ahead)
    left = on_ranks(3, lambda comm, loader: loader.redeal(comm), loaders[1:])
    assert left == [None] * 3
    assert sorted(flat(done) + flat(steps(loaders[1:]))) == list(range(40))


def test_an_iterator_goes_on_from_where_its_loader_is_put():
    for prefetch in (0, 2):
        (loader,) = shared(40, 1, 8, prefetch=prefetch)
        start = saved([loader])
        iterator = iter(loader)
        first = [next(iterator)[0].tolist() for _ in range(3)]
        loader.load_state_dict(start)
        assert [x.tolist() for x, _ in iterator][:3] == first
        assert (loader.epoch, loader.position) == (1, 0)


# Data sets that stay on their ranks.


@st.composite
def own_sets(draw):
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any))
    starts = np.cumsum([0, *lengths])
    return [list(range(a, b)) for a, b in zip(starts, starts[1:], strict=False)]


@LIMITS
@given(sets=own_sets(), batch=st.integers(1, 30), stop=st.integers(0, 9))
def test_local_samples_stay_and_come_once(sets, batch, stop):
    loaders = local(sets, batch)
    n = sum(map(len, sets))
    made = steps(loaders, stop)
    again = local(sets, batch, prefetch=2)
    for loader in again:
        loader.load_state_dict(saved(loaders))
    made += steps(again) if loaders[0].epoch == 0 else []
    assert made == steps(local(sets, batch))  # as if nothing had been
    assert [len(p) for p in map(flat, [[parts] for parts in made])] == [min(batch, n - i) for i in range(0, n, batch)]
    for rank, mine in enumerate(sets):
        assert sorted(sample for parts in made for sample in parts[rank]) == mine
        for parts in made:
            assert abs(len(parts[rank]) - sum(map(len, parts)) * len(mine) / n) < len(sets) / 2 + 1


@LIMITS
@given(sets=own_sets(), batch=st.integers(1, 30), stop=st.integers(0, 6), data=st.data())
def test_ranks_that_are_left_see_their_samples_once(sets, batch, stop, data):
    loaders = local(sets, batch)
    made = steps(loaders, stop)
    if loaders[0].epoch:
        return
    alive = sorted(data.draw(st.sets(st.sampled_from(range(len(sets))), min_size=1)))
    kept = sorted(sample for rank in alive for sample in sets[rank])
    survivors = [loaders[rank] for rank in alive]
    results = on_ranks(len(alive), lambda comm, loader: loader.redeal(comm), survivors)
    if not kept:
        assert all("at least 1 sample" in str(error) for error in results)
        return
    assert results == [None] * len(alive)
    mine = [sample for parts in made for rank in alive for sample in parts[rank]]
    assert {loader.position for loader in survivors} == {len(mine)}
    second = steps(survivors, 2)
    state, restarted = saved(survivors), local([sets[rank] for rank in alive], batch)
    for loader in restarted:
        loader.load_state_dict(state)
    if not state["epoch"]:
        second += steps(restarted)
    assert sorted(mine + flat(second)) == kept


def test_local_ranks_may_be_fewer_and_in_another_order_after_a_restart():
    sets = [list(range(10)), list(range(100, 130)), list(range(200, 225))]
    loaders = local(sets, 8)
    made = steps(loaders, 4)
    again = local([sets[2], sets[0]], 8)
    for loader in again:
        loader.load_state_dict(saved(loaders))
    seen = [sample for parts in made for rank in (0, 2) for sample in parts[rank]] + flat(steps(again))
    assert sorted(seen) == sets[0] + sets[2]


def test_local_data_sets_that_cannot_be_told_are_refused_within_an_epoch():
    sets = [list(range(10)), list(range(30)), list(range(30))]
    loaders = local(sets, 8)
    at_begin = saved(loaders)
    steps(loaders, 2)
    state = saved(loaders)
    for others, message in [
        ([sets[1]], r"like those of the saved ranks \[1, 2\]"),
        ([sets[0], sets[0]], "data set of rank 1"),
        ([sets[0], list(range(40))], "rank 1, of 40 samples, is none of the saved ones"),
        ([sets[0], sets[1], list(range(29))], "rank 2 has changed .* had 30 samples, now 29"),
        ([sets[0], sets[1], list(range(1, 31))], "rank 2 has changed .* other values"),
    ]:
        for loader in local(others, 8):
            before = loader.state_dict()
            with pytest.raises(ValueError, match=message):
                loader.load_state_dict(state)
            assert loader.state_dict() == before
            loader.load_state_dict(at_begin)
            assert loader.position == 0


ALIKE = [list(range(start, start + 20)) for start in (0, 100, 200, 300)]  # told apart by their content only


def of_ranks(made, ranks):
    return [sample for parts in made for rank in ranks for sample in parts[rank]]


def test_survivors_whose_data_sets_look_alike_go_back_to_a_state_before_their_loss():
    loaders = local(ALIKE, 8, check_content=False)
    made = steps(loaders, 3)
    before = saved(loaders)
    steps(loaders, 2)
    for alive in ([0, 2, 3], [2, 3]):  # the state is that of four ranks both times
        survivors = [loaders[rank] for rank in alive]
        assert on_ranks(len(alive), lambda comm, loader: loader.redeal(comm), survivors) == [None] * len(alive)
        for loader in survivors:
            loader.load_state_dict(before)
        assert survivors[0].position == len(of_ranks(made, alive))
    state = saved(survivors)
    left = steps(survivors)
    assert sorted(of_ranks(made, alive) + flat(left)) == ALIKE[2] + ALIKE[3]
    again = local([ALIKE[2], ALIKE[3]], 8, check_content=False)  # a restart, of as many ranks
    for loader in again:
        loader.load_state_dict(state)
    assert steps(again) == left


def test_a_redeal_that_failed_on_one_rank_is_repeated_with_fewer():
    loaders = local(ALIKE, 8, check_content=False)
    made = steps(loaders, 3)
    before = saved(loaders)

    def redeal(comm, loader):
        def allgather(value):
            every = comm.allgather(value)
            if comm.rank == 1 and comm.size == 3:
                raise OSError("a rank has died")
            return every

        loader.redeal(SimpleNamespace(rank=comm.rank, size=comm.size, allgather=allgather))

    failed = on_ranks(3, redeal, [loaders[rank] for rank in (0, 2, 3)])
    assert [type(error) for error in failed] == [type(None), OSError, type(None)]
    survivors = loaders[2:]
    assert on_ranks(2, redeal, survivors) == [None, None]
    assert len({json.dumps(loader.state_dict()) for loader in survivors}) == 1
    for loader in survivors:
        loader.load_state_dict(before)
    assert sorted(of_ranks(made, [2, 3]) + flat(steps(survivors))) == ALIKE[2] + ALIKE[3]


@LIMITS
@given(left=st.lists(st.integers(0, 10**6), min_size=1, max_size=9).filter(any), part=st.floats(0, 1))
def test_shares_grow_by_one_and_add_up(left, part):
    left = np.array(left)
    count = min(int(part * left.sum()), left.sum() - 1)
    now, then = shares(left, count), shares(left, count + 1)
    assert (now.sum(), then.sum()) == (count, count + 1)
    assert set((then - now).tolist()) <= {0, 1}
    assert (0 <= now).all()
    assert (now <= left).all()
    assert np.abs(now - count * left / left.sum()).max() <= 1 + len(left) / 2


def test_shares_are_the_smallest_keys():
    left = np.array([3, 0, 7, 7, 1])
    keys = sorted(((j + 0.5) / m, rank) for rank, m in enumerate(left) for j in range(m))
    for count in range(len(keys) + 1):
        assert shares(left, count).tolist() == np.bincount([r for _, r in keys[:count]], minlength=5).tolist()


# Data sets and settings that changed.

X, Y = np.arange(120.0).reshape(60, 2), np.arange(60)
CHANGES = {
    "it had 60 samples, now 59": ((X[:59], Y[:59]), {}),
    "part 0 of a sample had the dtype float64, now float32": ((X.astype(np.float32), Y), {}),
    r"part 0 of a sample had the shape \(2,\), now \(1,\)": ((X[:, :1], Y), {}),
    "a sample had 2 parts, now 1": ((X,), {}),
    "some of its samples have other values": ((X + (np.arange(60) == 59)[:, None], Y), {}),
    "seed = 0, this loader has 1": ((X, Y), {"seed": 1}),
    "shard = 'shuffled', this loader has 'strided'": ((X, Y), {"shard": "strided"}),
}


@pytest.mark.parametrize("message", CHANGES)
def test_what_changed_is_named_and_nothing_is_loaded(message):
    alone = SimpleNamespace(rank=0, size=1)
    loader = train.Loader((X, Y), 7, comm=alone)
    steps([loader], 3)
    arrays, kwargs = CHANGES[message]
    other = train.Loader(arrays, 7, comm=alone, **kwargs)
    before = other.state_dict()
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(saved([loader]))
    assert other.state_dict() == before


def test_content_is_not_compared_on_request():
    a, b = (train.Loader((X * k, Y), 7, comm=SimpleNamespace(rank=0, size=1), check_content=k == 1) for k in (1, 2))
    b.load_state_dict(a.state_dict())
    a.load_state_dict(b.state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": 61}, "beyond the 60 samples"),
        ({"position": -1}, "impossible"),
        ({"position": 1.5}, "impossible"),
        ({"epoch": True}, "impossible"),
        ({"ranks": []}, "impossible numbers of ranks"),
        ({"ranks": [[3, 0], [2, 9]]}, "impossible numbers of ranks"),
        ({"ranks": [[0, 0]]}, "impossible numbers of ranks"),
        ({"ranks": None}, "no ranks"),
        ({"seed": None}, "no seed"),
    ],
)
def test_states_that_no_loader_has_made(change, message):
    (loader,) = [train.Loader((X, Y), 7, comm=SimpleNamespace(rank=0, size=1), shard="strided")]
    state = {**loader.state_dict(), "position": 7, **change}
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict({key: value for key, value in state.items() if value is not None or key == "content"})
    assert (loader.epoch, loader.position) == (0, 0)


@pytest.mark.parametrize(
    ("of_rank_1", "message"),
    [
        ({"batch": 8}, "batch is 8 on rank 1, 7 on rank 0"),
        ({"seed": 3}, "seed is 3"),
        ({"placement": "local"}, "placement"),
        ({"dataset": (X[:50], Y[:50])}, "samples is 50"),
        ({"dataset": (X, Y - 1)}, "content"),
        ({"dataset": (X.astype(int), Y)}, "fields"),
        ({"dataset": (X[:3], Y)}, r"^(rank 1: )?the arrays .* \[3, 60\]"),
        ({"dataset": 5}, "^(rank 1: )?a data set is a tuple"),
        ({"dataset": "absent.npy"}, "^(rank 1: )?cannot read absent.npy: No such file"),
        ({"batch": 0}, "^(rank 1: )?batch must be at least 1"),
    ],
)
def test_ranks_that_differ_get_the_same_error(of_rank_1, message):
    def make(comm):
        kwargs = {"dataset": (X, Y), "batch": 7, **(of_rank_1 if comm.rank == 1 else {})}
        return train.Loader(kwargs.pop("dataset"), kwargs.pop("batch"), comm=comm, **kwargs)

    errors = on_ranks(3, make)
    assert len({type(error) for error in errors}) == 1
    for error in errors:
        with pytest.raises((ValueError, TypeError, OSError), match=message):
            raise error
