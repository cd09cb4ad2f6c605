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

import collectives
from collectives import train

torch.set_num_threads(1)
COMM = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
SAMPLES, INPUTS, CLASSES = 30, 12, 4
NEAR = 1e-12
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(SAMPLES, INPUTS, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(CLASSES, (SAMPLES,), generator=GENERATOR)
SHARES = [SAMPLES, *[0] * (SIZE - 1)] if SIZE == 1 else [SAMPLES - 11, 11, *[0] * (SIZE - 2)]  # uneven, some are empty
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
}


def mlp(dtype=torch.float64, seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES)).to(dtype)


def mine():
    """This rank's share of the samples."""
    start = sum(SHARES[:RANK])
    return X[start : start + SHARES[RANK]], Y[start : start + SHARES[RANK]]


def flat(net):
    return torch.cat([p.detach().reshape(-1).double() for p in net.parameters()])


def backward(net, x, y, strategy=None):
    loss = torch.nn.functional.cross_entropy(net(x.to(next(net.parameters()).dtype)), y)
    (loss if strategy is None else strategy.scale(loss)).backward()


def alone(optimizer, steps=6, clip=None, dtype=torch.float64):
    """What one process computes with all samples."""
    net = mlp(dtype)
    opt = OPTIMIZERS[optimizer](net.parameters())
    for _ in range(steps):
        opt.zero_grad()
        backward(net, X, Y)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        opt.step()
    return flat(net)


def steps(net, opt, count, micro=1):
    """Train with this rank's share, in micro-batches of different lengths."""
    strategy = opt.strategy
    x, y = mine()
    cuts = [0, len(x) // 3, len(x) // 2, len(x)][-micro:] if micro > 1 else [len(x)]
    cuts = [0, *[cut for cut in cuts if cut]] if len(x) else [0] * (micro + 1)
    for _ in range(count):
        opt.zero_grad()
        for i, (start, stop) in enumerate(zip(cuts, cuts[1:], strict=False)):
            if i < len(cuts) - 2:
                with strategy.no_sync():
                    backward(net, x[start:stop], y[start:stop], strategy)
            else:
                backward(net, x[start:stop], y[start:stop], strategy)
        opt.step()


def together(optimizer, count=6, micro=1, dtype=torch.float64, seed=None, **options):
    net = mlp(dtype, RANK if seed is None else seed)
    if seed is None and RANK == 0:
        net = mlp(dtype)
    strategy = train.AllReduce(bucket_bytes=1024, **options)
    net, opt = train.distribute(net, OPTIMIZERS[optimizer](net.parameters()), strategy, comm=COMM)
    steps(net, opt, count, micro)
    return net, opt


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


class Identity:
    """A compression in two rounds that compresses nothing: half of the gradients, then the other half."""

    def __init__(self):
        self.sent = 0

    def exchange(self, bucket, comm):
        middle = bucket.grads.size // 2
        for part in (bucket.grads[:middle], bucket.grads[middle:]):
            self.sent += part.nbytes
            yield comm.Iallreduce(MPI.IN_PLACE, part, op=collectives.AVG)

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


def test_schedulers_and_closures_of_torch():
    def run(net, opt, x, y):
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)

        def closure():
            opt.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            return loss

        losses = []
        for _ in range(4):
            losses.append(opt.step(closure).item())
            scheduler.step()
        assert opt.param_groups[0]["lr"] == 0.025
        assert losses[0] > 0 or not len(x)
        return flat(net)

    net = mlp()
    expected = run(net, OPTIMIZERS["sgd"](net.parameters()), X, Y)
    net = mlp()
    assert (
        run(*train.distribute(net, OPTIMIZERS["sgd"](net.parameters()), comm=COMM), *mine()) - expected
    ).abs().max() < NEAR


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shard", [0, 1])
def test_a_scheduler_made_before_still_sees_the_steps(shard):
    net = mlp()
    opt = OPTIMIZERS["sgd"](net.parameters())
    scheduler = torch.optim.lr_scheduler.ConstantLR(opt, 0.5, 1)
    net, opt = train.distribute(net, opt, train.AllReduce(shard=shard), comm=COMM)
    steps(net, opt, 1)
    scheduler.step()
    assert train.get_lr(opt) == 0.1
    train.set_lr(opt, 0.5)
    assert opt.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("clear", ["opt", "opt zeros", "net", "net zeros"])
