"""AllReduce in one process: arguments, the loss scale, sums of squares; between ranks: tests/mpi/test_train_sync.py."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from local_training import NEAR, backward, batch, begin, flat, on_threads, steps, still, trained, uneven
from mpi4py import MPI

from collectives import train
from collectives.train.flat.memory import cut, own, squares
from collectives.train.strategies.loss_scale import LossScale
from collectives.train.strategies.means import Means, bound
from collectives.train.threads.request import Request


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bucket_bytes": 0}, "bucket_bytes"),
        ({"clip_norm": 0.0}, "clip_norm must be positive"),
        ({"clip_norm": float("inf")}, "clip_norm must be positive"),
        ({"nonfinite": "ignore"}, "one of raise, skip, allow"),
        ({"shard": 3}, "shard must be 0, 1 or 2"),
        ({"shard": 1, "algorithm": "ring"}, "with shard there is none"),
        ({"compression": train.PowerSGD(), "shard": 1}, "compression exchanges means"),
        ({"compression": train.PowerSGD(), "average": False}, "compression exchanges means"),
        ({"loss_scale": "static"}, "a number or 'dynamic'"),
        ({"loss_scale": 0.0}, "loss_scale must be positive"),
    ],
)
def test_arguments_that_make_no_sense(options, words):
    with pytest.raises(ValueError, match=words):
        train.AllReduce(**options)


def test_the_dynamic_scale_halves_at_once_and_doubles_later():
    scale = LossScale("dynamic", growth=3)
    for finite in (False, True, True, True, True):
        scale.update(finite)
    assert (scale.value, scale.good) == (65536.0, 1)
    other = LossScale("dynamic", growth=3)
    other.load_state_dict(scale.state_dict())
    for one in (scale, other):
        one.update(True)
        one.update(True)
    assert scale.value == other.value == 131072.0
    fixed = LossScale(8)
    fixed.update(False)
    assert fixed.value == 8.0


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_scaled_loss_gives_the_same_step(scale):
    def step(strategy):
        net = train.mlp((6,), 3, rng=np.random.default_rng(0), dtype=np.float64)
        net, opt = train.distribute(net, train.SGD(net.parameters(), 0.1), strategy, comm=MPI.COMM_SELF)
        x = np.random.default_rng(1).standard_normal((4, 6))
        loss = train.CrossEntropyLoss()(net(x), np.arange(4) % 3)
        scaled = strategy.scale(loss)
        assert float(scaled) == scale * float(loss) or strategy.loss_scale.value == 1
        scaled.backward()
        opt.step()
        return net.state_dict(), strategy.norm

    (plain, norm), (scaled, scaled_norm) = step(train.AllReduce()), step(train.AllReduce(loss_scale=scale))
    assert scaled_norm == pytest.approx(norm)
    for name, value in plain.items():
        np.testing.assert_allclose(scaled[name], value, atol=1e-15)


class Late:
    """A communicator of one rank, whose requests are complete only when they are waited for."""

    def __init__(self):
        self.lengths = []

    def __getattr__(self, name):
        return getattr(MPI.COMM_SELF, name)

    def Iallreduce(self, where, vector, op):
        self.lengths.append(len(vector))
        request = MPI.COMM_SELF.Iallreduce(where, vector, op=op)
        return SimpleNamespace(Test=lambda: False, Wait=request.Wait)


def test_buckets_do_not_wait_for_the_number_of_samples():
    """Of the first step they do. Then it is taken to be that of the step before, which is corrected if it is not."""
    comm, nets = Late(), []
    for distributed in (True, False):
        net = train.mlp((6,), 3, rng=np.random.default_rng(0), dtype=np.float64)
        opt = train.SGD(net.parameters(), 0.1)
        if distributed:
            train.distribute(net, opt, train.AllReduce(bucket_bytes=1), comm=comm)
        for samples in (4, 4, 1, 7):
            comm.lengths.clear()
            opt.zero_grad()
            x = np.random.default_rng(1).standard_normal((samples, 6))
            train.CrossEntropyLoss()(net(x), np.arange(samples) % 3).backward()
            assert len(comm.lengths) == distributed * (1 if opt.steps == 0 else 1 + 6)
            opt.step()
        nets.append(net)
    for p, q in zip(*(net.parameters() for net in nets), strict=True):
        np.testing.assert_allclose(p.data, q.data, atol=1e-14)


def test_a_bucket_that_waits_for_the_sum_of_samples_keeps_its_own_number():
    """With shard=2 the next micro-batch has set the bucket's number of samples when the bucket of this one is sent."""

    class Two:
        """Two ranks' communicator; the other rank has 6 samples, and nothing is complete before it is waited for."""

        size = 2

        def Iallreduce(self, _, count, op):
            return SimpleNamespace(Test=lambda: False, Wait=lambda: count.__iadd__(6))

    factors = []
    bucket = SimpleNamespace(index=0, samples=2, put_scaled=lambda factor, target: factors.append(factor))
    means = Means(Two(), lambda *_: SimpleNamespace(Wait=lambda: None), None, weighted=True, guess=True)
    means.add(bucket)
    bucket.samples = 4
    assert means.finish() == (8, 1.0)
    assert factors == [2 / 8]


