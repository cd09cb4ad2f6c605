"""Synchronous training of torch networks on all ranks: equal to a single process, and what may go wrong.

Run on any number of ranks: ``mpiexec -n 3 python -m pytest tests/train/programs/synchronous_torch.py``.

Equality is tested in float64, where the only difference is the order in which gradients are added up: 1e-12 is far
above that error, and far below the effect of a wrong weight.
"""

import copy
import math

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch_training import (
    COMM,
    INPUTS,
    NEAR,
    OPTIMIZERS,
    RANK,
    SIZE,
    X,
    Y,
    alone,
    backward,
    flat,
    mlp,
    steps,
    together,
)

import collectives
from collectives import train


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_uneven_shares_and_micro_batches_give_what_one_process_computes(optimizer, shard, micro, clip):
    net, opt = together(optimizer, micro=micro, shard=shard, clip_norm=clip)
    expected = alone(optimizer, clip=clip)
    assert (flat(net) - expected).abs().max() < NEAR
    assert (alone(optimizer, steps=5, clip=clip) - expected).abs().max() > 1e-5
    assert train.same_bits(net, COMM)
    if clip is not None:
        assert opt.strategy.norm > clip


@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize(("dtype", "scale"), [(torch.bfloat16, 1.0), (torch.float16, "dynamic")])
def test_mixed_precision_is_near_to_float32(dtype, scale, shard):
    """A step's gradient has an error of about one rounding, 2^-8 of bfloat16 and 2^-11 of float16, of its size; six
    steps move the weights by about 0.1, so 5e-3 is enough. Weights that were rounded would not move at all by the
    smallest steps."""
    net, opt = together("sgd", dtype=dtype, loss_scale=scale, shard=shard)
    if scale == "dynamic":  # steps were skipped until the scale fitted
        assert opt.strategy.loss_scale.value == 65536.0 / 2**opt.strategy.skipped
        steps(net, opt, opt.strategy.skipped)
    assert (flat(net) - alone("sgd", dtype=torch.float32)).abs().max() < 5e-3
    assert train.same_bits(net, COMM)


def test_small_updates_reach_master_weights():
    """bfloat16 has 8 bits: 1 - 2^-10 is 1 there. 2^7 such steps make 1 - 2^-3, if nothing is rounded between."""
    net = torch.nn.Linear(1, 1, bias=False).bfloat16()
    torch.nn.init.ones_(net.weight)
    opt = torch.optim.SGD(net.parameters(), lr=2**-10)
    net, opt = train.distribute(net, opt, train.AllReduce(), comm=COMM)
    for _ in range(128):
        opt.zero_grad()
        net(torch.ones(1, 1).bfloat16()).sum().backward()
        opt.step()
    assert net.weight.item() == 1 - 2**-3


@pytest.mark.parametrize("shard", [1, 2])
def test_a_sharded_state_goes_on_with_the_same_bits(shard):
    net, opt = together("adamw", 3, shard=shard)
    saved, weights = copy.deepcopy(opt.state_dict()), copy.deepcopy(net.state_dict())
    steps(net, opt, 3)
    again, other = together("adamw", 0, shard=shard)
    again.load_state_dict(weights)
    other.load_state_dict(saved)
    steps(again, other, 3)
    assert torch.equal(flat(net), flat(again))


def whole(leaf):
    """A leaf of a state with shards joined, as a program would read it from a checkpoint."""
    if isinstance(leaf, train.checkpoint.Shard):
        parts = COMM.allgather((leaf.start, np.asarray(leaf.array)))
        assert [start for start, _ in parts] == [sum(len(a) for _, a in parts[:i]) for i in range(len(parts))]
        return np.concatenate([array for _, array in parts])
    return {key: whole(value) for key, value in leaf.items()} if isinstance(leaf, dict) else copy.deepcopy(leaf)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_sharded_state_goes_on_with_another_number_of_ranks(dtype):
    net, opt = together("adamw", 3, shard=1, dtype=dtype)
    saved, weights = whole(opt.state_dict()), copy.deepcopy(net.state_dict())
    steps(net, opt, 3)
    single = mlp(dtype)
    strategy = train.AllReduce(bucket_bytes=1024, shard=1)
    single, other = train.distribute(
        single, OPTIMIZERS["adamw"](single.parameters()), strategy, comm=collectives.Communicator(MPI.COMM_SELF)
    )
    single.load_state_dict(weights)
    other.load_state_dict(saved)
    for _ in range(3):
        other.zero_grad()
        backward(single, X, Y)
        other.step()
    assert (flat(net) - flat(single)).abs().max() < (NEAR if dtype == torch.float64 else 1e-2)
    with pytest.raises(ValueError, match="for other buckets"):
        other.load_state_dict({**saved, "buckets": {}})


def test_level_2_keeps_no_whole_gradients():
    net, opt = together("sgd", 2, shard=2)
    assert all(p.grad is None for p in net.parameters())
    kept = sum(part.received.size for part in opt.strategy._parts)
    assert kept <= sum(p.numel() for p in net.parameters()) / SIZE + len(opt.strategy._parts)


