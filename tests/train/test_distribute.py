"""Buckets and distribute in one process; what happens between ranks is in tests/mpi/test_train_mpi.py."""

import numpy as np
import pytest
from mpi4py import MPI

from collectives import train
from collectives.train.buckets import Buckets, cut


def parts(seed=0, **kwargs):
    net = train.mlp((6,), 3, rng=np.random.default_rng(seed), dtype=np.float64)
    return net, train.SGD(net.parameters(), **{"lr": 0.1, **kwargs})


def batch(n=4):
    return np.random.default_rng(1).standard_normal((n, 6)), np.arange(n) % 3


def backward(net):
    x, y = batch()
    train.CrossEntropyLoss()(net(x), y).backward()


def test_buckets_are_cut_from_the_last_parameter():
    sizes = [100, 3, 50, 2, 200, 1]
    ps = [train.Parameter(np.zeros(n), str(n)) for n in sizes]
    names = [[p.name for p in group] for group in cut(ps, 8 * 60)]
    assert names == [["1"], ["200"], ["2", "50", "3"], ["100"]]
    assert [len(group) for group in cut(ps, 1)] == [1] * 6
    assert len(cut(ps, 1 << 20)) == 1


def test_one_bucket_has_one_dtype():
    ps = [train.Parameter(np.zeros(2, t), t) for t in ("f4", "f8", "f8", "f4")]
    assert [[p.name for p in group] for group in cut(ps, 1 << 20)] == [["f4"], ["f8", "f8"], ["f4"]]


def test_gradients_live_in_the_buckets_and_come_in_order():
    net, _ = parts()
    seen = []
    buckets = Buckets(net, 2048, lambda b: seen.append((b.index, b.samples, b.grads.copy())), None)
    assert len(buckets) > 2
    backward(net)
    assert [index for index, _, _ in seen] == list(range(len(buckets)))
    for bucket, (_, samples, grads) in zip(buckets.buckets, seen, strict=True):
        assert samples == 4
        np.testing.assert_array_equal(grads, np.concatenate([p.grad.ravel() for p in bucket.parameters]))
        assert all(np.shares_memory(p.grad, bucket.flat) for p in bucket.parameters)
        assert bucket.flat.size == bucket.grads.size + 1


def test_the_first_bucket_leaves_before_the_first_layer_is_done():
    """Overlap: when the buckets of later layers are full, the first layer has no gradient yet."""
    net, _ = parts()
    first_layer = []
    Buckets(net, 1, lambda b: first_layer.append(net.parameters()[0].grad.any()), None)
    backward(net)
    assert first_layer == [False] * 4 + [True] * 2


def test_gradients_that_come_in_another_order_leave_in_index_order():
    net, _ = parts()
    order = []
    Buckets(net, 1, lambda b: order.append(b.index), None)
    for p in net.parameters():  # first layer first
        p.ready()
    assert order == list(range(6))


@pytest.mark.parametrize(
    "strategy", [train.AllReduce(bucket_bytes=512), train.AllReduce(average=False), train.NoComm()]
)
def test_one_rank_does_what_the_optimizer_alone_does(strategy):
    net, opt = parts(momentum=0.9)
    plain, plain_opt = parts(momentum=0.9)
    same = train.distribute(net, opt, strategy, comm=MPI.COMM_SELF)
    assert same == (net, opt)
    for _ in range(5):
        for n, o in ((net, opt), (plain, plain_opt)):
            o.zero_grad()
            backward(n)
            o.step()
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        np.testing.assert_allclose(p.data, q.data, atol=1e-14)


def test_wrong_order_of_calls():
    net, opt = train.distribute(*parts(), comm=MPI.COMM_SELF)
    with pytest.raises(RuntimeError, match=r"without a backward.* through 5.bias"):
        opt.step()
    backward(net)
    with pytest.raises(RuntimeError, match="ran twice"):
        backward(net)


def test_what_cannot_be_distributed():
    net, opt = parts()
    _, other = parts()
    with pytest.raises(ValueError, match="not over the parameters"):
        train.distribute(net, other, comm=MPI.COMM_SELF)
    strategy = train.AllReduce()
    train.distribute(net, opt, strategy, comm=MPI.COMM_SELF)
    with pytest.raises(ValueError, match="already"):
        train.distribute(net, opt, comm=MPI.COMM_SELF)
    with pytest.raises(ValueError, match="another network"):
        train.distribute(*parts(), strategy, comm=MPI.COMM_SELF)
    with pytest.raises(ValueError, match="bucket_bytes"):
        train.AllReduce(bucket_bytes=0)
    net, opt = parts()
    net.parameters()[0].data = [1.0]
    with pytest.raises(TypeError, match="NumPy arrays, not list"):
        train.distribute(net, opt, comm=MPI.COMM_SELF)


def test_a_strategy_is_called_at_its_moments():
    calls = []

    class Spy(train.Strategy):
        def on_bucket(self, bucket):
            calls.append("bucket")

        def before_step(self):
            calls.append("before")

        def after_step(self):
            calls.append("after")

        def finish(self):
            calls.append("finish")

    net, opt = train.distribute(*parts(), Spy(), comm=MPI.COMM_SELF)
    data = train.Loader(batch(), 4, comm=MPI.COMM_SELF)
    run = train.Run(comm=MPI.COMM_SELF, state={"net": net, "opt": opt, "data": data})
    for x, y in run.steps(data, epochs=2):
        opt.zero_grad()
        train.CrossEntropyLoss()(net(x), y).backward()
        opt.step()
    assert calls == ["bucket", "before", "after"] * 2 + ["finish"]
    assert opt.strategy.state_dict() == {}