def test_a_sum_leaves_out_the_gradient_of_no_samples():
    """The mean over none may be NaN."""
    factors = []
    wait = SimpleNamespace(Wait=lambda: None)
    means = Means(SimpleNamespace(size=2), lambda *_: wait, None, weighted=False, guess=False)
    for samples in (3, 0):
        means.add(SimpleNamespace(index=0, samples=samples, put_scaled=lambda factor, target: factors.append(factor)))
        means.finish()
    assert factors == [1, 0]


def test_a_scale_that_becomes_too_small_is_an_error():
    net = train.mlp((6,), 3, rng=np.random.default_rng(0))
    strategy = train.AllReduce(loss_scale="dynamic")
    net, opt = train.distribute(net, train.SGD(net.parameters(), 0.1), strategy, comm=MPI.COMM_SELF)
    x = np.full((1, 6), np.nan)

    def skip(count):
        for _ in range(count):
            strategy.scale(train.CrossEntropyLoss()(net(x), np.zeros(1, int))).backward()
            opt.step()

    skip(40)
    with pytest.raises(FloatingPointError, match="is not finite"):
        skip(1)
    assert strategy.skipped == 40


@pytest.mark.parametrize(
    ("saved", "loaded", "value"),
    [("dynamic", "dynamic", 32768.0), (1.0, 1024.0, 1024.0), (1024.0, 1.0, 1.0), (1.0, "dynamic", 65536.0),
     ("dynamic", 8.0, 8.0)],
)  # fmt: skip
def test_a_checkpoint_has_a_dynamic_scale_only(saved, loaded, value):
    before, after = LossScale(saved), LossScale(loaded)
    before.update(False)
    after.load_state_dict(before.state_dict())
    assert after.value == value


def test_a_compression_serves_one_network():
    """It keeps the residuals of that one's buckets."""
    compression = train.Int8()
    for one in range(2):
        net = train.mlp((6,), 3, rng=np.random.default_rng(0))
        strategy = train.AllReduce(compression=compression)
        with contextlib.nullcontext() if one == 0 else pytest.raises(ValueError, match="serves another network"):
            train.distribute(net, train.SGD(net.parameters(), 0.1), strategy, comm=MPI.COMM_SELF)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sums_of_squares(dtype):
    x = np.random.default_rng(0).standard_normal(100_001).astype(dtype)
    assert squares(x) == pytest.approx((x.astype(np.float64) ** 2).sum(), rel=1e-6)
    assert squares(np.full(3, np.finfo(np.float32).max, np.float32)) == pytest.approx(3 * 3.4028235e38**2)
    for bad in (np.inf, np.nan):
        x[70_000] = bad
        assert not np.isfinite(squares(x))


@pytest.mark.parametrize("count", [0, 1, 5, 12])
@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_parts_cover_an_array(count, ranks):
    ends = [own(count, rank, ranks) for rank in range(ranks)]
    assert [stop - start for start, stop in ends] == cut(count, ranks)
    assert [start for start, _ in ends] == [0, *[stop for _, stop in ends[:-1]]]
    assert ends[-1][1] == count


def test_an_optimizer_that_has_made_steps_is_not_sharded():
    net = train.mlp((6,), 3, rng=np.random.default_rng(0))
    opt = train.SGD(net.parameters(), 0.1)
    opt.step()
    with pytest.raises(ValueError, match="has made steps already"):
        train.distribute(net, opt, train.AllReduce(shard=1), comm=MPI.COMM_SELF)


def test_a_state_of_other_buckets_is_refused():
    def sharded(bucket_bytes):
        net = train.mlp((6,), 3, rng=np.random.default_rng(0))
        strategy = train.AllReduce(bucket_bytes=bucket_bytes, shard=1)
        return train.distribute(net, train.SGD(net.parameters(), 0.1), strategy, comm=MPI.COMM_SELF)[1]

    state = sharded(1 << 20).state_dict()
    with pytest.raises(ValueError, match="for other buckets"):
        sharded(1).load_state_dict(state)
    leaf = state["optimizer"]["velocity"]["bucket 0"]
    short = {"bucket 0": leaf._replace(array=leaf.array[:-1])}
    with pytest.raises(ValueError, match="a shard of another cut"):
        sharded(1 << 20).load_state_dict({**state, "optimizer": {**state["optimizer"], "velocity": short}})


