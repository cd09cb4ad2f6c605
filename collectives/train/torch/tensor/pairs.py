"""The pairs of collectives as functions of autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ...tensor.cuts import Cut, place
from ...tensor.pairs import Move, Pair, identity
from ...tensors import as_numpy, as_tensor


def paired(pair: Pair, x: torch.Tensor, comm: Any, cut: Cut | None = None) -> torch.Tensor:
    """``pair.forward`` of the ranks' tensors `x`; the backward pass does ``pair.backward`` to gradients. Collective.

    All ranks of `comm` call it in the same order, in both passes. With None or one rank, the result is `x`. Raises
    RuntimeError if it is differentiated twice.
    """
    _, ranks = place(comm)
    if ranks == 1:
        return x
    made: torch.Tensor = _Paired.apply(x, pair, comm, cut)
    return made


class _Paired(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pair: Pair, comm: Any, cut: Cut | None) -> torch.Tensor:
        ctx.pair, ctx.comm, ctx.cut = pair, comm, cut
        return _moved(pair.forward, x, comm, cut)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _moved(ctx.pair.backward, grad, ctx.comm, ctx.cut), None, None, None


def _moved(move: Move, x: torch.Tensor, comm: Any, cut: Cut | None) -> torch.Tensor:
    """A move of a tensor. autograd must know that what `identity` returns is a view."""
    if move is identity:
        return x.view_as(x)
    made: torch.Tensor = as_tensor(move(as_numpy(x), comm, cut))
    return made