@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("rank", sorted({0, SIZE - 1}))
def test_a_gradient_that_is_not_finite_stops_all_ranks_and_changes_nothing(rank, shard):
    net, opt = together("sgd", 1, shard=shard)
    before = flat(net)
    x = torch.ones(3, INPUTS, dtype=torch.float64)
    if rank == RANK:
        x[0, 0] = math.nan
    backward(net, x, torch.zeros(3, dtype=torch.long))
    with pytest.raises(FloatingPointError, match=r"gradient of 0.weight is not finite"):
        opt.step()
    assert torch.equal(flat(net), before)
    steps(net, opt, 1)
    assert not torch.equal(flat(net), before)


def test_steps_with_infinite_gradients_are_skipped_on_all_ranks():
    net, opt = together("sgd", 1, nonfinite="skip")
    before = flat(net)
    x = torch.full((2, INPUTS), math.inf if RANK == 0 else 1.0, dtype=torch.float64)
    backward(net, x, torch.zeros(2, dtype=torch.long))
    opt.step()
    assert opt.strategy.skipped == 1
    assert torch.equal(flat(net), before)


class Identity(train.Compression):
    """A compression in two rounds that compresses nothing: half of the gradients, then the other half."""

    def exchange(self, bucket, comm):
        middle = bucket.grads.size // 2
        for part in (bucket.grads[:middle], bucket.grads[middle:]):
            self.sent += part.nbytes
            yield comm.Iallreduce(MPI.IN_PLACE, part, op=collectives.AVG)

    def settings(self):
        return {"compression": "Identity"}

    def state_dict(self):
        return {"sent": self.sent}

    def load_state_dict(self, state):
        self.sent = state["sent"]


def test_a_compression_exchanges_the_gradients():
    compression = Identity()
    net, opt = together("sgd", compression=compression, micro=3)
    assert (flat(net) - alone("sgd")).abs().max() < NEAR
    assert compression.sent == 6 * sum(p.nbytes for p in net.parameters())
    assert opt.strategy.state_dict()["compression"] == {"sent": compression.sent}


COMPRESSIONS = {  # with the relative error of a result beside what residuals keep
    "float16": (train.Float16Wire, 2**-10),
    "bfloat16": (train.BFloat16Wire, 2**-7),
    "int8": (train.Int8, 2**-20),
    "topk": (lambda: train.TopK(0.05), 2**-20),
    "powersgd": (lambda: train.PowerSGD(1), 2**-20),
}


@pytest.mark.parametrize("kind", COMPRESSIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_of_16_bit_gradients_a_compression_loses_what_it_keeps_in_float32(kind, dtype):
    """The gradient is constant, and exact in 16 bits. What weights have gone, and residuals, are together its sum, also
    if the loss scale changes."""
    make, near = COMPRESSIONS[kind]
    net = torch.nn.Linear(40, 30, bias=False).to(dtype)
    strategy = train.AllReduce(compression=make())
    net, opt = train.distribute(net, torch.optim.SGD(net.parameters(), 1.0), strategy, comm=COMM)
    grad = torch.randint(-16, 17, (30, 40), generator=torch.Generator().manual_seed(RANK))
    mean, before = COMM.allreduce(grad.numpy()).ravel() / SIZE, opt.state_dict()["masters"]["bucket 0"]
    for scale in (1.0, 1024.0, 1024.0, 8.0, 64.0):
        opt.zero_grad()
        strategy.loss_scale.value = scale
        (net.weight * grad.to(dtype) * scale).sum().backward()
        opt.step()
    left = np.zeros_like(mean)
    if strategy.compression.per_rank:
        left = COMM.allreduce(strategy.state_dict()["compression"]["0"]["residual"].astype(np.float64)) / SIZE
        assert kind == "int8" or np.abs(left).max() > 1
    gone = before - opt.state_dict()["masters"]["bucket 0"]
    np.testing.assert_allclose(gone + left, 5 * mean, rtol=0, atol=80 * near)
    assert train.same_bits(net, COMM)


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (train.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
        (train.Adam, torch.optim.Adam, {"lr": 0.01}),
        (train.Adam, torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1}),
        (train.AdamW, torch.optim.AdamW, {"lr": 0.01}),
        (train.AdamW, torch.optim.AdamW, {"lr": 0.01, "betas": (0.0, 0.5), "weight_decay": 0.5}),
    ],
)
@pytest.mark.parametrize(("dtype", "near"), [(np.float64, 1e-14), (np.float32, 1e-6)])
def test_numpys_optimizers_compute_what_torchs_compute(ours, theirs, options, dtype, near):
    """The weights are about 1; the operations differ in order only, so an error is a few roundings in 20 steps."""
    rng = np.random.default_rng(0)
    start, grads = rng.standard_normal(50).astype(dtype), rng.standard_normal((20, 50)).astype(dtype)
    mine, other = train.Parameter(start.copy(), "w"), torch.nn.Parameter(torch.from_numpy(start.copy()))
    my_opt, opt = ours([mine], **options), theirs([other], **options)
    for grad in grads:
        mine.grad[...] = grad
        other.grad = torch.from_numpy(grad.copy())
        my_opt.step()
        opt.step()
    assert mine.data.dtype == dtype
    assert np.abs(mine.data - other.detach().numpy()).max() < near
