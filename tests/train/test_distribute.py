"""Buckets and distribute in one process; what happens between ranks is in tests/mpi/test_train_mpi.py."""

import copy
import functools
import pickle
import sys

import numpy as np
import pytest
from mpi4py import MPI

from collectives import train
from collectives.train import threads
from collectives.train.flat.buckets import Buckets, fuse
from collectives.train.flat.model import Slot
from collectives.train.flat.numpy_model import NumpyModel


def parts(seed=0, **kwargs):
    net = train.mlp((6,), 3, rng=np.random.default_rng(seed), dtype=np.float64)
    return net, train.SGD(net.parameters(), **{"lr": 0.1, **kwargs})


def batch(n=4):
    return np.random.default_rng(1).standard_normal((n, 6)), np.arange(n) % 3


def backward(net):
    x, y = batch()
    train.CrossEntropyLoss()(net(x), y).backward()


def slots(sizes, dtypes=None, groups=None):
    count = len(sizes)
    kinds = zip(sizes, dtypes or ["f8"] * count, groups or [0] * count, strict=True)
    return [Slot(f"{i}", (n,), dtype, i, group) for i, (n, dtype, group) in enumerate(kinds)]


def names(buckets):
    return [[slot.name for slot in bucket] for bucket in buckets]


def test_buckets_are_cut_from_the_last_parameter():
    found = slots([100, 3, 50, 2, 200, 1])
    assert names(fuse(found, 8 * 60)) == [["5"], ["4"], ["3", "2", "1"], ["0"]]
    assert names(fuse(found, 1)) == [["5"], ["4"], ["3"], ["2"], ["1"], ["0"]]
    assert names(fuse(found, 1 << 20)) == [["5", "4", "3", "2", "1", "0"]]


def test_one_bucket_has_one_dtype_and_one_group():
    found = slots([2] * 6, ["f4", "f8", "f8", "f4", "f4", "f4"], [0, 0, 0, 0, 1, 0])
    assert names(fuse(found, 1 << 20)) == [["4"], ["2", "1"], ["5", "3", "0"]]


def buckets_of(net, bucket_bytes, on_bucket):
    buckets = Buckets(NumpyModel(net), bucket_bytes, None)
    buckets.on_bucket = on_bucket
    return buckets


def test_parameters_and_gradients_live_in_the_buckets_and_come_in_order():
    net, _ = parts()
    before = net.state_dict()
    seen = []
    buckets = buckets_of(net, 2048, lambda b: seen.append((b.index, b.samples, b.grads.copy())))
    assert len(buckets) > 2
    backward(net)
    assert [index for index, _, _ in seen] == list(range(len(buckets)))
    by_name = {p.name: p for p in net.parameters()}
    for bucket, (_, samples, grads) in zip(buckets.list, seen, strict=True):
        assert samples == 4
        mine = [by_name[slot.name] for slot in bucket.parameters]
        np.testing.assert_array_equal(grads, np.concatenate([p.grad.ravel() for p in mine]))
        np.testing.assert_array_equal(bucket.data, np.concatenate([before[p.name].ravel() for p in mine]))
        assert all(np.shares_memory(p.grad, bucket.flat) and np.shares_memory(p.data, bucket.data) for p in mine)
        assert bucket.flat.size == bucket.grads.size + 1


def test_the_first_bucket_leaves_before_the_first_layer_is_done():
    """Overlap: when the buckets of later layers are full, the first layer has no gradient yet."""
    net, _ = parts()
    first_layer = []
    buckets_of(net, 1, lambda b: first_layer.append(net.parameters()[0].grad.any()))
    backward(net)
    assert first_layer == [False] * 4 + [True] * 2


def test_gradients_that_come_in_another_order_leave_in_index_order():
    net, _ = parts()
    order = []
    buckets_of(net, 1, lambda b: order.append(b.index))
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


