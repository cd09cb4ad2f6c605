"""Gradients that are late: where naive asynchronous SGD diverges, and what goes on to converge there.

Hypotheses: plain SGD with the rate r on a quadratic loss with curvature L, by gradients that are always tau updates
late. It converges if and only if ``r L < 2 sin(pi / (2 (2 tau + 1)))``: the roots z of ``z^(tau+1) = z^tau - r L`` are
within the unit circle (Levin and May, A note on difference-delay equations, 1976). A rate that is divided by tau
converges for all tau if ``r L < 1``.
"""

import functools
import math
import threading

import numpy as np
import pytest
from simulated_servers import Servers

from collectives import train
from collectives.train import threads
from collectives.train.server.clocks import Policy

ASYNC = {rate: Policy(math.inf, fold=False, rate=rate) for rate in ("full", "shared", "staleness")}


def limit(tau):
    """Of r L."""
    return 2 * math.sin(math.pi / (2 * (2 * tau + 1)))


def test_the_limit_is_that_of_the_roots():
    for tau in range(30):
        for factor, stable in ((0.999, True), (1.001, False)):
            roots = np.roots([1, -1, *[0] * (tau - 1), factor * limit(tau)] if tau else [1, factor * limit(tau) - 1])
            assert (abs(roots).max() < 1) == stable
        assert tau == 0 or tau * limit(tau) >= 1 - 1e-12


def network(lr):
    net = train.Sequential(train.Linear(5, 2, rng=np.random.default_rng(0), dtype=np.float64))
    return net, train.SGD(net.parameters(), lr)


def in_turn(workers, steps, rng=None):
    """Workers in an order that is the same in each round, or random with `rng`."""
    for _ in range(steps // workers):
        yield from range(workers) if rng is None else rng.permutation(workers).tolist()


def grown(policy, rate, workers=8, steps=600, rng=None):
    """The root mean square of the parameters divided by that at the beginning; the loss is half their squared norm."""
    servers = Servers(*network(rate), workers, policy)
    begin = servers.parameters()
    for worker in in_turn(workers, steps, rng):
        servers.step(worker, [data.copy() for data in servers.data[worker]], rate=rate)
    assert policy.fold or max(service.shard.clocks.lag for service in servers.services) >= workers - 1
    return np.linalg.norm(servers.parameters()) / np.linalg.norm(begin)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_full_rate_diverges_from_the_limit_on(workers):
    """Workers that take turns are workers - 1 updates late."""
    tau = workers - 1
    assert grown(ASYNC["full"], 0.9 * limit(tau), workers) < 0.1
    assert grown(ASYNC["full"], 1.1 * limit(tau), workers) > 10


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_rate_by_staleness_converges_where_the_full_rate_diverges(workers):
    rate = 0.95
    assert workers == 2 or grown(ASYNC["full"], rate, workers) > 1e3
    for policy in (ASYNC["staleness"], ASYNC["shared"], Policy()):
        assert grown(policy, rate, workers) < 0.1


def test_the_rate_of_ssp_is_not_scaled_by_the_workers():
    """They are late by the other workers' updates, whatever the staleness is."""
    workers, rate, strategy = 8, 0.95, train.SSP(3)
    assert grown(strategy.policy, rate * strategy.batches(workers), workers) < 0.1
    assert grown(strategy.policy, rate * workers, workers) > 1e3


@pytest.mark.parametrize("seed", range(3))
def test_also_where_workers_come_in_a_random_order(seed):
    """In each round another one, so that gradients are 0 to 14 updates late."""
    assert grown(ASYNC["full"], 0.5, rng=np.random.default_rng(seed)) > 1e3
    assert grown(ASYNC["staleness"], 0.5, rng=np.random.default_rng(seed)) < 0.1


def far(compensation, rate, workers=8, steps=2000):
    """The largest parameter in the last steps, where the loss is a negative log-likelihood.

    A sample is -1 or 1, both equally often, and its loss ``(w - sample)^2 / 2``. At the minimum the mean of the squared
    gradient, the Fisher information, is the curvature, 1. Each parameter has samples of its own.
    """
    servers = Servers(*network(rate), workers, Policy(math.inf, fold=False, compensation=compensation))
    samples, most = np.random.default_rng(5), 0.0
    for step, worker in enumerate(in_turn(workers, steps)):
        servers.step(worker, [w - samples.choice([-1.0, 1.0], len(w)) for w in servers.data[worker]], rate=rate)
        if step > steps // 2:
            most = max(most, np.abs(servers.parameters()).max())
    return most


def test_delay_compensation_converges_where_the_naive_rate_diverges():
    """Its hypothesis is that the squared gradient is the curvature in the mean (Zheng et al. 2017, sec. 3.2)."""
    rate = 1.3 * limit(7)
    assert far(0.0, rate) > 1e3
    assert far(1.0, rate) < 3


def served(rate, policy, workers=4, rounds=60):
    """What `grown` is, of workers of a real server that take turns. The loss is half the square of weight + bias."""
    turns = [threading.Semaphore(int(worker == 0)) for worker in range(workers)]

    def on_rank(comm):
        net = train.Sequential(train.Linear(1, 1, rng=np.random.default_rng(0), dtype=np.float64))
        strategy = train.AsyncParameterServer(rate=policy)
        net, opt = train.distribute(net, train.SGD(net.parameters(), rate), strategy, comm=comm)
        begin = sum(p.data.item() for p in net.parameters())
        for _ in range(rounds if strategy.worker else 0):
            opt.zero_grad()
            out = net(np.ones((1, 1)))
            out.backward(out.data)
            assert turns[comm.rank].acquire(timeout=60)
            opt.step()
            turns[(comm.rank + 1) % workers].release()
        lag = strategy.lag if strategy.worker else workers - 1
        strategy.close()
        return lag, abs(sum(p.data.item() for p in net.parameters()) / begin)

    lags, factors = zip(*threads.run(workers + 1, on_rank, timeout=60), strict=True)
    assert max(lags) == workers - 1
    return factors[0]


def test_a_real_server_has_the_same_limit():
    """The curvature along weight + bias is 2."""
    at = functools.partial(served, limit(3) / 2 * 1.2)
    assert served(limit(3) / 2 * 0.8, "full") < 0.01
    assert at("full") > 10
    assert at("staleness") < 0.01
