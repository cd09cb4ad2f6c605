"""Pipelines on ranks that are threads: the gradients and weights of one process; and errors."""

import time

import numpy as np
import pytest
from pipeline_training import LOSS, STEPS, X, Y, alone, assert_same, chain, delayed, linear, on_mesh, sgd, stream

from collectives import CollectiveTimeout, PeerFailure, train
from collectives.train import threads
from collectives.train.pipeline.watch import Watch, differ

PLAIN = [("gpipe", 1), ("gpipe", 3), ("1f1b", 4), ("interleaved_1f1b", 2), ("interleaved_1f1b", 4), ("zero_bubble", 3)]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("schedule", "ranks"), PLAIN)
def test_each_schedule_trains_as_one_process(schedule, ranks, recompute):
    expected, loss = alone()
    found = threads.run(
        ranks, lambda comm: on_mesh(comm, {"pipeline": ranks}, schedule, micro_batches=8, recompute=recompute)
    )
    for state, value, report in found:
        assert_same(state, expected)
        assert value == pytest.approx(loss, abs=1e-12)
        assert all(held <= promised for held, promised in zip(report.activations, report.promised, strict=True))
    assert set().union(*(state for state, _, _ in found)) == set(expected)


@pytest.mark.parametrize("shape", [{"pipeline": 2, "data": 2}, {"pipeline": 4, "data": 2}, {"pipeline": 1, "data": 3}])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_meshes_with_clipping_over_the_whole_model(shape, clip):
    expected, loss = alone(clip=clip)
    ranks = shape["pipeline"] * shape["data"]
    for state, value, _ in threads.run(ranks, lambda comm: on_mesh(comm, shape, clip=clip, micro_batches=4)):
        assert_same(state, expected)
        assert value == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize("cut", [[1, 2], [3, 15], "parameters", "flops", "time"])
def test_uneven_stages_and_batches_that_micro_batches_do_not_divide(cut):
    expected, _ = alone()
    found = threads.run(3, lambda comm: on_mesh(comm, {"pipeline": 3}, micro_batches=5, cut=cut, sample=X))
    assert set().union(*(state for state, _, _ in found)) == set(expected)
    for state, _, _ in found:
        assert_same(state, expected)


def test_more_micro_batches_than_samples():
    expected, _ = alone()
    for state, _, _ in threads.run(2, lambda comm: on_mesh(comm, {"pipeline": 2}, micro_batches=25)):
        assert_same(state, expected)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_dropout_draws_the_same_again(schedule, recompute):
    expected, loss = alone(dropout=True)
    assert loss != alone()[1]
    for state, value, _ in threads.run(
        3, lambda comm: on_mesh(comm, {"pipeline": 3}, schedule, micro_batches=4, dropout=True, recompute=recompute)
    ):
        assert_same(state, expected)
        assert value == pytest.approx(loss, abs=1e-12)


