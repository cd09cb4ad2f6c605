"""Synchronous training of NumPy networks on ranks: accumulation, clipping, ZeRO, mixed precision, errors.

In float64 the only difference to one process is the order in which gradients are added up: 1e-12 is far above that
error, and far below the effect of a wrong weight.
"""

import contextlib

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import collectives
from collectives import train

COMM = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
NEAR = 1e-12
RNG = np.random.default_rng(3)
X, Y = RNG.standard_normal((30, 8)), RNG.integers(0, 3, 30)
SHARES = [30] if SIZE == 1 else [19, 11, *[0] * (SIZE - 2)]  # uneven, some are empty
START = sum(SHARES[:RANK])
MINE = slice(START, START + SHARES[RANK])
OPTIMIZERS = {
    "sgd": lambda p: train.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: train.Adam(p, 0.01, weight_decay=0.01),
    "adamw": lambda p: train.AdamW(p, 0.01),
}


def parts(optimizer, dtype=np.float64):
    net = train.mlp((8,), 3, rng=np.random.default_rng(1), dtype=dtype)
    return net, OPTIMIZERS[optimizer](net.parameters())


def flat(net):
    return np.concatenate([p.data.ravel().astype(np.float64) for p in net.parameters()])


def backward(net, x, y, scale=lambda loss: loss):
    scale(train.CrossEntropyLoss()(net(x), y)).backward()


def steps(net, opt, count, x, y, micro=1):
    """Train, in micro-batches of different lengths."""
    cuts = np.linspace(0, 1, micro + 1) ** 2 * len(x)
    cuts = np.round(cuts).astype(int)
    for _ in range(count):
        opt.zero_grad()
        for i, (start, stop) in enumerate(zip(cuts, cuts[1:], strict=False)):
            with opt.strategy.no_sync() if i < micro - 1 else contextlib.nullcontext():
                backward(net, x[start:stop], y[start:stop], getattr(opt.strategy, "scale", lambda loss: loss))
        opt.step()


def together(optimizer, count=6, micro=1, dtype=np.float64, **options):
    net, opt = parts(optimizer, dtype)
    net, opt = train.distribute(net, opt, train.AllReduce(bucket_bytes=2048, **options), comm=COMM)
    steps(net, opt, count, X[MINE], Y[MINE], micro)
    return net, opt


def alone(optimizer, count=6, dtype=np.float64, clip=None):
    """What one process computes with all samples, without `distribute`."""
    net, opt = parts(optimizer, dtype)
    for _ in range(count):
        opt.zero_grad()
        backward(net, X, Y)
        if clip is not None:
            norm = np.sqrt(sum((p.grad**2).sum() for p in net.parameters()))
            for p in net.parameters():
                p.grad *= min(1, clip / (norm + 1e-6))
        opt.step()
    return flat(net)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_uneven_shares_and_micro_batches_give_what_one_process_computes(optimizer, shard, micro, clip):
    net, _ = together(optimizer, micro=micro, shard=shard, clip_norm=clip)
    assert np.abs(flat(net) - alone(optimizer, clip=clip)).max() < NEAR
    assert train.same_bits(net, COMM)


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_float16_with_master_weights_is_near_to_float32(shard):
    """Roundings of 2^-11 in each layer make an error of about 1 % in a step, which grows to 3 % of the way that the
    weights go in six steps. A wrong weight of a rank makes more than 30 %."""
    net, opt = together("sgd", dtype=np.float16, loss_scale="dynamic", shard=shard)
    steps(net, opt, opt.strategy.skipped, X[MINE], Y[MINE])
    assert net.parameters()[0].data.dtype == np.float16
    expected, begin = alone("sgd", dtype=np.float32), flat(parts("sgd")[0])
    assert np.linalg.norm(flat(net) - expected) < 0.06 * np.linalg.norm(expected - begin)
    assert train.same_bits(net, COMM)
    assert opt.strategy.state_dict()["loss_scale"]["value"] == 65536.0 / 2**opt.strategy.skipped


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("first", ["net", "opt"])
def test_a_saved_state_goes_on_with_the_same_bits(dtype, shard, first):
    net, opt = together("adam", 3, dtype=dtype, shard=shard)
    weights, state = net.state_dict(), opt.state_dict()
    steps(net, opt, 3, X[MINE], Y[MINE])
    again, other = together("adam", 0, dtype=dtype, shard=shard)
    if first == "net":
        again.load_state_dict(weights)
    other.load_state_dict(state)
    if first == "opt":
        again.load_state_dict(weights)
    steps(again, other, 3, X[MINE], Y[MINE])
    np.testing.assert_array_equal(flat(net), flat(again))


COMPRESSIONS = {  # with the relative error of a result beside what residuals keep
    "float16": (train.Float16Wire, 2**-10),
    "bfloat16": (train.BFloat16Wire, 2**-7),
    "int8": (train.Int8, 2**-20),
    "topk": (lambda: train.TopK(0.05), 2**-20),
    "powersgd": (lambda: train.PowerSGD(1), 2**-20),
}