@pytest.mark.parametrize("machines", [1, 2])
def test_what_is_saved_by_bucket_has_the_same_buckets_on_any_number_of_machines(machines, monkeypatch):
    module = sys.modules["collectives.train.distribute"]
    monkeypatch.setattr(module, "LONGEST", 300)
    monkeypatch.setattr(module, "ON_ONE_MACHINE", 10**6)
    monkeypatch.setattr(MPI, "Get_processor_name", lambda: f"node{threads.job.current().rank % machines}")

    def count(strategy, dtype=np.float64):
        def on_rank(comm):
            net = train.mlp((6,), 3, rng=np.random.default_rng(0), dtype=dtype)
            _, opt = train.distribute(net, train.SGD(net.parameters(), 0.1), strategy(), comm=comm)
            opt.strategy.close()
            return len(opt.strategy.buckets)

        return threads.run(2, on_rank, timeout=20)[0]

    for depends in (train.AllReduce, train.LocalSGD, train.NoComm):
        assert (count(depends) == 1) == (machines == 1)
    by_bucket = [train.ParameterServer, train.AsyncEASGD, train.PeerAsync]
    by_bucket += [functools.partial(train.AllReduce, shard=1), functools.partial(train.AllReduce, shard=2)]
    for strategy in [*by_bucket, lambda: train.AllReduce(compression=train.PowerSGD(rank=2))]:
        assert count(strategy) > 1
    assert count(train.AllReduce, np.float16) > 1


def test_wrong_order_of_calls():
    net, opt = train.distribute(*parts(), comm=MPI.COMM_SELF)
    with pytest.raises(RuntimeError, match=r"without a backward.* through 1.weight, .*5.bias"):
        opt.step()
    backward(net)
    backward(net)
    with pytest.raises(RuntimeError, match="ran twice"):
        opt.step()


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
    with pytest.raises(TypeError, match=r"train.Sequential or a torch.nn.Module, not list"):
        train.distribute([], opt, comm=MPI.COMM_SELF)
    with pytest.raises(TypeError, match="one of train's optimizers, not object"):
        train.distribute(parts()[0], object(), comm=MPI.COMM_SELF)
    with pytest.raises(ValueError, match="unused must be one of error, zero"):
        train.distribute(*parts(), comm=MPI.COMM_SELF, unused="no")


def test_a_network_is_distributed_once_and_its_copies_are_free():
    """Two strategies would both exchange the gradients of one parameter."""
    net, opt = train.distribute(*parts(), comm=MPI.COMM_SELF)
    with pytest.raises(ValueError, match=r"1.weight, .*5.bias: distributed already"):
        train.distribute(net, train.SGD(net.parameters(), 0.1), comm=MPI.COMM_SELF)
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        backward(made)  # which the strategy does not notice
        _, other = train.distribute(made, train.SGD(made.parameters(), 0.1), comm=MPI.COMM_SELF)
        backward(made)
        other.step()
        assert any((p.data != q.data).any() for p, q in zip(made.parameters(), net.parameters(), strict=True))
    backward(net)
    opt.step()


def test_what_is_no_strategy():
    for strategy in (train.AllReduce, "allreduce"):
        with pytest.raises(TypeError, match="derived from train.Strategy, not"):
            train.distribute(*parts(), strategy, comm=MPI.COMM_SELF)

    def on_rank(comm):
        with pytest.raises(TypeError, match="derived from train.Strategy, not"):
            train.distribute(*parts(), "allreduce" if comm.rank == 1 else train.AllReduce(), comm=comm)

    threads.run(2, on_rank, timeout=10)


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


@pytest.mark.parametrize("micro", [False, True])
@pytest.mark.parametrize("strategy", [train.NoComm, train.Strategy])
def test_the_gradient_of_no_samples_is_zeros(strategy, micro):
    """It may be no number, as that of a learnt weight of the loss. A strategy need not know that."""
    net, opt = parts()
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: p.grad.fill(np.nan))
    net, opt = train.distribute(net, opt, strategy(), comm=MPI.COMM_SELF)
    before = net.state_dict()

    def backward_of_nothing():
        net(np.zeros((0, 6))).backward(np.zeros((0, 3)))

    if micro:
        with opt.strategy.no_sync():
            backward_of_nothing()
    backward_of_nothing()
    opt.step()
    for p in net.parameters():
        np.testing.assert_array_equal(p.data, before[p.name])
        assert not p.grad.any()
