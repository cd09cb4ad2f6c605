"""Training on several ranks: the same as on one, the same bits everywhere, the same errors everywhere.

Run under MPI, with any number of ranks: ``mpiexec -n 4 python -m pytest --with-mpi tests/mpi/test_train_mpi.py``.
"""

import argparse
import tempfile

import numpy as np
import pytest
from mpi4py import MPI

from collectives import train
from collectives.train import cli
from collectives.train.agree import on_rank_0
from collectives.train.blas_threads import VARIABLES, limit_threads
from collectives.train.data.datasets import load

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
limit_threads(COMM)  # ranks that share cores would otherwise spend them on each other's BLAS threads


def samples(n=150, classes=5):
    rng = np.random.default_rng(3)
    return rng.standard_normal((n, 1, 8, 8)), rng.integers(0, classes, n)


def train_steps(comm, steps, *, batch=24, shard="shuffled", model=train.cnn, seed=0, strategy=None, each=None, n=150):
    """Train for some steps in float64; ``each(net)`` is called after every one. Returns the parameters, flat."""
    data = train.Loader(samples(n), batch, seed=5, comm=comm, shard=shard)
    net = model((1, 8, 8), 5, rng=np.random.default_rng(seed), dtype=np.float64)
    opt = train.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=1e-3)
    strategy = train.AllReduce(bucket_bytes=4096) if strategy is None else strategy
    net, opt = train.distribute(net, opt, strategy, comm=comm)
    loss_fn = train.CrossEntropyLoss()
    while opt.steps < steps:
        for x, y in data:
            opt.zero_grad()
            loss_fn(net(x), y).backward()
            opt.step()
            if each is not None:
                each(net)
            if opt.steps == steps:
                break
    return np.concatenate([p.data.ravel() for p in net.parameters()])


# The last batch of an epoch has 150 - 6 * 24 = 6 samples: shares differ, and with 7 ranks or more some have none.
@pytest.mark.parametrize("model", [train.mlp, train.cnn])
@pytest.mark.parametrize("batch", [24, 3, 1])
def test_all_ranks_together_do_what_one_does(model, batch):
    together = train_steps(COMM, 20, model=model, batch=batch)
    alone = train_steps(MPI.COMM_SELF, 20, model=model, batch=batch)
    assert np.abs(together - alone).max() < 1e-12
    assert np.abs(alone - train_steps(MPI.COMM_SELF, 19, model=model, batch=batch)).max() > 1e-6


@pytest.mark.parametrize("shard", ["shuffled", "strided", "sorted"])
@pytest.mark.parametrize("bucket_bytes", [1, 4096, 1 << 20])
def test_same_bits_on_all_ranks_after_every_step(shard, bucket_bytes):
    same = []
    train_steps(
        COMM,
        20,
        shard=shard,
        strategy=train.AllReduce(bucket_bytes=bucket_bytes),
        each=lambda net: same.append(train.same_bits(net, COMM)),
    )
    assert same == [True] * 20


def test_same_bits_from_run_to_run():
    np.testing.assert_array_equal(train_steps(COMM, 10), train_steps(COMM, 10))


def test_parameters_are_those_of_rank_0():
    seen = []
    train_steps(COMM, 5, seed=RANK, each=lambda net: seen.append(train.same_bits(net, COMM)))
    assert seen == [True] * 5
    np.testing.assert_array_equal(train_steps(COMM, 5, seed=RANK), train_steps(COMM, 5, seed=0))


def test_the_sum_is_the_sum_of_the_ranks_means():
    """With plain gradient descent and equal shares, the sum is p times the average."""
    n = 12 * SIZE

    def one_step(average):
        data = train.Loader(samples(n), n, comm=COMM)
        net = train.mlp((1, 8, 8), 5, rng=np.random.default_rng(0), dtype=np.float64)
        before = net.state_dict()
        opt = train.SGD(net.parameters(), 0.1)
        train.distribute(net, opt, train.AllReduce(average), comm=COMM)
        for x, y in data:
            train.CrossEntropyLoss()(net(x), y).backward()
            opt.step()
        return np.concatenate([(p.data - before[p.name]).ravel() for p in net.parameters()])

    np.testing.assert_allclose(one_step(False), SIZE * one_step(True), atol=1e-13)


def test_the_control_does_not_communicate():
    each = []
    train_steps(COMM, 3, shard="sorted", strategy=train.NoComm(), each=lambda n: each.append(train.same_bits(n, COMM)))
    assert each == [SIZE == 1] * 3


def test_logged_means_are_global():
    data = train.Loader(samples(), 24, comm=COMM)
    run = train.Run(comm=COMM, every=3, progress="lines")
    for x, y in run.steps(data, epochs=2):
        run.log(label=y.mean() if len(y) else 0.0, size=len(x))
    alone = train.Run(comm=MPI.COMM_SELF, every=3, progress="lines")
    for _, y in alone.steps(train.Loader(samples(), 24, comm=MPI.COMM_SELF), epochs=2):
        alone.log(label=y.mean())
    assert len(run.records) == len(alone.records)
    for a, b in zip(run.records, alone.records, strict=True):
        assert (a["samples"], a["step"], a["epoch"]) == (b["samples"], b["step"], b["epoch"])
        assert a["label"] == pytest.approx(b["label"], abs=1e-14)


