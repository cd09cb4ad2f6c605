"""A gradient of one rank that is not finite: an error that names it, and finite parameters on all other ranks."""

import functools

import numpy as np
import pytest

from collectives import train
from collectives.train import threads

WRONG, STEP = 1, 5  # the rank, and the step in which it has a wrong gradient


def trained(comm, strategy, found, steps=8):
    """Trains until the error; then this rank's parameters are in `found`."""
    net = train.mlp((4,), 2, rng=np.random.default_rng(0))
    net, opt = train.distribute(net, train.SGD(net.parameters(), 0.01), strategy(), comm=comm)
    try:
        for step in range(steps if opt.strategy.worker else 0):
            x = np.ones((3, 4), np.float32)
            if (comm.rank, step) == (WRONG, STEP):
                x[1, 2] = np.inf
            opt.zero_grad()
            train.CrossEntropyLoss()(net(x), np.array([0, 1, 1])).backward()
            opt.step()
        opt.strategy.finish()
        opt.strategy.close()
    finally:
        found[comm.rank] = np.concatenate([p.data.ravel() for p in net.parameters()])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("strategy", "alone"),
    [
        (train.ParameterServer, True),
        (functools.partial(train.SSP, 2), True),
        (functools.partial(train.AsyncParameterServer, 2, beside=True), True),
        (functools.partial(train.AsyncEASGD, 2), True),
        (train.PeerAsync, True),
        (train.NeighborAveraging, True),
        (functools.partial(train.NeighborAveraging, overlap=True), True),
        (train.PushSum, True),
        (train.ADPSGD, True),
        (functools.partial(train.LocalSGD, 4), False),
        (functools.partial(train.LocalSGD, 4, weighted=False), False),
        (train.DiLoCo, False),
        (functools.partial(train.FedAvg, 2, 1.0), False),
        (functools.partial(train.EASGD, 2), False),
    ],
)
def test_it_reaches_nobody_else(strategy, alone):
    """Where all ranks exchange at once, all raise (`alone` is False)."""
    found, errors = {}, {}

    def on_rank(comm):
        try:
            trained(comm, strategy, found)
        except FloatingPointError as error:
            errors[comm.rank] = str(error)
            if comm.rank == WRONG:
                raise

    with pytest.raises(FloatingPointError, match=f"1.weight (of|on) rank {WRONG} is not finite"):
        threads.run(4, on_rank, timeout=20)
    assert errors.keys() == ({WRONG} if alone else set(range(4)))
    for rank, parameters in found.items():
        assert rank == WRONG or np.isfinite(parameters).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_local_steps_that_are_synchronous():
    for strategy in (functools.partial(train.LocalSGD, start=100), functools.partial(train.LocalSGD, stop=0)):
        found = {}
        with pytest.raises(FloatingPointError, match="the gradient of 1.weight is not finite"):
            threads.run(3, functools.partial(trained, strategy=strategy, found=found), timeout=20)
        assert all(np.isfinite(parameters).all() for parameters in found.values())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_worker_may_go_on_after_it():
    """Servers have dropped what it pushed, also rows."""

    def on_rank(comm):
        net = train.Sequential(train.Linear(1, 1, rng=np.random.default_rng(0), dtype=np.float64))
        for p in net.parameters():
            p.data[...] = 0
        table = train.Table(2, 1, dtype=np.float64, optimizer=functools.partial(train.SGD, lr=1.0))
        strategy = train.ParameterServer(tables={"t": table})
        net, opt = train.distribute(net, train.SGD(net.parameters(), 1.0), strategy, comm=comm)
        if not strategy.worker:
            return None

        def gradient(value):
            opt.zero_grad()
            net(np.ones((1, 1))).backward(np.full((1, 1), value))
            with pytest.raises(FloatingPointError, match=f"rank {comm.rank} pushes gradients of rows"):
                table.push([0], [[np.nan]])
            table.push([1], [[2.0]])

        gradient(np.inf)
        with pytest.raises(FloatingPointError, match="not finite"):
            opt.step()
        gradient(1.0)
        opt.step()
        found = [p.data.item() for p in net.parameters()], table.pull([0, 1]).ravel().tolist()
        strategy.close()
        return found

    assert threads.run(3, on_rank, timeout=20) == [([-1, -1], [0, -2])] * 2 + [None]