def test_networks_that_ranks_step_in_another_order():
    """Their gradients were summed up, without a word, if the networks had the same shapes."""

    def rank(comm):
        pairs = []
        for seed in (1, 2):
            net = train.mlp((4,), 2, rng=np.random.default_rng(seed))
            pairs.append(train.distribute(net, train.SGD(net.parameters(), 0.1), comm=comm))
        net, opt = pairs[comm.rank]
        train.CrossEntropyLoss()(net(np.ones((2, 4))), np.zeros(2, int)).backward()
        with pytest.raises(RuntimeError, match="in another order than other ranks"):
            opt.step()
        return True

    assert train.threads.run(2, rank, timeout=10) == [True, True]


MEANS = {
    "allreduce": lambda: train.AllReduce(bucket_bytes=2048),
    "shard 2": lambda: train.AllReduce(bucket_bytes=2048, shard=2),
    "compression": lambda: train.AllReduce(bucket_bytes=2048, compression=train.PowerSGD(rank=1)),
    "local_sgd": lambda: train.LocalSGD(start=5),
}


@pytest.mark.parametrize("make", MEANS.values(), ids=MEANS)
def test_networks_and_the_program_communicate_apart(make, monkeypatch):
    """Rank 1 knows the number of samples in backward(), rank 0 not before step(). So they send at different moments."""

    def in_time(request, status=None):
        is_the_number = " of 1 float64" in request._call.parts[request._rank][0]
        return request._rank == 1 and is_the_number and request.Wait()

    def rank(comm):
        pairs = [begin(comm, make()) for _ in range(2)]
        for step in range(2):
            for net, opt in pairs:
                opt.zero_grad()
                backward(net, *batch(step, comm.rank, uneven(comm.size)))
            assert comm.allreduce(1) == 2
            for _, opt in pairs:
                opt.step()
        return [flat(net) for net, _ in pairs]

    expected = on_threads(2, make, 2, shares=uneven)
    monkeypatch.setattr(Request, "Test", in_time)
    for nets, alone in zip(train.threads.run(2, rank, timeout=20), expected, strict=True):
        for net in nets:
            np.testing.assert_allclose(net, alone, atol=NEAR)


def test_zero_grad_drops_a_micro_batch_of_which_a_rank_has_no_samples():
    """With shard=2 its buckets are under way on all ranks."""

    def rank(comm):
        net, opt = begin(comm, train.AllReduce(shard=2))
        with opt.strategy.no_sync():
            backward(net, *batch(7, comm.rank, uneven(comm.size)))
        steps(net, opt, comm, 0, 2)  # it begins with zero_grad
        return flat(net)

    found = train.threads.run(3, rank, timeout=20)
    expected = train.threads.run(3, lambda comm: trained(comm, train.AllReduce(shard=2), 2), timeout=20)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_weights_of_16_bits_that_the_program_changes(shard):
    """The step goes on from them. What it has not changed keeps its master weight."""

    def rank(comm):
        net, opt = begin(comm, train.AllReduce(shard=shard), still, np.float16)
        parts, expected = opt.strategy._parts, flat(net)
        for part in parts:
            part.data *= 1 + np.float32(2**-13)  # less than what float16 tells apart
        kept = [part.data.copy() for part in parts]
        expected[:2] = net.parameters()[0].data[0, :2] = [0.5, -0.25]
        steps(net, opt, comm, 0, 1)
        np.testing.assert_array_equal(flat(net), expected)
        return sum((part.data != before).sum() for part, before in zip(parts, kept, strict=True))

    assert sum(train.threads.run(2, rank, timeout=20)) == (2 if shard else 4)


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_uneven_parts_do_not_leave_the_range_of_float16(shard):
    """The gradient of rank 0 counts 1.5 times as much as in a mean of ranks; so much of it would be infinite."""

    def rank(comm):
        net = train.Sequential(train.Linear(1, 1, rng=np.random.default_rng(0), dtype=np.float16))
        strategy = train.AllReduce(shard=shard)
        net, opt = train.distribute(net, train.SGD(net.parameters(), 1.0), strategy, comm=comm)
        for p in net.parameters():
            p.data[...] = 0
        samples, gradient = ((3, 54000), (1, 20000))[comm.rank]
        net(np.ones((samples, 1))).backward(np.full((samples, 1), gradient / samples, np.float16))
        opt.step()
        return flat(net)

    mean = (3 * 54000 + 20000) / 4
    np.testing.assert_allclose(train.threads.run(2, rank, timeout=20), np.full((2, 2), -mean), rtol=2**-10)


def test_a_bound_is_one_for_equal_parts_and_never_too_large():
    drawn = np.random.default_rng(0).poisson(3, (50, 6))
    for parts in ([5, 5, 5], [7], [3, 1], [1, 0, 0, 0, 0, 0, 0, 0], [4, 4, 4, 3], *drawn):
        factor = bound(len(parts), float(sum(parts)), float(sum(n * n for n in parts)))
        assert factor * max(parts) * len(parts) <= sum(parts)
        assert np.log2(factor) == int(np.log2(factor))
        assert (factor == 1) == (len(set(parts)) == 1)
