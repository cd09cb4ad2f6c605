"""What strategies that exchange parameters have in common: states, types, numbers of ranks, distances."""

import copy

import numpy as np
import pytest
from local_training import NEAR, Alone, adam, backward, batch, begin, flat, momentum, scatter, sgd, steps, uneven

from collectives import train
from collectives.train import graphs, threads
from collectives.train.cli.choice import Choice
from collectives.train.strategies.registry import STRATEGIES

DETERMINISTIC = {
    "local_sgd": lambda: train.LocalSGD(4),
    "post_local": lambda: train.LocalSGD(4, start=2, stop=9, merge_optimizer=True),
    "diloco": lambda: train.DiLoCo(4),
    "fedavg": lambda: train.FedAvg(4, 0.6),
    "easgd": lambda: train.EASGD(3),
    "neighbor_averaging": lambda: train.NeighborAveraging("one_peer_exponential"),
    "overlap": lambda: train.NeighborAveraging(overlap=True),
    "push_sum": lambda: train.PushSum(graphs.random(2, 1, directed=True)),
}
ALL = {**DETERMINISTIC, "ad_psgd": train.ADPSGD}


@pytest.mark.parametrize("name", DETERMINISTIC)
@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_a_saved_state_goes_on_with_the_same_bits(name, optimizer):
    def on_rank(comm):
        net, opt = begin(comm, DETERMINISTIC[name](), optimizer)
        steps(net, opt, comm, 0, 6, uneven)
        things = (net, opt, opt.strategy)
        states = [copy.deepcopy(thing.state_dict()) for thing in things]
        steps(net, opt, comm, 6, 13, uneven)
        again, other = begin(comm, DETERMINISTIC[name](), optimizer)
        for thing, state in zip((again, other, other.strategy), states, strict=True):
            thing.load_state_dict(state)
        steps(again, other, comm, 6, 13, uneven)
        opt.strategy.finish()
        other.strategy.finish()
        return flat(net), flat(again)

    for uninterrupted, resumed in threads.run(3, on_rank):
        assert (uninterrupted == resumed).all()


@pytest.mark.parametrize("name", ALL)
def test_a_run_goes_on_from_a_checkpoint(name, tmp_path):
    """A run that is left after step 7, without a word, and its successor, which begins at the checkpoint of step 5."""

    def on_rank(comm, out, last):
        net, opt = begin(comm, ALL[name](), momentum)
        data = train.Loader((np.random.default_rng(0).standard_normal((60, 8)), np.arange(60) % 3), 12, comm=comm)
        run = train.Run(tmp_path / out, comm=comm, state={"net": net, "opt": opt, "data": data}, checkpoint_every=5)
        for x, y in run.steps(data, epochs=3):
            opt.zero_grad()
            train.CrossEntropyLoss()(net(x), y).backward()
            opt.step()
            run.log(one=1.0)
            if run.step == last:
                run.finish()
                break
        return flat(net), run.resumed

    whole = threads.run(3, lambda comm: on_rank(comm, "whole", None))
    threads.run(3, lambda comm: on_rank(comm, "parts", 7))
    parts = threads.run(3, lambda comm: on_rank(comm, "parts", None))
    for (expected, _), (found, resumed) in zip(whole, parts, strict=True):
        assert resumed == 5
        assert np.isfinite(found).all()
        if name in DETERMINISTIC:
            assert (found == expected).all()


@pytest.mark.parametrize("name", ["diloco", "easgd"])
def test_a_state_of_another_network_is_refused(name):
    def on_rank(comm):
        net, opt = begin(comm, DETERMINISTIC[name]())
        state = opt.strategy.state_dict()
        key = "outer" if name == "diloco" else "centre"
        del state[key]["1.weight"]
        with pytest.raises(ValueError, match=r"does not fit to parameter 1\.weight"):
            opt.strategy.load_state_dict(state)

    threads.run(1, on_rank)


@pytest.mark.parametrize("name", ["diloco", "easgd"])
def test_parameters_that_are_loaded_are_where_it_begins(name):
    def on_rank(comm):
        net, opt = begin(comm, DETERMINISTIC[name](), lambda p: train.SGD(p, 0.0))
        net.load_state_dict({key: np.zeros_like(value) for key, value in net.state_dict().items()})
        steps(net, opt, comm, 0, 9)
        opt.strategy.finish()
        return np.abs(flat(net)).max()

    assert threads.run(2, on_rank) == [0.0, 0.0]


