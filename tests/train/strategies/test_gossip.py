"""Strategies that average with neighbours, against their definitions, on ranks that are threads."""

import time

import numpy as np
import pytest
from local_training import (
    NEAR,
    Alone,
    backward,
    batch,
    begin,
    even,
    flat,
    momentum,
    on_threads,
    scatter,
    sgd,
    steps,
    still,
    uneven,
)

from collectives import train
from collectives.train import graphs, threads

DIRECTED = graphs.random(degree=1, seed=4, rounds=3, directed=True)


def near(a, b):
    return np.abs(a - b).max() < NEAR


def in_step(size, strategy, count, optimizer=sgd, shares=even, begin_apart=False):
    """The parameters of all ranks, (ranks, n), before and after each step, and the weights of push-sum."""

    def on_rank(comm):
        net, opt = begin(comm, strategy(), optimizer)
        if begin_apart:
            scatter(opt, comm.rank)
        found = [flat(net)]
        for step in range(count):
            steps(net, opt, comm, step, step + 1, shares)
            found.append(flat(net))
        return np.stack(found), float(getattr(opt.strategy, "weight", np.ones(1))[0])

    results = threads.run(size, on_rank)
    return np.stack([found for found, _ in results], axis=1), [weight for _, weight in results]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("graph", graphs.GRAPHS)
def test_mixing_preserves_the_mean_and_contracts_at_the_graphs_rate(graph, size):
    mixing = graphs.Mixing(graph, size)
    period = len(mixing.matrices)
    xs, _ = in_step(size, lambda: train.NeighborAveraging(graph), 2 * period, still, begin_apart=True)
    assert np.abs(xs.mean(axis=1) - xs[0].mean(axis=0)).max() < NEAR
    gaps = np.linalg.norm(xs - xs[0].mean(axis=0), axis=1)  # for each parameter, over the ranks
    for k in (0, period):
        assert (gaps[k + period] <= mixing.contraction**period * gaps[k] + NEAR).all()
    if size > 1:
        assert gaps[0].max() > 0.1


def test_the_rate_is_attained():
    """On a ring of 6, parameters that follow the slowest wave shrink by the rate in each round, exactly."""
    rate = graphs.Mixing("ring", 6).contraction

    def on_rank(comm):
        net, opt = begin(comm, train.NeighborAveraging("ring"), still)
        for data in opt.strategy.parameters:
            data[...] = np.cos(2 * np.pi * comm.rank / 6)
        distances = [opt.strategy.consensus_distance()]
        for step in range(5):
            steps(net, opt, comm, step, step + 1)
            distances.append(opt.strategy.consensus_distance())
        return distances

    for distances in threads.run(6, on_rank):
        np.testing.assert_allclose(np.divide(distances[1:], distances[:-1]), rate**2, rtol=1e-9)


@pytest.mark.parametrize("graph", ["ring", "one_peer_exponential", "random"])
@pytest.mark.parametrize("shares", [even, uneven])
@pytest.mark.parametrize("overlap", [False, True])
def test_neighbor_averaging_is_its_definition(overlap, shares, graph):
    mixing, alone = graphs.Mixing(graph, 4), Alone(4, momentum, shares)
    for step in range(7):
        matrix = mixing.matrices[step % len(mixing.matrices)]
        alone.gradients()
        if overlap:
            alone.x = matrix @ alone.x
            alone.update()
        else:
            alone.update()
            alone.x = matrix @ alone.x
    xs, _ = in_step(4, lambda: train.NeighborAveraging(graph, overlap), 7, momentum, shares)
    assert near(xs[-1], alone.x)


def test_on_a_complete_graph_it_is_synchronous():
    xs, _ = in_step(3, lambda: train.NeighborAveraging("complete"), 5)
    assert near(xs[-1], on_threads(3, train.AllReduce, 5))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("graph", [DIRECTED, "ring", "one_peer_exponential"])
