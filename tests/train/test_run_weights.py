"""Run(check_weights=N): who diverged is said on all ranks, at the next check. On ranks that are threads."""

import numpy as np
import pytest
from mpi4py import MPI

from collectives import train


def parts(comm, strategy):
    rng = np.random.default_rng(0)
    data = train.Loader((rng.standard_normal((64, 6)), np.arange(64) % 3), 8, comm=comm)
    net = train.mlp((6,), 3, rng=np.random.default_rng(0))
    opt = train.SGD(net.parameters(), lr=0.1)
    if strategy is not None:
        train.distribute(net, opt, strategy, comm=comm)
    return {"net": net, "opt": opt, "data": data}


def trained(comm, strategy, change, epochs=2, **options):
    """The run, and its error; ``change(step, net)`` comes after each step."""
    state = parts(comm, strategy)
    run = train.Run(comm=comm, state=state, progress="lines", **options)
    try:
        for x, y in run.steps(state["data"], epochs=epochs):
            state["opt"].zero_grad()
            train.CrossEntropyLoss()(state["net"](x), y).backward()
            state["opt"].step()
            change(run.step + 1, state["net"])
    except train.WeightsDiverged as error:
        return run, error
    return run, None


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_equal_weights_pass(shard):
    done = train.threads.run(3, lambda comm: trained(comm, train.AllReduce(shard=shard), nothing, check_weights=1))
    assert [(run.step, error) for run, error in done] == [(16, None)] * 3


def nothing(step, net):
    """No change."""


@pytest.mark.parametrize(("every", "found"), [(1, 5), (3, 6), (8, 8)])
def test_rank_and_tensor_that_diverged_are_named_on_all_ranks(every, found):
    def on_rank(comm):
        def change(step, net):
            if step == 5 and comm.rank == 2:
                net.parameters()[3].data[...] += 1

        return trained(comm, train.AllReduce(), change, check_weights=every)

    for run, error in train.threads.run(4, on_rank):
        assert error.tensors == {2: ["3.bias"]}
        assert f"at step {found}, on 1 of 4 ranks: rank 2 in 3.bias" in str(error)
        assert run.step == found


def test_diverged_weights_are_not_saved(tmp_path):
    def on_rank(comm):
        def change(step, net):
            if step == 6 and comm.rank == 1:
                net.parameters()[0].data[0, 0] += 1

        options = {"out": tmp_path, "check_weights": 3, "checkpoint_every": 3}
        run, error = trained(comm, train.AllReduce(), change, **options)
        run.finish()
        return error

    for error in train.threads.run(3, on_rank):
        assert error.tensors == {1: ["1.weight"]}
    assert [path.name for path in tmp_path.glob("checkpoints/train/*")] == ["step-000000003"]


@pytest.mark.parametrize(("strategy", "which"), [(train.AllReduce, 0), (train.NoComm, 1)])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, strategy, which):
    """The checkpoint before stays; all ranks know which weights of which rank are meant."""

    def on_rank(comm):
        def change(step, net):
            if step == 16 and comm.rank >= which:
                net.parameters()[1].data[0] = np.inf

        options = {"out": tmp_path, "checkpoint_every": 8, "keep": 1}
        trained(comm, strategy(), change, epochs=1, **options)
        with pytest.raises(FloatingPointError) as caught:
            trained(comm, strategy(), change, **options)
        return str(caught.value)

    for rank, text in enumerate(train.threads.run(2, on_rank)):
        assert f"net/1.bias of rank {max(rank, which)} is not finite after step 16" in text
    assert [path.name for path in tmp_path.glob("checkpoints/train/*")] == ["step-000000008"]


@pytest.mark.parametrize(
    ("strategy", "every", "words"),
    [
        (train.NoComm, 3, "NoComm lets the weights of ranks differ"),
        (lambda: None, 3, "needs an optimizer with a strategy"),
        (train.AllReduce, 0, "at least 1"),
    ],
)
def test_what_cannot_be_checked(strategy, every, words):
    state = parts(MPI.COMM_SELF, strategy())
    with pytest.raises(ValueError, match=words):
        train.Run(comm=MPI.COMM_SELF, state=state, check_weights=every)