def test_any_way_to_clear_gradients(clear):
    """Gradients are replaced, filled with zeros or left out; they end up in the flat arrays."""
    net = mlp()
    net, opt = train.distribute(net, OPTIMIZERS["sgd"](net.parameters()), comm=COMM)
    for _ in range(6):
        thing = opt if clear.startswith("opt") else net
        thing.zero_grad(set_to_none=not clear.endswith("zeros"))
        backward(net, *mine())
        opt.step()
    assert (flat(net) - alone("sgd")).abs().max() < NEAR
    grads = [bucket.grads for bucket in opt.strategy.buckets.list]
    assert all(any(np.shares_memory(p.grad.numpy(), grad) for grad in grads) for p in net.parameters())


class Branches(torch.nn.Module):
    """Two layers that share a parameter, a transposed one, a frozen one, one that only some ranks use, statistics."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(INPUTS, INPUTS)
        self.second = torch.nn.Linear(INPUTS, INPUTS)
        self.second.weight = self.first.weight
        self.last = torch.nn.Parameter(torch.randn(CLASSES, INPUTS).t())
        self.frozen = torch.nn.Parameter(torch.randn(CLASSES), requires_grad=False)
        self.sometimes = torch.nn.Parameter(torch.zeros(CLASSES, dtype=torch.float64))
        self.norm = torch.nn.BatchNorm1d(INPUTS)
        self.use = True

    def forward(self, x):
        y = self.norm(self.second(torch.relu(self.first(x.float())))) @ self.last + self.frozen
        return y + self.sometimes.float() if self.use else y


def branches(**options):
    torch.manual_seed(RANK)
    net = Branches()
    opt = torch.optim.SGD(
        [{"params": [net.first.weight, net.last]}, {"params": [net.first.bias, net.second.bias], "lr": 0.2},
         {"params": [net.sometimes, *net.norm.parameters()]}], 0.1,
    )  # fmt: skip
    net.norm.running_mean += RANK
    return train.distribute(net, opt, train.AllReduce(**{"shard": 1, **options}), comm=COMM, unused="zero")


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_parameters_of_all_kinds(shard):
    net, opt = branches(shard=shard)
    assert train.same_bits(net, COMM)
    assert not net.norm.running_mean.any()
    assert net.first.weight is net.second.weight
    assert net.last.is_contiguous()
    before = net.state_dict()
    before = {key: value.clone() for key, value in before.items()}
    for step in range(3):
        net.use = step != 1 and RANK == 0
        opt.zero_grad()
        torch.nn.functional.cross_entropy(net(X[: 4 + RANK]), Y[: 4 + RANK]).backward()
        opt.step()
    assert train.same_bits(net, COMM)
    same = {key for key, value in net.state_dict().items() if torch.equal(before[key], value)}
    assert same == {"frozen"}
    assert [group["lr"] for group in opt.param_groups] == [0.1, 0.2, 0.1]


def test_a_parameter_without_a_gradient_is_an_error_on_all_ranks():
    net = Branches()
    opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    net, opt = train.distribute(net, opt, comm=COMM)
    net.use = RANK != SIZE - 1
    before = flat(net)
    net(X[:4]).sum().backward()
    with pytest.raises(RuntimeError, match="without a backward.* through sometimes"):
        opt.step()
    assert torch.equal(flat(net), before)


@pytest.mark.parametrize("shard", [0, 2])
def test_two_backward_passes_of_one_rank_are_an_error_on_all(shard):
    net, opt = together("sgd", 1, shard=shard)
    before = flat(net)
    for _ in range(2 if RANK == 0 else 1):
        backward(net, *mine())
    with pytest.raises(RuntimeError, match="ran twice before opt.step"):
        opt.step()
    assert torch.equal(flat(net), before)
    steps(net, opt, 5)
    assert (flat(net) - alone("sgd")).abs().max() < NEAR


class Scatter(torch.nn.Module):
    """Makes a sparse gradient of its weight, which no layer says before."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(5, 2))

    def forward(self, x):
        return torch.nn.functional.embedding(x, self.weight, sparse=RANK == 0)


@pytest.mark.parametrize("shard", [0, 2])
def test_a_sparse_gradient_of_one_rank_is_an_error_on_all(shard):
    net = Scatter()
    opt = torch.optim.SGD(net.parameters(), 0.1)
    net, opt = train.distribute(net, opt, train.AllReduce(shard=shard), comm=COMM)
    net(torch.arange(3)).sum().backward()
    with pytest.raises(RuntimeError, match="weight has a sparse gradient"):
        opt.step()


