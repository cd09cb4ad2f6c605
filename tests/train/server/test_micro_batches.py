"""Rows of tables in steps of several micro-batches, in steps that are dropped, and on servers without parameters.

The gradient of sample n is n for the network, and 2 n for the two rows that it uses: row 0 and another one. It does not
depend on parameters, so that the order of updates does not matter.
"""

import contextlib
import functools

import numpy as np
import pytest

from collectives import train
from collectives.train import threads

ROWS, RATE = 6, 0.5
SAMPLES = {0: [1, 2, 3, 4, 5, 6, 7, 8], 1: [20, 30, 40], 2: [100]}  # of each worker
CUTS = {"whole": [8], "halves": [4, 4], "fours": [2, 2, 2, 2], "unequal": [5, 2, 0, 1], "last without": [3, 5, 0]}
STRATEGIES = {
    "synchronous": train.ParameterServer,
    "ssp of no staleness": functools.partial(train.SSP, 0),
    "ssp": functools.partial(train.SSP, 2),
    "asynchronous": functools.partial(train.AsyncParameterServer, rate="full"),
}
ALL = pytest.mark.parametrize("kind", STRATEGIES)


def key_of(number):
    return 1 + number % (ROWS - 1)


def expected(kind):
    """The weight, the bias and the rows after a step of all workers, all of which were 0."""
    total = sum(map(len, SAMPLES.values()))
    weights = {"ssp": lambda mine: 1 / len(SAMPLES), "asynchronous": lambda mine: 1.0}
    weight_of = weights.get(kind, lambda mine: len(mine) / total)
    net, rows = np.zeros(2), np.zeros(ROWS)
    for mine in SAMPLES.values():
        for number in mine:
            change = RATE * number * weight_of(mine) / len(mine)
            net -= change
            rows[[0, key_of(number)]] -= 2 * change
    return net, rows


def pass_of(net, table, numbers):
    """A forward and backward pass of these samples; the mean over none is NaN, also as that of a row."""
    grads = np.array(numbers, float).reshape(-1, 1) / max(1, len(numbers))
    net(np.ones_like(grads)).backward(grads)
    table.push([[0, key_of(number)] for number in numbers] or [[0, 1]], both(grads) if numbers else both([[np.nan]]))


def both(grads):
    return 2 * np.repeat(np.asarray(grads)[:, None], 2, axis=1)


def accumulated(net, opt, table, numbers, cut):
    """The passes of a step with micro-batches of these lengths."""
    for i, length in enumerate(cut):
        with contextlib.nullcontext() if i == len(cut) - 1 else opt.strategy.no_sync():
            pass_of(net, table, numbers[sum(cut[:i]) :][:length])


def trained(kind, servers, work, beside=False):
    """The network and the rows after ``work(net, opt, table, rank)`` on each worker, on servers of one table."""

    def on_rank(comm):
        net = train.Sequential(train.Linear(1, 1, rng=np.random.default_rng(0), dtype=np.float64))
        for parameter in net.parameters():
            parameter.data[...] = 0
        table = train.Table(ROWS, 1, dtype=np.float64, optimizer=functools.partial(train.SGD, lr=RATE))
        strategy = STRATEGIES[kind](servers=servers, beside=beside, tables={"t": table})
        net, opt = train.distribute(net, train.SGD(net.parameters(), RATE), strategy, comm=comm)
        rows = None
        if strategy.worker:
            work(net, opt, table, comm.rank)
            strategy.finish()
            rows = table.pull(np.arange(ROWS)).ravel()
            strategy.finish()
        strategy.close()
        return np.concatenate([p.data.ravel() for p in net.parameters()]), rows

    return threads.run(len(SAMPLES) + (0 if beside else servers), on_rank, timeout=60)[0]


def check(found, kind):
    for array, wanted in zip(found, expected(kind), strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-12)


@ALL
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_rows_count_with_the_samples_of_their_micro_batch(kind, beside, cut):
    def work(net, opt, table, rank):
        opt.zero_grad()
        accumulated(net, opt, table, SAMPLES[rank], cut if rank == 0 else [len(SAMPLES[rank])])
        opt.step()

    check(trained(kind, 1, work, beside), kind)


@ALL
@pytest.mark.parametrize("beside", [False, True])
def test_a_server_without_parameters_updates_its_rows(kind, beside):
    """The first one of three has none of the two elements of the network, and every third row."""

    def work(net, opt, table, rank):
        pass_of(net, table, SAMPLES[rank])
        opt.step()

    check(trained(kind, 3, work, beside), kind)


def a_micro_batch(net, opt, table):
    with opt.strategy.no_sync():
        pass_of(net, table, [5, 6])


def two_micro_batches_and_the_last(net, opt, table):
    accumulated(net, opt, table, [5, 6, 7], [1, 1, 1])


def a_pass(net, opt, table):
    pass_of(net, table, [5])


def a_step_that_raises(net, opt, table):
    pass_of(net, table, [5])
    pass_of(net, table, [6])
    with pytest.raises(RuntimeError, match="ran twice"):
        opt.step()


@ALL
@pytest.mark.parametrize("dropped", [a_micro_batch, two_micro_batches_and_the_last, a_pass, a_step_that_raises])
def test_zero_grad_drops_the_rows_of_all_passes(kind, dropped):
    def work(net, opt, table, rank):
        if rank == 0:
            dropped(net, opt, table)
            opt.zero_grad()
        accumulated(net, opt, table, SAMPLES[rank], [1, len(SAMPLES[rank]) - 1] if rank < 2 else [1])
        opt.step()
        opt.zero_grad()

    check(trained(kind, 2, work), kind)


def test_rows_of_a_step_are_gone_after_it():
    """Neither the next step nor ``zero_grad`` meets them again."""

    def work(net, opt, table, rank):
        accumulated(net, opt, table, SAMPLES[rank], [len(SAMPLES[rank])])
        opt.step()
        before = table.pull(np.arange(ROWS))
        opt.strategy.finish()
        opt.zero_grad()
        net(np.ones((1, 1))).backward(np.zeros((1, 1)))
        opt.step()
        np.testing.assert_array_equal(table.pull(np.arange(ROWS)), before)

    trained("synchronous", 1, work)


def test_gradients_of_rows_without_a_backward_pass_are_an_error():
    def work(net, opt, table, rank):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="push them after it"):
                table.push([0], [[1.0]])
            pass_of(net, table, SAMPLES[rank])
            opt.step()

    trained("synchronous", 1, work)
