"""Where a backward pass of torch's ends: with the outermost run of autograd, or by an error. On all ranks.

Run on any number of ranks: ``mpiexec -n 3 python -m pytest tests/train/programs/torch_passes.py``.
"""

import contextlib

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch_training import COMM, NEAR, OPTIMIZERS, X, alone, backward, flat, mine, mlp, steps

from collectives import train


def recomputed(function, x):
    """The result of a function whose backward pass is a run of autograd within that of the whole."""
    return checkpoint(function, x, use_reentrant=True)


class Segments(torch.nn.Module):
    """The network of `mlp`. Its layers whose numbers are given run as `recomputed`, each in `depth` such runs."""

    def __init__(self, numbers=(0, 1, 2), depth=1):
        super().__init__()
        self.layers, self.numbers, self.depth = mlp(), numbers, depth

    def run(self, layer, x, depth):
        return recomputed(lambda x: self.run(layer, x, depth - 1), x) if depth else layer(x)

    def forward(self, x):
        x = x.detach().requires_grad_() if x.is_leaf and not x.requires_grad else x
        for number, layer in enumerate(self.layers):
            x = self.run(layer, x, self.depth if number in self.numbers else 0)
        return x


class Whole(torch.nn.Module):
    """A network of which all is recomputed, by a program around it."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return recomputed(self.net, x.detach().requires_grad_())


def distributed(net, shard):
    strategy = train.AllReduce(bucket_bytes=1024, shard=shard)
    return train.distribute(net, OPTIMIZERS["sgd"](net.parameters()), strategy, comm=COMM)


NETWORKS = {
    "all layers": Segments,
    "the first layer": lambda: Segments([0]),
    "the last layer": lambda: Segments([2]),
    "layers within layers": lambda: Segments(depth=3),
}


@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("kind", [*NETWORKS, "all"])
def test_a_recomputed_micro_batch_counts_once(kind, shard):
    if kind == "all":
        net, opt = distributed(mlp(), shard)
        steps(Whole(net), opt, 6, micro=3)
    else:
        net, opt = distributed(NETWORKS[kind](), shard)
        steps(net, opt, 6, micro=3)
    assert (flat(net) - alone("sgd")).abs().max() < NEAR


@pytest.mark.parametrize("micro", [1, 2])
def test_two_gradients_of_a_parameter_that_recomputed_segments_share_are_an_error(micro):
    net, opt = distributed(torch.nn.Linear(12, 12, dtype=torch.float64), 0)
    for i in range(micro):
        with opt.strategy.no_sync() if i < micro - 1 else contextlib.nullcontext():
            recomputed(net, recomputed(net, X[:4].clone().requires_grad_())).sum().backward()
    with pytest.raises(RuntimeError, match="ran twice before opt.step"):
        opt.step()


def fail(grad):
    raise ArithmeticError("in the middle of a backward pass")


@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("kind", [mlp, Segments])
@pytest.mark.parametrize("accumulates", [True, False])
def test_zero_grad_begins_anew_after_a_pass_that_raised(accumulates, kind, shard):
    """It raises at the input, which stays the same one. What waits there for the end must not disturb later passes."""
    net, opt = distributed(kind(), shard)
    x, y = mine()
    x = x.clone().requires_grad_()
    for _ in range(2):
        failing = x.register_hook(fail)
        with opt.strategy.no_sync() if accumulates else contextlib.nullcontext(), pytest.raises(ArithmeticError):
            backward(net, x, y)
        failing.remove()
        opt.zero_grad()
    for _ in range(6):
        opt.zero_grad()
        with opt.strategy.no_sync():
            backward(net, x, y)
        backward(net, x, y)
        opt.step()
    assert (flat(net) - alone("sgd")).abs().max() < NEAR