def test_push_sums_weights_add_up_and_debiased_values_reach_the_mean(graph, size):
    for count in (1, 2, 5):
        xs, weights = in_step(size, lambda: train.PushSum(graph), count, still, begin_apart=True)
        assert sum(weights) == pytest.approx(size, abs=1e-12)
        assert near(np.array(weights) @ xs[-1] / size, xs[0].mean(axis=0))
    rounds = 1 if size == 1 else int(np.ceil(-30 / np.log(max(graphs.Mixing(graph, size).contraction, 1e-9))))
    xs, _ = in_step(size, lambda: train.PushSum(graph), min(rounds, 300), still, begin_apart=True)
    assert np.abs(xs[-1] - xs[0].mean(axis=0)).max() < 1e-9
    assert size == 1 or np.abs(xs[0] - xs[0].mean(axis=0)).max() > 0.1


@pytest.mark.parametrize("graph", [DIRECTED, "exponential"])
def test_push_sum_is_its_definition(graph):
    size = 4
    mixing, alone = graphs.Mixing(graph, size), Alone(size, momentum, uneven)
    w = np.ones((size, 1))
    for step in range(8):
        alone.gradients()  # at z
        alone.x = alone.x * w
        alone.update()
        p = mixing.matrices[step % len(mixing.matrices)]
        x, w = p @ alone.x, p @ w
        alone.x = x / w
    zs, weights = in_step(size, lambda: train.PushSum(graph), 8, momentum, uneven)
    assert near(zs[-1], alone.x)
    np.testing.assert_allclose(weights, w[:, 0], atol=1e-12)
    assert (np.abs(w - 1).max() > 0.1) == (graph is DIRECTED)


def test_a_step_of_push_sum_that_is_refused_changes_nothing():
    """Weights of ranks differ here, so x is not z."""

    def on_rank(comm, refused):
        net, opt = begin(comm, train.PushSum(DIRECTED), momentum)
        steps(net, opt, comm, 0, 3)
        if refused:
            before = flat(net)
            opt.zero_grad()
            with pytest.raises(RuntimeError, match="without a backward"):
                opt.step()
            np.testing.assert_array_equal(flat(net), before)
        steps(net, opt, comm, 3, 5)
        return flat(net)

    plain, others = (np.stack(threads.run(4, lambda comm, r=r: on_rank(comm, r))) for r in (False, True))
    np.testing.assert_array_equal(plain, others)


@pytest.mark.parametrize("strategy", [train.NeighborAveraging, train.ADPSGD, train.PushSum])
@pytest.mark.parametrize("final", [True, False])
def test_the_end_is_the_ranks_mean(strategy, final):
    def on_rank(comm):
        net, opt = begin(comm, strategy(DIRECTED if strategy is train.PushSum else "ring", final_average=final))
        steps(net, opt, comm, 0, 5)
        before, weight = flat(net), float(getattr(opt.strategy, "weight", np.ones(1))[0])
        opt.strategy.finish()
        return before, weight, flat(net)

    results = threads.run(4, on_rank)
    ends = np.stack([end for _, _, end in results])
    assert (ends == ends[0]).all() == final
    if final and strategy is not train.ADPSGD:
        assert near(ends[0], sum(weight * before for before, weight, _ in results) / 4)


def gossip(comm, count, optimizer=still, graph="ring", pause=lambda rank: 0.0, progress=None):
    """What AD-PSGD leaves of parameters that begin apart: before, after, number of exchanges, steps of others."""
    net, opt = begin(comm, train.ADPSGD(graph, final_average=False), optimizer)
    scatter(opt, comm.rank)
    before = flat(net)
    for step in range(count):
        steps(net, opt, comm, step, step + 1)
        time.sleep(pause(comm.rank))
        if progress is not None:
            progress[comm.rank] = step + 1
    seen = None if progress is None else list(progress)
    opt.strategy.finish()
    return before, flat(net), opt.strategy.exchanges, seen


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("graph", ["ring", "complete", "exponential"])
def test_asynchronous_pairs_preserve_the_mean(graph, size):
    results = threads.run(size, lambda comm: gossip(comm, 30, graph=graph, pause=lambda rank: 0.0005))
    before, after = (np.stack([result[i] for result in results]) for i in (0, 1))
    assert near(before.mean(axis=0), after.mean(axis=0))
    if size > 1:
        assert all(exchanges > 0 for _, _, exchanges, _ in results)
        apart = [((x - x.mean(axis=0)) ** 2).sum() for x in (before, after)]
        assert apart[1] < 0.1 * apart[0]


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("slow", [0, 1])
def test_a_rank_that_is_ten_times_slower_delays_no_other(size, slow):
    """Rank 0 is active, rank 1 passive. The others make all their steps while it makes a part of its own; then they
    answer until it has finished."""
    progress = [0] * size
    pause = lambda rank: 0.02 if rank == slow else 0.002  # noqa: E731
    results = threads.run(size, lambda comm: gossip(comm, 20, sgd, pause=pause, progress=progress), timeout=30)
    for rank, (_, _, exchanges, seen) in enumerate(results):
        assert exchanges > 0
        assert rank == slow or seen[slow] < 15, seen
    assert progress == [20] * size


