"""AllReduce in one process: arguments, the loss scale, sums of squares; between ranks: tests/mpi/test_train_sync.py."""

from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from collectives import train
from collectives.train.flat.memory import cut, own, squares
from collectives.train.strategies.loss_scale import LossScale
from collectives.train.strategies.means import Means


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
