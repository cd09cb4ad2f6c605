"""What is asked of servers or peers that have left, and states that servers refuse: errors, for which nobody waits."""

import numpy as np
import pytest
from local_training import X, Y, adam, backward, begin, momentum, steps

from collectives import train
from collectives.train import threads

LEFT = "the servers have left; distribute a copy of the network with a new optimizer"
SERVED = "this rank has served"


def begun(comm, strategy, out=None, own=None, **options):
    """A strategy, a run, and a function that trains to the end of an epoch."""
    net, opt = begin(comm, strategy)
    data = train.Loader((X, Y), 24, comm=comm)
    state = {"net": net, "opt": opt, "data": data} | ({} if own is None else {"own": own})
    run = train.Run(out, comm=comm, state=state, progress=None, **options)

    def go(epochs):
        for x, y in run.steps(data, epochs=epochs):
            opt.zero_grad()
            backward(net, x, y)
            opt.step()

    return opt.strategy, run, go


@pytest.mark.parametrize("strategy", [train.ParameterServer, train.AsyncParameterServer, train.SSP, train.AsyncEASGD])
def test_more_steps_after_the_servers_have_left(strategy):
    def on_rank(comm):
        _, run, go = begun(comm, strategy())
        go(1)
        if run.trains:
            with pytest.raises(RuntimeError, match=LEFT):
                go(2)
        comm.Barrier()

    threads.run(3, on_rank, timeout=20)


def test_more_steps_after_the_peers_have_parted():
    def on_rank(comm):
        strategy, _, go = begun(comm, train.PeerAsync())
        go(1)
        with pytest.raises(RuntimeError, match="the ranks have parted"):
            go(2)
        comm.Barrier()
        if comm.rank == 0:  # alone: nothing is under way any more
            assert strategy.state_dict()["late"] == 0

    threads.run(2, on_rank, timeout=20)


def test_rows_and_states_after_the_servers_have_left():
    def on_rank(comm):
        table = train.Table(10, 2)
        net, opt = begin(comm, train.ParameterServer(tables={"words": table}))
        strategy = opt.strategy
        if strategy.worker:
            backward(net, X[:4], Y[:4])
        strategy.close()
        opt.zero_grad()  # what was pushed has gone with the servers
        asked = [strategy.state_dict, lambda: strategy.load_state_dict({}), lambda: strategy.take(object())]
        for ask in asked + ([lambda: table.pull([1]), table.state_dict] if strategy.worker else []):
            with pytest.raises(RuntimeError, match=LEFT if strategy.worker else SERVED):
                ask()
        comm.Barrier()

    threads.run(2, on_rank, timeout=20)


def test_ranks_that_have_served_know_how_late_gradients_were():
    def on_rank(comm):
        strategy, _, go = begun(comm, train.SSP(2))
        go(2)
        return strategy.gap, strategy.lag, strategy.dropped

    first, *others = threads.run(3, on_rank, timeout=20)
    assert others == [first] * 2
    assert first[1] > 0
    assert first[2] == 0


@pytest.mark.parametrize("how", [{}, {"beside": True}])
@pytest.mark.parametrize(
    ("optimizer", "bucket_bytes", "why"),
    [(momentum, 64, "not for the buckets of this run"), (adam, None, "of another network or optimizer")],
)
def test_a_state_that_servers_refuse_is_an_error_on_all_workers(optimizer, bucket_bytes, why, how):
    """Before they are asked to load it: they go on."""

    def saved(comm):
        _, opt = begin(comm, train.ParameterServer(beside=True), momentum)
        state = opt.strategy.state_dict()
        opt.strategy.close()
        return state

    def on_rank(comm):
        net, opt = begin(comm, train.ParameterServer(bucket_bytes=bucket_bytes, **how), optimizer)
        if opt.strategy.worker:
            with pytest.raises(ValueError, match=why):
                opt.strategy.load_state_dict(states[comm.rank])
            before = net.parameters()[0].data.copy()
            steps(net, opt, comm, 0, 2)
            assert np.abs(net.parameters()[0].data - before).max() > 0
        opt.strategy.close()

    states = threads.run(2, saved, timeout=20)
    threads.run(2 if how else 3, on_rank, timeout=20)


class Own:
    """A state of each rank, which cannot be loaded on one that is `broken`."""

    per_rank = True

    def __init__(self, broken):
        self._broken = broken

    def state_dict(self):
        return {"value": 1}

    def load_state_dict(self, state):
        if self._broken:
            raise ValueError("mine")


def test_an_object_that_one_rank_cannot_load(tmp_path):
    """The load of a strategy with servers is collective, and does not begin then."""

    def first(comm):
        begun(comm, train.ParameterServer(beside=True), tmp_path, Own(False), checkpoint_every=2)[2](1)

    def second(comm):
        net, opt = begin(comm, train.ParameterServer(beside=True))
        state = {"net": net, "opt": opt, "data": train.Loader((X, Y), 24, comm=comm), "own": Own(comm.rank == 1)}
        with pytest.raises(ValueError, match="mine"):
            train.Run(tmp_path, comm=comm, state=state, progress=None)
        opt.strategy.close()

    threads.run(2, first, timeout=20)
    threads.run(2, second, timeout=20)