def test_1f1b_holds_less_than_gpipe_and_recomputation_less_than_both():
    def held(schedule, recompute=False):
        cut = {"micro_batches": 8, "cut": [5, 9, 13], "recompute": recompute}
        return threads.run(4, lambda comm: on_mesh(comm, {"pipeline": 4}, schedule, **cut))[0][2]

    gpipe, flush, borders = held("gpipe"), held("1f1b"), held("gpipe", True)
    assert gpipe.activations == [8, 8, 8, 8]
    assert flush.activations == [4, 3, 2, 1]
    samples = -(-len(X) // 8)
    for stage in (1, 2):  # stages of equal layers, whose micro-batches have 3 or 2 samples
        each = gpipe.activation_bytes[stage] / len(X)
        assert flush.activation_bytes[stage] <= each * samples * flush.activations[stage]
        assert borders.activation_bytes[stage] < gpipe.activation_bytes[stage]


def skipping():
    """Two inputs, a skip over several blocks, and one parameter in two blocks."""
    rng = np.random.default_rng(2)
    graph = train.Graph()
    first = graph.add(linear(rng, 8, 8), graph.input())
    second = graph.add(linear(rng, 8, 8), graph.input(1))
    hidden = graph.add(train.ReLU(), first)
    tied = linear(rng, 8, 8)
    tied.weight = graph.blocks[first].weight
    deep = graph.add(tied, hidden)
    both = graph.add(train.Add(), deep, second, first)
    graph.add(linear(rng, 8, 3), both)
    return graph


def by_hand(x, z):
    """The gradients and the loss of `skipping`, without a graph."""
    one, two, _, three, _, out = skipping().blocks
    weight = one.weight.data
    first = x @ weight.T + one.bias.data
    hidden = np.maximum(first, 0)
    total = hidden @ weight.T + three.bias.data + z @ two.weight.data.T + two.bias.data + first
    logits = total @ out.weight.data.T + out.bias.data
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    loss = -np.mean(np.log(odds[np.arange(len(Y)), Y]))
    odds[np.arange(len(Y)), Y] -= 1
    above = odds / len(Y)
    g = above @ out.weight.data
    f = g + (g @ weight) * (hidden > 0)
    grads = {"0.weight": f.T @ x + g.T @ hidden, "0.bias": f.sum(0), "1.weight": g.T @ z, "1.bias": g.sum(0)}
    return loss, grads | {"3.bias": g.sum(0), "5.weight": above.T @ total, "5.bias": above.sum(0)}


@pytest.mark.parametrize("route", ["relay", "direct"])
@pytest.mark.parametrize(("ranks", "schedule"), [(1, "gpipe"), (3, "1f1b"), (4, "zero_bubble")])
def test_a_graph_with_skips_two_inputs_and_a_tied_weight(route, ranks, schedule):
    z = np.random.default_rng(4).standard_normal(X.shape)
    loss, expected = by_hand(X, z)
    cuts = {1: [], 3: [1, 3], 4: [1, 3, 5]}

    def on_rank(comm):
        pipe = train.Pipeline(skipping(), comm, schedule=schedule, micro_batches=4, cut=cuts[ranks], route=route)
        found = pipe.step((X, z), Y, LOSS)
        grads = {name: p.grad.copy() for name, p in pipe.named_parameters()}
        pipe.free()
        return found, grads

    results = threads.run(ranks, on_rank)
    assert set().union(*(grads for _, grads in results)) == set(expected)
    for found, grads in results:
        assert found == pytest.approx(loss, abs=1e-12)
        assert_same(grads, expected)


@pytest.mark.parametrize("ranks", [2, 4])
def test_tied_weights_count_once_in_the_norm(ranks):
    z = np.random.default_rng(4).standard_normal(X.shape)
    _, expected = by_hand(X, z)

    def on_rank(comm):
        mesh = train.Mesh(comm, pipeline=ranks)
        pipe = train.Pipeline(skipping(), mesh.pipeline, micro_batches=4, cut=[1, 3, 5][: ranks - 1])
        strategy = train.AllReduce(clip_norm=1e9)
        pipe, opt = train.distribute(pipe, sgd(pipe.parameters()), strategy, mesh=mesh)
        opt.zero_grad()
        pipe.step((X, z), Y, LOSS)
        opt.step()
        return strategy.norm

    for norm in threads.run(ranks, on_rank):
        assert norm == pytest.approx(np.sqrt(sum(np.sum(g**2) for g in expected.values())), rel=1e-12)


@pytest.mark.parametrize(("schedule", "ranks", "micro"), [("pipedream", 3, 1), ("pipedream_2bw", 2, 4)])
def test_streams_follow_their_law_of_staleness(schedule, ranks, micro):
    rng = np.random.default_rng(6)
    batches = [(rng.standard_normal((8, 8)), rng.integers(0, 3, 8)) for _ in range(9)]
    found = threads.run(ranks, lambda comm: stream(comm, schedule, micro, batches))
    stage = {name: number for number, (state, _, _) in enumerate(found) for name in state}
    law = (lambda s: ranks - 1 - s) if schedule == "pipedream" else (lambda s: 1)
    expected = delayed(batches, ranks, stage, law)
    for state, report, losses in found:
        assert len(losses) == len(batches)
        assert report.versions == ([ranks - s for s in range(ranks)] if schedule == "pipedream" else [2] * ranks)
        assert_same(state, expected)


def test_a_stage_that_raises_is_named_on_all_ranks():
    def on_rank(comm):
        net = chain()
        if comm.rank == 1:
            net.layers[8].forward = broken
        pipe = train.Pipeline(net, comm, micro_batches=4, cut=[5, 10])
        with pytest.raises(ArithmeticError if comm.rank == 1 else PeerFailure, match="too hot") as caught:
            pipe.step(X, Y, LOSS)
        return str(caught.value)

    def broken(x):
        raise ArithmeticError("too hot")

    found = threads.run(3, on_rank, timeout=20)
    assert found[0] == found[2] == "stage 1 of the pipeline failed: ArithmeticError: too hot"


def test_an_error_of_one_of_two_pipelines_is_named_there_and_ends_it():
    """Messages of the failed step are under way: another step could take them for its own."""

    def on_rank(comm):
        pipes = [train.Pipeline(chain(), comm, micro_batches=4) for _ in range(2)]
        if comm.rank == 1:
            pipes[1].net.layers[0].forward = broken
        with pytest.raises(ArithmeticError if comm.rank == 1 else PeerFailure, match="too hot"):
            pipes[1].step(X, Y, LOSS)
        with pytest.raises(RuntimeError, match=r"failed in an earlier step \(.*too hot\): make a new one"):
            pipes[1].step(X, Y, LOSS)
        opt = sgd(pipes[0].parameters())
        for _ in range(STEPS):
            opt.zero_grad()
            pipes[0].step(X, Y, LOSS)
            opt.step()
        return pipes[0].state_dict()

    def broken(x):
        raise ArithmeticError("too hot")

    expected, _ = alone()
    for state in threads.run(2, on_rank, timeout=20):
        assert_same(state, expected)


def test_batches_that_differ_are_the_same_error_for_a_rank_that_is_told_of_them_first():
    def on_rank(comm):
        watch = Watch(comm, f"stage {comm.rank}")
        if comm.rank == 1:
            return watch.tell(ValueError(differ("samples", [4, 5])))
        with pytest.raises(ValueError, match=r"^the ranks of a pipeline need the same batches; theirs have \[4, 5\]"):
            watch.wait(comm.Irecv(np.zeros(1), tag=5))

    threads.run(2, on_rank, timeout=20)


def test_ranks_need_the_same_batch():
    def on_rank(comm):
        pipe = train.Pipeline(chain(), comm, micro_batches=2)
        count = 22 if comm.rank == 1 else 20
        with pytest.raises(ValueError, match=r"the same batches; theirs have \[20, 22, 20\] samples"):
            pipe.step(X[:count], Y[:count], LOSS)
        pipe = train.Pipeline(chain(), comm, micro_batches=2)
        with pytest.raises(ValueError if comm.rank == 1 else PeerFailure, match=r"different lengths: \[21, 22\]"):
            pipe.step(X, Y[1:] if comm.rank == 1 else Y, LOSS)
        pipe = train.Pipeline(chain(), comm, micro_batches=2)
        with pytest.raises(ValueError, match="the model has 1 inputs, this batch a list of 22"):
            pipe.step(X.tolist(), Y, LOSS)

    threads.run(3, on_rank, timeout=20)


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("count", [0, 3])
def test_a_rank_with_a_shorter_batch_lets_nobody_wait_for_ever(rank, count):
    """It sends no micro-batches that the others wait for, and takes none of theirs."""

    def on_rank(comm):
        pipe = train.Pipeline(chain(), comm, micro_batches=2)
        mine = count if comm.rank == rank else len(X)
        with pytest.raises((ValueError, PeerFailure), match="need the same batches|takes outputs"):
            pipe.step(X[:mine], Y[:mine], LOSS)

    threads.run(3, on_rank, timeout=20)


def test_streams_of_no_batches_of_several_numbers_and_without_a_length():
    def on_rank(comm):
        pipe = train.Pipeline(chain(), comm, schedule="pipedream")
        opt = sgd(pipe.parameters())
        assert pipe.stream([], LOSS, opt) == []
        with pytest.raises(TypeError, match="batches of a stream need a length; a list_iterator has none"):
            pipe.stream(iter([(X, Y)]), LOSS, opt)
        assert len(pipe.stream([(X, Y)], LOSS, opt)) == 1
        with pytest.raises(ValueError, match=r"the same batches; theirs have \[0, 1\] batches"):
            pipe.stream([(X, Y)] * comm.rank, LOSS, opt)

    threads.run(2, on_rank, timeout=20)


@pytest.mark.parametrize("batch", [(None, Y), (X, None), (iter(X), Y)])
def test_what_has_no_rows_is_no_batch(batch):
    def on_rank(comm):
        with pytest.raises(TypeError, match="x and y of a batch are arrays or tensors with a row for each sample"):
            train.Pipeline(chain(), comm).step(*batch, LOSS)

    threads.run(2, on_rank, timeout=20)


def test_ranks_that_wait_for_each_other_are_named_after_the_timeout():
    def on_rank(comm):
        pipes = [train.Pipeline(chain(), comm, micro_batches=2) for _ in range(2)]
        comm.timeout = 0.5
        with pytest.raises((CollectiveTimeout, PeerFailure), match="waiting for rank [01]") as caught:
            pipes[comm.rank].step(X, Y, LOSS)
        comm.timeout = 20
        comm.Barrier()
        return type(caught.value)

    assert CollectiveTimeout in threads.run(2, on_rank, timeout=20)


def test_waits_that_are_long_enough_to_ask_whether_others_live():
    """Every stage waits longer than SLOW, and not as often as the others."""
    expected, _ = alone()

    def slow(layer):
        plain = layer.forward

        def forward(x):
            time.sleep(0.3)
            return plain(x)

        layer.forward = forward

    def on_rank(comm):
        net = chain()
        slow(net.layers[2 + 6 * comm.rank])
        pipe = train.Pipeline(net, comm, micro_batches=2, cut=[5, 11])
        opt = sgd(pipe.parameters())
        for _ in range(STEPS):
            opt.zero_grad()
            pipe.step(X, Y, LOSS)
            opt.step()
        pipe.free()
        return pipe.state_dict()

    for state in threads.run(3, on_rank, timeout=20):
        assert_same(state, expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": "2f2b"}, "unknown pipeline schedule '2f2b'"),
        ({"cut": [3]}, "of 1 stages after the first, not of 2"),
        ({"cut": [5, 5]}, "leaves a stage without one of the 16 blocks"),
        ({"cut": "beauty"}, "cut must be one of parameters, flops, time"),
        ({"cut": "time"}, "needs a sample"),
        ({"cut": [2, 3]}, "stage 1 has no parameters"),
        ({"route": "boat"}, "route must be one of relay, direct"),
        ({"micro_batches": 0}, "at least one micro-batch"),
        ({"schedule": "interleaved_1f1b", "micro_batches": 4}, "multiple of its 3 stages"),
        ({"schedule": "pipedream", "micro_batches": 2}, "steps after 1 micro-batches"),
    ],
)
def test_arguments_that_make_no_pipeline(options, words):
    def on_rank(comm):
        with pytest.raises(ValueError, match=words):
            train.Pipeline(chain(), comm, **options)

    threads.run(3, on_rank)


def test_a_state_goes_to_another_cut():
    whole = {}
    for state, _, _ in threads.run(3, lambda comm: on_mesh(comm, {"pipeline": 3}, micro_batches=2)):
        whole |= state

    def on_rank(comm):
        pipe = train.Pipeline(chain(), comm, cut=[4])
        pipe.load_state_dict(whole)
        assert_same(pipe.state_dict(), whole)
        with pytest.raises(ValueError, match="the state has no parameter"):
            pipe.load_state_dict({})

    threads.run(2, on_rank)
