"""Arguments of servers and tables that make no sense: errors at once, or on all ranks before anything is sent."""

import functools
import math

import numpy as np
import pytest

from collectives import train
from collectives.train import threads
from collectives.train.flat.numpy_model import NumpyHandle


def model():
    net = train.mlp((6,), 3, rng=np.random.default_rng(0))
    return net, train.SGD(net.parameters(), 0.05)


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (functools.partial(train.ParameterServer, 3), "servers=3 of 3 ranks: none is left to train"),
        (functools.partial(train.SSP, 1, 9), "servers=9 of 3 ranks"),
        (functools.partial(train.AsyncEASGD, 2, 4, beside=True), "servers=4 of 3 ranks: more than ranks"),
    ],
)
def test_too_many_servers_are_an_error_on_all_ranks(strategy, text):
    def on_rank(comm):
        with pytest.raises(ValueError, match=text):
            train.distribute(*model(), strategy(), comm=comm)
        return "raised"

    assert threads.run(3, on_rank, timeout=60) == ["raised"] * 3


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: train.ParameterServer(0), "servers must be at least 1"),
        (lambda: train.ParameterServer(1, backup=True), "backup needs at least 2"),
        (lambda: train.AsyncParameterServer(rate="fast"), "rate must be one of"),
        (lambda: train.AsyncParameterServer(compensation=-1.0), "compensation"),
        (lambda: train.AsyncParameterServer(oldest=-1), "oldest must be at least 0"),
        (
            lambda: train.AsyncParameterServer(compensation=0.1, tables={"words": train.Table(4, 4)}),
            "compensation: gradients of rows would get none",
        ),
        (lambda: train.AsyncEASGD(0), "every must be at least 1"),
        (lambda: train.AsyncEASGD(attraction=1.5), "attraction must be between 0 and 1"),
        (lambda: train.AsyncEASGD(tables={"words": train.Table(4, 4)}), "rows would never change"),
        (lambda: train.SSP(bucket_bytes=0), "bucket_bytes must be at least 1"),
        (lambda: train.PeerAsync(bucket_bytes=-4), "bucket_bytes must be at least 1"),
        (lambda: train.Table(0, 4), "rows must be at least 1"),
        (lambda: train.Table(4, 4, scale=math.inf), "scale must be finite"),
        (lambda: train.Table(4, 4, dtype=np.float16), "dtype must have 32 bits or more"),
    ],
)
def test_wrong_arguments(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: train.ParameterServer(1.5), "servers must be an integer"),
        (lambda: train.AsyncEASGD(math.nan), "every must be an integer"),
        (lambda: train.Table(4, 4.0), "width must be an integer"),
        (lambda: train.Table(4, 4, dtype=int), "dtype must be a floating type, not int64"),
    ],
)
def test_wrong_types(make, text):
    with pytest.raises(TypeError, match=text):
        make()


def test_a_table_with_an_optimizer_of_others():
    """All ranks are told, before anything is sent."""

    def on_rank(comm):
        table = train.Table(4, 2, optimizer=lambda parameters: object())
        with pytest.raises(TypeError, match="optimizer of table 'words' makes"):
            train.distribute(*model(), train.ParameterServer(tables={"words": table}), comm=comm)
        return comm.allreduce(1)

    assert threads.run(2, on_rank, timeout=60) == [2, 2]


def test_an_optimizer_that_needs_whole_parameters(monkeypatch):
    """Servers have pieces of them; with AsyncEASGD the optimizer works on the workers."""
    monkeypatch.setattr(NumpyHandle, "elementwise", False)

    def on_rank(comm):
        for strategy in (train.ParameterServer(), train.SSP(), train.AsyncParameterServer()):
            with pytest.raises(ValueError, match="SGD needs whole parameters in their shapes"):
                train.distribute(*model(), strategy, comm=comm)
        train.distribute(*model(), train.AsyncEASGD(), comm=comm)[1].strategy.close()

    threads.run(2, on_rank, timeout=60)


def test_servers_follow_the_rate_of_the_optimizer_and_no_other_option():
    def on_rank(comm):
        net, opt = train.distribute(*model(), train.ParameterServer(), comm=comm)
        if opt.strategy.worker:

            def step():
                before = net.parameters()[0].data.copy()
                opt.zero_grad()
                train.CrossEntropyLoss()(net(np.ones((2, 6), np.float32)), np.array([0, 1])).backward()
                opt.step()
                return np.abs(net.parameters()[0].data - before).max()

            train.schedules.set_lr(opt, 0.5)
            assert step() > 0
            train.schedules.set_lr(opt, 0)
            assert step() == 0
            opt.momentum = 0.8
            with pytest.raises(ValueError, match=r"momentum of the optimizer was 0.0 and is 0.8: servers follow"):
                step()
        opt.strategy.close()

    threads.run(3, on_rank, timeout=60)