def test_ranks_that_have_finished_can_go_on():
    def on_rank(comm):
        net, opt = begin(comm, train.ADPSGD(final_average=False), still)
        scatter(opt, comm.rank)
        before = flat(net)
        for _ in range(20):
            steps(net, opt, comm, 0, 1 + comm.rank)
            opt.strategy.finish()
        return before, flat(net)

    results = threads.run(3, on_rank, timeout=30)
    before, after = (np.stack([result[i] for result in results]) for i in (0, 1))
    assert near(before.mean(axis=0), after.mean(axis=0))


def test_messages_meet_no_others():
    """A message of the program, of any tag, is not taken for one of the strategy's, nor the other way round."""

    def on_rank(comm):
        other = 1 - comm.rank
        mine = np.full(10, float(comm.rank))
        comm.Isend(mine, other, tag=1)
        net, opt = begin(comm, train.ADPSGD(), sgd)
        steps(net, opt, comm, 0, 5)
        received = np.empty(10)
        comm.Recv(received, source=other)
        opt.strategy.finish()
        return received[0] == other

    assert threads.run(2, on_rank, timeout=30) == [True, True]


@pytest.mark.parametrize(
    ("strategy", "graph", "words"),
    [
        (train.NeighborAveraging, np.kron(np.eye(2), np.full((2, 2), 0.5)), "not connected"),
        (train.PushSum, np.kron(np.eye(2), np.full((2, 2), 0.5)), "not connected"),
        (train.ADPSGD, np.kron(np.eye(2), np.full((2, 2), 0.5)), "not connected"),
        (train.NeighborAveraging, graphs.random(2, 1, directed=True), "not doubly stochastic"),
        (train.NeighborAveraging, np.eye(3), r"of shape \(4, 4\)"),
    ],
)
def test_graphs_that_do_not_fit_are_errors_on_all_ranks(strategy, graph, words):
    def on_rank(comm):
        with pytest.raises(ValueError, match=words):
            begin(comm, strategy(graph))
        return comm.allreduce(1)

    assert threads.run(4, on_rank) == [4] * 4


def test_ranks_with_different_graphs_are_told():
    def on_rank(comm):
        with pytest.raises(ValueError, match="graph|differ from rank 0"):
            begin(comm, train.NeighborAveraging(graphs.random(seed=comm.rank)))
        return True

    assert threads.run(5, on_rank) == [True] * 5


def test_an_unknown_graph_is_an_error_at_once():
    for strategy in (train.NeighborAveraging, train.PushSum, train.ADPSGD):
        with pytest.raises(ValueError, match="unknown graph 'rng'"):
            strategy("rng")
    with pytest.raises(ValueError, match="seed must be at least 0"):
        train.ADPSGD(seed=-1)


def test_micro_batches_send_once():
    def on_rank(comm):
        net, opt = begin(comm, train.NeighborAveraging(overlap=True), sgd)
        x, y = batch(0, comm.rank, even(comm.size))
        with opt.strategy.no_sync():
            backward(net, x[:3], y[:3])
        backward(net, x[3:], y[3:])
        opt.step()
        return flat(net)

    whole, _ = in_step(3, lambda: train.NeighborAveraging(overlap=True), 1)
    assert near(np.stack(threads.run(3, on_rank)), whole[-1])
