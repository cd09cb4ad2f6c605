"""Stages of which several ranks have copies: the gradients and weights of one process; and errors."""

import numpy as np
import pytest
from pipeline_training import LOSS, X, Y, alone, assert_same, chain, on_mesh, sgd

from collectives import PeerFailure, train
from collectives.train import threads
from collectives.train.pipeline.interleaved_1f1b import Interleaved1F1B
from collectives.train.pipeline.partition import balanced

PLAIN = [("gpipe", [1, 2]), ("1f1b", [2, 1]), ("1f1b", [1, 2, 1]), ("zero_bubble", [1, 3]), ("gpipe", [3])]


@pytest.mark.parametrize(("schedule", "replicas"), [*PLAIN, ("interleaved_1f1b", [1, 2])])
def test_each_schedule_trains_as_one_process(schedule, replicas):
    expected, loss = alone(clip=0.05)
    ranks = sum(replicas)
    options = {"schedule": schedule, "micro_batches": 6, "replicas": replicas, "clip": 0.05}
    found = threads.run(ranks, lambda comm: on_mesh(comm, {"pipeline": ranks}, **options))
    assert set().union(*(state for state, _, _ in found)) == set(expected)
    for state, value, report in found:
        assert_same(state, expected)
        assert value == pytest.approx(loss, abs=1e-12)
        assert all(held <= promised for held, promised in zip(report.activations, report.promised, strict=True))


def test_beside_data_ranks_with_recomputation():
    expected, loss = alone(clip=0.05)
    options = {"micro_batches": 4, "replicas": [1, 2], "clip": 0.05, "recompute": True}
    for state, value, _ in threads.run(6, lambda comm: on_mesh(comm, {"pipeline": 3, "data": 2}, **options)):
        assert_same(state, expected)
        assert value == pytest.approx(loss, abs=1e-12)


def test_more_replicas_than_micro_batches():
    """A rank without a micro-batch takes part in the sum of the gradients."""
    expected, _ = alone()
    for state, _, _ in threads.run(4, lambda comm: on_mesh(comm, {"pipeline": 4}, replicas=[1, 3], micro_batches=2)):
        assert_same(state, expected)


def test_each_replica_works_on_its_micro_batches_only():
    """Two replicas of the last stage: each keeps half of what one rank would keep."""
    options = {"schedule": "gpipe", "micro_batches": 8, "cut": [8]}
    alike = threads.run(2, lambda comm: on_mesh(comm, {"pipeline": 2}, **options))[0][2]
    shared = threads.run(3, lambda comm: on_mesh(comm, {"pipeline": 3}, replicas=[1, 2], **options))[0][2]
    assert alike.activations == [8, 8]
    assert shared.activations == [8, 4, 4]


def test_a_step_adds_to_the_gradients_before_it():
    net = chain()
    for _ in range(2):
        LOSS(net(X), Y).backward()
    expected = {p.name: p.grad for p in net.parameters()}

    def on_rank(comm):
        pipe = train.Pipeline(chain(), comm, replicas=[1, 2], micro_batches=3)
        for _ in range(2):
            pipe.step(X, Y, LOSS)
        assert_same({name: p.grad for name, p in pipe.named_parameters()}, expected)

    threads.run(3, on_rank)


def test_a_graph_whose_first_value_skips_a_stage_and_whose_weight_is_tied():
    def graph():
        rng = np.random.default_rng(2)
        made, first = train.Graph(), train.Linear(8, 8, rng=rng, dtype=np.float64)
        tied = train.Linear(8, 8, rng=rng, dtype=np.float64)
        tied.weight = first.weight
        start = made.add(first)
        middle = made.add(train.Linear(8, 8, rng=rng, dtype=np.float64), made.add(train.ReLU(), start))
        made.add(tied, made.add(train.Add(), middle, start))
        return made

    def on_rank(comm, route, **options):
        mesh = train.Mesh(comm, pipeline=comm.size)
        pipe = train.Pipeline(graph(), mesh.pipeline, route=route, micro_batches=5, **options)
        strategy = train.AllReduce(clip_norm=0.01)
        pipe, opt = train.distribute(pipe, sgd(pipe.parameters()), strategy, mesh=mesh)
        for _ in range(2):
            opt.zero_grad()
            pipe.step(X, Y, LOSS)
            opt.step()
        return pipe.state_dict(), strategy.norm

    ((expected, norm),) = threads.run(1, lambda comm: on_rank(comm, "relay"))
    for route in ("relay", "direct"):
        for state, found in threads.run(4, lambda comm, r=route: on_rank(comm, r, replicas=[1, 2, 1], cut=[1, 4])):
            assert_same(state, expected)
            assert found == pytest.approx(norm, rel=1e-12)