@pytest.mark.parametrize("kind", COMPRESSIONS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_of_16_bit_gradients_a_compression_loses_what_it_keeps_in_float32(kind, dtype, scale):
    """The gradient is constant, and exact in 16 bits. What weights have gone, and residuals, are together its sum."""
    make, near = COMPRESSIONS[kind]
    net = train.Sequential(train.Linear(40, 30, rng=np.random.default_rng(0), dtype=dtype))
    strategy = train.AllReduce(compression=make(), loss_scale=scale)
    net, opt = train.distribute(net, train.SGD(net.parameters(), 1.0), strategy, comm=COMM)
    rng = np.random.default_rng(RANK)
    x, grad = rng.integers(1, 5, (1, 40)), rng.integers(-4, 5, (1, 30))
    mean = {"0.weight": COMM.allreduce(grad.T * x) / SIZE, "0.bias": COMM.allreduce(grad[0]) / SIZE}
    (bucket,) = strategy.buckets.list
    expected = np.concatenate([mean[slot.name].ravel() for slot in bucket.parameters])
    before = opt.state_dict()["masters"]["bucket 0"]
    for _ in range(5):
        opt.zero_grad()
        net(x).backward((scale * grad).astype(dtype))
        opt.step()
    left = np.zeros_like(expected)
    if strategy.compression.per_rank:
        mine = strategy.state_dict()["compression"]["0"]["residual"]
        assert mine.dtype == np.float32
        left = COMM.allreduce(mine.astype(np.float64)) / SIZE
        exact = kind == "powersgd" and SIZE == 1  # one rank's gradient has rank 1
        assert kind == "int8" or exact or np.abs(left).max() > 1
    gone = before - opt.state_dict()["masters"]["bucket 0"]
    np.testing.assert_allclose(gone + left, 5 * expected, rtol=0, atol=80 * near)
    assert train.same_bits(net, COMM)
    if not strategy.compression.per_rank:
        np.testing.assert_allclose(net.parameters()[0].grad.astype(np.float64), mean["0.weight"], rtol=2**-6)


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_16_bit_gradients_that_are_not_finite_on_one_rank_are_skipped_by_all(kind):
    net, opt = together("sgd", 2, dtype=np.float16, compression=COMPRESSIONS[kind][0](), nonfinite="skip")
    before = flat(net)
    backward(net, X[:4] * (np.inf if RANK == SIZE - 1 else 1), Y[:4])
    opt.step()
    assert opt.strategy.skipped == 1
    np.testing.assert_array_equal(flat(net), before)
    steps(net, opt, 2, X[MINE], Y[MINE])
    assert opt.strategy.skipped == 1
    assert np.isfinite(flat(net)).all()
    assert train.same_bits(net, COMM)


def test_weights_that_are_loaded_alone_reach_the_master_weights():
    net, opt = together("sgd", 1, dtype=np.float16)
    weights = {name: np.zeros_like(value) for name, value in net.state_dict().items()}
    net.load_state_dict(weights)
    train.set_lr(opt, 0.0)
    steps(net, opt, 1, X[MINE], Y[MINE])
    assert not flat(net).any()


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "circulant"])
def test_every_algorithm_gives_the_same_result(algorithm):
    net, _ = together("sgd", algorithm=algorithm)
    assert np.abs(flat(net) - alone("sgd")).max() < NEAR


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_ranks_without_mpi_extensions_do_the_same(shard):
    """mpi4py's own communicator has neither a heap nor a mean."""
    net, opt = parts("adam")
    net, opt = train.distribute(net, opt, train.AllReduce(bucket_bytes=2048, shard=shard), comm=MPI.COMM_WORLD)
    steps(net, opt, 6, X[MINE], Y[MINE], micro=3)
    assert np.abs(flat(net) - alone("adam")).max() < NEAR
    net, opt = parts("adam", np.float16)
    with pytest.raises(ValueError, match=r"needs a collectives.Communicator"):
        train.distribute(net, opt, comm=MPI.COMM_WORLD)


def test_a_step_without_samples_on_any_rank_has_a_gradient_of_zeros():
    net, opt = together("sgd", 0)
    train.set_lr(opt, 0.0)
    steps(net, opt, 1, X[:0], Y[:0])
    assert opt.strategy.norm == 0


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_a_gradient_that_is_not_finite_stops_all_ranks(shard):
    net, opt = together("sgd", 1, shard=shard)
    before = flat(net)
    x = X[:4].copy()
    if RANK == SIZE - 1:
        x[0, 0] = np.nan
    backward(net, x, Y[:4])
    with pytest.raises(FloatingPointError, match=r"gradient of 1.weight is not finite"):
        opt.step()
    np.testing.assert_array_equal(flat(net), before)
    assert opt.steps == 1


def test_a_step_without_a_backward_pass_of_one_rank_is_an_error_on_all():
    net, opt = together("sgd", 1)
    if RANK > 0:
        backward(net, X[:4], Y[:4])
    with pytest.raises(RuntimeError, match="without a backward"):
        opt.step()
    net, opt = parts("sgd")
    net, opt = train.distribute(net, opt, comm=COMM, unused="zero")
    for _ in range(6):
        opt.zero_grad()
        if SHARES[RANK]:  # a rank without samples leaves the backward pass out
            backward(net, X[MINE], Y[MINE])
        opt.step()
    assert np.abs(flat(net) - alone("sgd")).max() < NEAR


def test_the_strategy_goes_on_with_fewer_ranks():
    net, opt = together("sgd", 2)
    left = collectives.Communicator(COMM.Split(int(RANK > 0)))
    opt.strategy.resize(left)
    steps(net, opt, 4, X, Y)
    assert train.same_bits(net, left)
    net, opt = together("sgd", 1, shard=1)
    opt.strategy.resize(left)
    steps(net, opt, 4, X, Y)
    assert train.same_bits(net, left)