@pytest.mark.parametrize("name", ALL)
def test_parameters_of_16_bits_are_refused(name):
    def on_rank(comm):
        with pytest.raises(ValueError, match=r"parameter 1\.weight has 16 bits"):
            begin(comm, ALL[name](), dtype=np.float16)
        return comm.allreduce(1)

    assert threads.run(2, on_rank) == [2, 2]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_rank_trains_alone(name, dtype):
    """It does what its optimizer does; for DiLoCo that holds within a round, for EASGD before its centre draws."""

    def on_rank(comm):
        net, opt = begin(comm, ALL[name](), momentum, dtype)
        steps(net, opt, comm, 0, 3)
        found = flat(net)
        opt.strategy.finish()
        return found, flat(net)

    alone = Alone(1, momentum)
    for _ in range(3):
        alone.gradients()
        alone.update()
    ((found, end),) = threads.run(1, on_rank)
    assert found.dtype == dtype
    assert np.abs(found - alone.x[0]).max() < (NEAR if dtype == np.float64 else 1e-5)
    assert name in ("diloco", "easgd") or (end == found).all()


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_dropped_gradient_changes_nothing(name):
    def on_rank(comm, drops):
        net, opt = begin(comm, DETERMINISTIC[name](), momentum)
        for step in range(6):
            if drops:
                backward(net, *batch(step + 50, comm.rank, uneven(comm.size)))
            steps(net, opt, comm, step, step + 1)  # it begins with zero_grad
        return flat(net)

    plain, dropping = (np.stack(threads.run(3, lambda comm, d=d: on_rank(comm, d))) for d in (False, True))
    assert (plain == dropping).all()


@pytest.mark.parametrize("name", ALL)
def test_fewer_ranks_go_on(name):
    def on_rank(comm):
        net, opt = begin(comm, ALL[name](), sgd)
        steps(net, opt, comm, 0, 3)
        if name == "ad_psgd":
            opt.strategy.finish()
        left = comm.Split(int(comm.rank == 2))
        if comm.rank == 2:
            return None
        opt.strategy.resize(left)
        steps(net, opt, left, 3, 12)
        opt.strategy.finish()
        return flat(net), float(getattr(opt.strategy, "weight", np.ones(1))[0])

    first, second, _ = threads.run(3, on_rank)
    assert (first[0] == second[0]).all()
    assert first[1] == second[1] == 1


def test_a_push_sum_of_other_ranks_begins_with_weights_of_one():
    def on_rank(comm):
        _, opt = begin(comm, train.PushSum())
        opt.strategy.load_state_dict({"steps": 3, "weight": 0.7, "ranks": 5})
        other = opt.strategy.state_dict()
        opt.strategy.load_state_dict({"steps": 3, "weight": 0.7, "ranks": 2})
        return other["weight"], opt.strategy.state_dict()["weight"], other["steps"]

    assert threads.run(2, on_rank) == [(1.0, 0.7, 3)] * 2


@pytest.mark.parametrize("size", [1, 3])
def test_the_consensus_distance_is_its_definition(size):
    def on_rank(comm):
        net, opt = begin(comm, train.LocalSGD())
        assert opt.strategy.consensus_distance() < 1e-25  # a mean of equal numbers may be rounded
        scatter(opt, comm.rank)
        return flat(net), opt.strategy.consensus_distance()

    results = threads.run(size, on_rank)
    x = np.stack([found for found, _ in results])
    expected = ((x - x.mean(axis=0)) ** 2).sum() / size
    for _, distance in results:
        assert distance == pytest.approx(expected, rel=1e-12)
    assert size == 1 or expected > 1


def test_the_consensus_distance_can_be_logged():
    def on_rank(comm):
        net, opt = begin(comm, train.LocalSGD(4))
        data = train.Loader((np.random.default_rng(0).standard_normal((48, 8)), np.arange(48) % 3), 12, comm=comm)
        run = train.Run(comm=comm, state={"net": net, "opt": opt, "data": data}, every=1)
        for x, y in run.steps(data, epochs=2):
            opt.zero_grad()
            train.CrossEntropyLoss()(net(x), y).backward()
            opt.step()
            run.log(consensus=opt.strategy.consensus_distance())
        return [record["consensus"] for record in run.records]

    for logged in threads.run(2, on_rank):
        assert [value < 1e-25 for value in logged] == [False, False, False, True] * 2


@pytest.mark.parametrize("strategy", [lambda: train.LocalSGD(1000), train.ADPSGD, train.PeerAsync])
def test_a_run_ends_the_strategies_of_all_its_optimizers(strategy):
    """As in a GAN. Ranks with other labels would differ without that."""

    def on_rank(comm):
        parts = [begin(comm, strategy(), momentum) for _ in range(2)]
        (one, opt_g), (other, opt_d) = parts
        data = train.Loader((np.random.default_rng(0).standard_normal((48, 8)), np.arange(48) % 3), 12,
                            shard="sorted", comm=comm)  # fmt: skip
        state = {"gen": one, "opt_g": opt_g, "disc": other, "opt_d": opt_d, "data": data}
        run = train.Run(comm=comm, state=state, progress=None)
        for x, y in run.steps(data, epochs=1):
            for net, opt in parts:
                opt.zero_grad()
                backward(net, x, y)
                opt.step()
        return [train.same_bits(net, comm) for net, _ in parts]

    assert threads.run(2, on_rank) == [[True, True]] * 2


def test_a_rate_is_scaled_by_the_batches_of_which_an_update_is_the_mean():
    found = {name: Choice.parse(name).make().batches(8) for name in STRATEGIES}
    one = {"nocomm", "diloco", "async_parameter_server", "peer_async", "ssp"}
    assert found == {name: 1 if name in one else 6 if name == "fedavg" else 8 for name in STRATEGIES}
    assert train.AllReduce(average=False).batches(8) == 1
    assert train.SSP(0).batches(8) == 8