def test_a_network_that_left_its_flat_array():
    net = mlp()
    net, opt = train.distribute(net, OPTIMIZERS["sgd"](net.parameters()), comm=COMM)
    if RANK == SIZE - 1:
        net.float().double()
    backward(net, *mine())
    with pytest.raises(RuntimeError, match="left the flat array"):
        opt.step()


@pytest.mark.parametrize(
    "wrong", ["device", "sparse", "optimizer", "kind", "lbfgs", "lacks", "complex", "wrapped", "steps"]
)
def test_what_cannot_be_distributed_is_an_error_on_all_ranks(wrong):
    net = mlp()
    bad = RANK == SIZE - 1
    opt = OPTIMIZERS["sgd"](net.parameters())
    if wrong == "device" and bad:
        net, words = net.to("meta"), "on the CPU only"
        opt = OPTIMIZERS["sgd"](net.parameters())
    elif wrong == "sparse" and bad:
        net.append(torch.nn.Embedding(3, 2, sparse=True))
        opt = OPTIMIZERS["sgd"](net.parameters())
    elif wrong == "optimizer" and bad:
        opt = OPTIMIZERS["sgd"](mlp().parameters())
    elif wrong == "kind" and bad:
        opt = object()
    elif wrong == "lbfgs" and bad:
        opt = torch.optim.LBFGS(net.parameters())
    elif wrong == "lacks" and bad:
        opt = OPTIMIZERS["sgd"](net[0].parameters())
    elif wrong == "complex" and bad:
        net.append(torch.nn.Linear(2, 2, dtype=torch.complex64))
        opt = OPTIMIZERS["sgd"](net.parameters())
    elif wrong == "wrapped" and bad:
        net = torch.nn.parallel.DistributedDataParallel.__new__(torch.nn.parallel.DistributedDataParallel)
    elif wrong == "steps" and bad:
        backward(net, X, Y)
        opt.step()
    error, words = {
        "device": (ValueError, "on the CPU only"),
        "sparse": (TypeError, "makes sparse gradients"),
        "optimizer": (ValueError, "not over the parameters"),
        "kind": (TypeError, "optimizer of torch.optim, not object"),
        "lbfgs": (TypeError, "LBFGS"),
        "lacks": (ValueError, "the optimizer lacks 2.weight, 2.bias"),
        "complex": (TypeError, "parameter 3.weight: .*complex64 has no gradient"),
        "wrapped": (TypeError, "pass its .module"),
        "steps": (ValueError, "has made steps already"),
    }[wrong]
    with pytest.raises(error, match=words):
        train.distribute(net, opt, train.AllReduce(shard=1), comm=COMM)
    assert COMM.allreduce(1) == SIZE


def test_networks_and_settings_that_differ_are_errors_on_all_ranks():
    if SIZE == 1:
        return
    net = mlp()
    opt = torch.optim.SGD(net.parameters(), 0.1 + (RANK == SIZE - 1))
    with pytest.raises(ValueError, match="lr of group 0 is .* on rank|1 of"):
        train.distribute(net, opt, comm=COMM)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_tree_of_arrays_is_reduced(kind):
    make = np.asarray if kind == "numpy" else torch.as_tensor
    tree = {"b": [make(np.full((2, 3), RANK + 1.0)), None], "a": (make(np.arange(3) + RANK), make(np.float32(RANK)))}
    got = train.allreduce_tree(tree if RANK else dict(reversed(tree.items())), COMM)
    total = SIZE * (SIZE + 1) / 2
    assert type(got["b"][0]) is type(tree["b"][0])
    assert list(got["b"][0].shape) == [2, 3]
    assert (got["b"][0] == total).all()
    assert got["b"][1] is None
    assert got["a"][0].tolist() == [SIZE * i + total - SIZE for i in range(3)]
    assert got["a"][1].shape == ()
    mean = train.allreduce_tree([make(np.full(3, float(RANK)))], COMM, collectives.AVG)
    assert mean[0].tolist() == [(SIZE - 1) / 2] * 3


def test_trees_that_differ_are_errors_on_all_ranks():
    with pytest.raises(TypeError, match=r"tree\['a'\] is a str, not an array"):
        train.allreduce_tree({"a": "text" if RANK == 0 else np.ones(3)}, COMM)
    if SIZE > 1:
        with pytest.raises(ValueError, match="trees differ"):
            train.allreduce_tree({"a": np.ones(3 + (RANK == 0))}, COMM)


def test_bfloat16_trees():
    (got,) = train.allreduce_tree([torch.full((4,), 0.5, dtype=torch.bfloat16)], COMM)
    assert got.dtype == torch.bfloat16
    assert got.tolist() == [SIZE / 2] * 4


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