def test_a_cut_gives_more_to_a_stage_with_more_ranks():
    assert balanced([1] * 6, [1, 1]) == [0, 3, 6]
    assert balanced([1] * 6, [1, 2]) == [0, 2, 6]
    assert balanced([1] * 6, [2, 1]) == [0, 4, 6]


def test_a_replica_that_raises_is_named_on_all_ranks():
    def broken(x):
        raise ArithmeticError("too hot")

    def on_rank(comm):
        net = chain()
        if comm.rank == 2:
            net.layers[15].forward = broken
        pipe = train.Pipeline(net, comm, replicas=[1, 2], micro_batches=4, cut=[8])
        with pytest.raises(ArithmeticError if comm.rank == 2 else PeerFailure, match="too hot") as caught:
            pipe.step(X, Y, LOSS)
        return str(caught.value)

    found = threads.run(3, on_rank, timeout=20)
    assert found[0] == found[1] == "stage 1 (replica 1) of the pipeline failed: ArithmeticError: too hot"


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"replicas": [1, 1]}, ValueError, r"replicas \[1, 1\] are no 3 ranks, at least 1 for each stage"),
        ({"replicas": [3, 0]}, ValueError, r"replicas \[3, 0\] are no 3 ranks"),
        ({"replicas": []}, ValueError, r"replicas \[\] are no 3 ranks"),
        ({"replicas": [1.5, 1.5]}, TypeError, "replicas are the numbers of ranks of each stage"),
        ({"replicas": 3}, TypeError, "replicas are the numbers of ranks of each stage"),
        ({"replicas": [1, 2], "schedule": "pipedream"}, ValueError, "step at different times, and cannot share"),
        ({"replicas": [1, 2], "cut": [3, 5]}, ValueError, "of 2 stages after the first, not of 1"),
    ],
)
def test_replicas_that_make_no_pipeline(options, kind, words):
    def on_rank(comm):
        with pytest.raises(kind, match=words):
            train.Pipeline(chain(), comm, **options)

    threads.run(3, on_rank)


def test_ranks_that_ask_for_different_replicas():
    def on_rank(comm):
        with pytest.raises(ValueError, match="replicas is|2 of 3 ranks differ from rank 0"):
            train.Pipeline(chain(), comm, replicas=[1, 2] if comm.rank else [2, 1])

    threads.run(3, on_rank)


@pytest.mark.parametrize(
    ("name", "of_rank_0", "of_others"),
    [
        ("chunks", {"schedule": Interleaved1F1B(3)}, {"schedule": Interleaved1F1B(2)}),
        ("cut", {"cut": [4, 9]}, {"cut": [5, 10]}),
        ("cut", {"cut": [4, 9]}, {}),
    ],
)
def test_ranks_that_ask_for_different_stages(name, of_rank_0, of_others):
    def on_rank(comm):
        with pytest.raises(ValueError, match=f"{name} is .* on rank 0" if comm.rank else "2 of 3 ranks differ"):
            train.Pipeline(chain(), comm, micro_batches=3, **(of_others if comm.rank else of_rank_0))

    threads.run(3, on_rank)


def test_a_cut_is_equal_however_it_is_given():
    def on_rank(comm):
        return train.Pipeline(chain(), comm, cut=[4, 9] if comm.rank else np.array([4, 9])).state_dict().keys()

    assert len(set().union(*threads.run(3, on_rank))) == 18