def test_evaluation_is_global():
    x, y = samples()
    net = train.mlp((1, 8, 8), 5, rng=np.random.default_rng(0))
    alone = train.evaluate(net, x, y, comm=MPI.COMM_SELF)
    assert train.evaluate(net, x, y, comm=COMM) == alone
    own = train.evaluate(net, x, y, comm=COMM, replicated=False)
    assert own["accuracy_min"] == own["accuracy_max"] == alone["accuracy"]


def test_data_come_from_rank_0():
    data = load(None, COMM, "float32")
    assert data.x_train.dtype == np.float32
    assert COMM.allreduce(int(data.y_train.sum())) == SIZE * int(train.digits().y_train.sum())


def test_errors_reach_all_ranks():
    net = train.mlp((4,), 2 + (RANK == SIZE - 1 and SIZE > 1), rng=np.random.default_rng(0))
    opt = train.SGD(net.parameters(), 0.1)
    if SIZE > 1:
        message = "is .* on rank" if RANK == SIZE - 1 else f"1 of {SIZE} ranks differ"
        with pytest.raises(ValueError, match=message):
            train.distribute(net, opt, comm=COMM)
    with pytest.raises(ValueError, match="only here"):
        on_rank_0(COMM, lambda: int("x") if RANK else (_ for _ in ()).throw(ValueError("only here")))
    with pytest.raises(OSError, match="cannot read"):
        load("absent.npz", COMM, "float32")
    run = train.Run(comm=COMM, progress="lines")
    steps = run.steps(train.Loader(samples(SIZE), SIZE, comm=COMM), epochs=1)
    next(steps)
    run.log(loss=float("nan") if RANK == SIZE - 1 else 1.0)
    with pytest.raises(FloatingPointError, match="loss is nan"):
        next(steps)


def test_parameters_that_lie_in_another_order_on_one_rank_are_moved_into_one():
    net = train.mlp((4,), 2, rng=np.random.default_rng(RANK))
    first = net.parameters()[0]
    if RANK == SIZE - 1:
        first.data = np.asfortranarray(first.data)
    train.distribute(net, train.SGD(net.parameters(), 0.1), comm=COMM)
    expected = train.mlp((4,), 2, rng=np.random.default_rng(0)).parameters()[0].data
    np.testing.assert_array_equal(first.data, expected)


@pytest.mark.parametrize("wrong", ["network", "read-only", "optimizer", "strategy"])
def test_what_one_rank_finds_wrong_is_an_error_on_all(wrong):
    def parts():
        net = train.mlp((4,), 2, rng=np.random.default_rng(0))
        return net, train.SGD(net.parameters(), 0.1)

    (net, opt), strategy = parts(), train.AllReduce()
    if RANK == SIZE - 1 and wrong == "network":
        net.parameters()[0].data = [1.0]
    elif RANK == SIZE - 1 and wrong == "read-only":
        net.parameters()[0].data.flags.writeable = False
    elif RANK == SIZE - 1 and wrong == "optimizer":
        opt = parts()[1]
    elif RANK == SIZE - 1:
        train.distribute(*parts(), strategy, comm=MPI.COMM_SELF)
    error, words = {
        "network": (TypeError, "not list"),
        "read-only": (ValueError, "is read-only"),
        "optimizer": (ValueError, "not over the parameters"),
        "strategy": (ValueError, "another network"),
    }[wrong]
    with pytest.raises(error, match=words if RANK == SIZE - 1 else f"^rank {SIZE - 1}: .*{words}"):
        train.distribute(net, opt, strategy, comm=COMM)
    assert COMM.allreduce(1) == SIZE


def test_threads_may_be_set_on_some_ranks_only(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if RANK == 0:
        monkeypatch.setenv(VARIABLES[-1], "1")
    hint = limit_threads(COMM)
    assert COMM.allreduce(1) == SIZE
    assert hint is None or (RANK > 0 and "threadpoolctl" in hint)


def test_the_demo():
    """Each rank knows only some of the digits; together they know all, alone they do not."""
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    with tempfile.TemporaryDirectory() as mine:
        out = COMM.bcast(mine)
        words = ["--out", out, "--progress", "lines", *(["--no-control"] if SIZE < 3 else [])]
        assert cli.main(parser.parse_args(words), COMM) == 0
        log = COMM.bcast(train.read_log(f"{out}/log.json") if RANK == 0 else None)
    final = {name: run["records"][-1]["accuracy"] for name, run in log["runs"].items()}
    assert final["allreduce"] >= 0.96  # 0.969 to 0.992 over six seeds on 3 ranks
    if SIZE >= 3:
        assert final["control"] < 0.5
