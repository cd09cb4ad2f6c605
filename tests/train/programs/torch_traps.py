"""What programs for torch do with networks and optimizers, and what may go wrong, on all ranks.

Run on any number of ranks: ``mpiexec -n 3 python -m pytest tests/train/programs/torch_traps.py``.
"""

import numpy as np
import pytest
import torch
from torch_training import (
    CLASSES,
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
    mine,
    mlp,
    steps,
    together,
)

import collectives
from collectives import train
from collectives.train.weights import not_finite


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
        net, words = net.to("meta"), "on the CPU or on one CUDA device"
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
        "device": (ValueError, "on the CPU or on one CUDA device"),
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


def test_weights_that_are_not_finite_are_found():
    """Buffers, such as masks, may be infinite, and so may be what is not trained."""
    net = mlp()
    net.register_buffer("mask", torch.full((2,), -torch.inf))
    net.frozen = torch.nn.Parameter(torch.full((2,), torch.nan), requires_grad=False)
    assert not_finite(net) is None
    name, last = [(name, p) for name, p in net.named_parameters() if p.requires_grad][-1]
    last.data = last.data.to(torch.bfloat16)
    assert not_finite(net) is None
    last.data[-1] = torch.inf
    assert not_finite(net) == name
