"""States of cut networks become whole ones, and are cut again for other numbers of ranks."""

import numpy as np
import pytest

from collectives import train

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((8, 6)), RNG.integers(0, 5, 8)


def network(comm=None, seed=1):
    rng = np.random.default_rng(seed)
    first, second = (train.Linear(a, b, rng=rng, dtype=np.float64) for a, b in ((6, 7), (7, 5)))
    if comm is not None:
        first, second = train.tensor.ColumnParallelLinear(first, comm), train.tensor.RowParallelLinear(second, comm)
    return train.Sequential(first, train.ReLU(), second)


def optimizer(net):
    return train.Adam(net.parameters(), 0.05)


def steps(net, opt, count):
    for _ in range(count):
        opt.zero_grad()
        train.CrossEntropyLoss()(net(X), Y).backward()
        opt.step()


def saved(comm):
    """The whole states after three steps."""
    net = network(comm)
    opt = optimizer(net)
    steps(net, opt, 3)
    return train.tensor.whole_state(net, comm), train.tensor.whole_optimizer_state(opt, net, comm)


def near(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict):
            near(found[name], value)
        else:
            np.testing.assert_allclose(found[name], value, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 4), (4, 1)])
def test_a_run_goes_on_with_another_number_of_ranks(before, after):
    alone = network()
    opt = optimizer(alone)
    steps(alone, opt, 3)
    states = train.threads.run(before, saved)
    for state, opt_state in states:
        near(state, alone.state_dict())
        near(opt_state, opt.state_dict())
    steps(alone, opt, 3)

    def go_on(comm):
        net = network(comm, seed=2)
        again = optimizer(net)
        train.tensor.load_whole_state(net, states[0][0], comm)
        train.tensor.load_whole_optimizer_state(again, net, states[0][1], comm)
        steps(net, again, 3)
        near(train.tensor.whole_state(net, comm), alone.state_dict())

    train.threads.run(after, go_on)
    network().load_state_dict(states[0][0])  # one that is not cut


def test_states_that_do_not_fit_change_nothing():
    def work(comm):
        net = network(comm)
        before = net.state_dict()
        state = train.tensor.whole_state(net, comm)
        with pytest.raises(ValueError, match=r"0.weight: axis 0 of \(6, 6\) should have 7 elements"):
            train.tensor.load_whole_state(net, {**state, "0.weight": np.zeros((6, 6))}, comm)
        with pytest.raises(ValueError, match="missing"):
            train.tensor.load_whole_state(net, {}, comm)
        near(net.state_dict(), before)

    train.threads.run(3, work)


def test_sharded_optimizers_are_refused():
    def work(comm):
        net = network(comm)
        data = comm.Split(comm.rank)
        net, opt = train.distribute(net, optimizer(net), train.AllReduce(shard=1), comm=data)
        with pytest.raises(ValueError, match="works on flat arrays"):
            train.tensor.whole_optimizer_state(opt, net, comm)

    train.threads.run(2, work)


def test_replicas_of_rank_0_are_given_to_all():
    def work(comm):
        net = network(comm)
        net.layers[2].bias.data += comm.rank
        kept = net.layers[0].weight.data + 5 * comm.rank
        net.layers[0].weight.data[...] = kept
        train.tensor.replicate(net, comm)
        np.testing.assert_array_equal(net.layers[2].bias.data, 0)
        np.testing.assert_array_equal(net.layers[0].weight.data, kept)

    train.threads.run(3, work)


def test_a_pipeline_of_cut_layers():
    """Each stage has the states of its own layers, whole; another optimizer takes them."""
    alone = network()
    opt_alone = optimizer(alone)
    steps(alone, opt_alone, 3)

    def work(comm):
        mesh = train.Mesh(comm, pipeline=2, tensor=2)
        pipe = train.Pipeline(network(mesh.tensor), mesh.pipeline, micro_batches=2, cut=[1])
        opt = optimizer(pipe)
        for _ in range(3):
            opt.zero_grad()
            pipe.step(X, Y, train.CrossEntropyLoss())
            opt.step()
        state = train.tensor.whole_optimizer_state(opt, pipe, mesh.tensor)
        again = optimizer(pipe)
        train.tensor.load_whole_optimizer_state(again, pipe, state, mesh.tensor)
        near(again.state_dict(), opt.state_dict())
        first, second = mesh.pipeline.allgather(state)
        near({**first, **{key: first[key] | second[key] for key in ("mean", "square")}}, opt_alone.state_dict())

    train.threads.run(4, work)
