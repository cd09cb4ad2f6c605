"""Parameters that are loaded into the network outside of steps: servers take them before they send their own."""

import numpy as np
import pytest
from local_training import X, Y, backward, begin, flat, network, still

from collectives import train
from collectives.train import threads

PULLING = [train.ParameterServer, train.SSP, train.AsyncParameterServer]
ALL = [*PULLING, train.AsyncEASGD]


def other():
    """A network that was trained elsewhere."""
    return train.mlp((8,), 3, rng=np.random.default_rng(7), dtype=np.float64)


def load(net):
    net.load_state_dict(other().state_dict())


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("when", ["before the run is made", "in the last evaluation"])
def test_what_is_loaded_stays(strategy, when, tmp_path):
    """A run reads the states of its objects when it is made, and its end brings the servers' parameters to all."""

    def on_rank(comm):
        net, opt = begin(comm, strategy(), still)
        data = train.Loader((X, Y), 24, comm=comm)
        if opt.strategy.worker and when == "before the run is made":
            load(net)

        def evaluate():
            if when == "in the last evaluation":
                load(net)
            return {}

        state = {"net": net, "opt": opt, "data": data}
        run = train.Run(tmp_path, comm=comm, state=state, evaluate=evaluate, progress=None)
        for x, y in run.steps(data, epochs=1):
            opt.zero_grad()
            backward(net, x, y)
            opt.step()
        return flat(net)

    for found in threads.run(3, on_rank, timeout=20):
        np.testing.assert_array_equal(found, flat(other()))


@pytest.mark.parametrize("strategy", ALL)
def test_the_state_of_the_servers_has_what_was_loaded(strategy):
    def on_rank(comm):
        net, opt = begin(comm, strategy(), still)
        state, loaded = None, {}
        if opt.strategy.worker:
            load(net)
            loaded = {f"bucket {bucket.index}": bucket.data.copy() for bucket in opt.strategy.buckets.list}
            state = opt.strategy.state_dict()["servers"]
        opt.strategy.close()
        return state, loaded

    (state, loaded), *_ = threads.run(3, on_rank, timeout=20)
    assert state["parameters"].keys() == loaded.keys()
    for name, data in loaded.items():
        np.testing.assert_array_equal(state["parameters"][name], data)


@pytest.mark.parametrize("strategy", PULLING)
def test_a_state_of_the_servers_counts_more_than_what_was_loaded_before(strategy):
    def on_rank(comm):
        net, opt = begin(comm, strategy(), still)
        if opt.strategy.worker:
            state = opt.strategy.state_dict()
            load(net)
            opt.strategy.load_state_dict(state)
            backward(net, X, Y)
            opt.step()
        opt.strategy.close()
        return flat(net)

    for found in threads.run(3, on_rank, timeout=20):
        np.testing.assert_array_equal(found, flat(network()))
