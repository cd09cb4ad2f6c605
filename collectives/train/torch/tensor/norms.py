"""Norms of activations that are cut along the positions (Korthikanti et al. 2022, sec. 4.2.2)."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import layer_norm, rms_norm

from ...tensor.cuts import Cut
from ...tensor.pairs import COPY
from .pairs import paired


class ParallelLayerNorm(torch.nn.LayerNorm):
    """A LayerNorm over the last axis, of `width` elements, whose weight and bias all ranks of `comm` have.

    ``layer(x)``: x (..., width) is the same on all ranks. ``layer(x, sequence)``: x is this rank's part, cut along
    another axis as the `Cut` `sequence` says. The gradients of weight and bias are then summed over the ranks in the
    backward pass, by an all-reduce of ``2 * width`` elements.
    """

    def __init__(self, width: int, comm: Any = None, *, eps: float = 1e-5, dtype: torch.dtype | None = None) -> None:
        super().__init__(width, eps=eps, dtype=dtype)
        self.comm = comm

    def forward(self, x: torch.Tensor, sequence: Cut | None = None) -> torch.Tensor:
        """See the class."""
        weight, bias = self.weight, self.bias
        if sequence is not None:
            weight, bias = paired(COPY, torch.stack([weight, bias]), self.comm)
        return layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class ParallelRMSNorm(torch.nn.RMSNorm):
    """An RMSNorm over the last axis, of `width` elements; for the rest see `ParallelLayerNorm`. It has no bias."""

    def __init__(
        self, width: int, comm: Any = None, *, eps: float | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(width, eps=eps, dtype=dtype)
        self.comm = comm

    def forward(self, x: torch.Tensor, sequence: Cut | None = None) -> torch.Tensor:
        """See the class."""
        weight = self.weight if sequence is None else paired(COPY, self.weight, self.comm)
        return rms_norm(x, self.normalized_shape, weight, self.eps)
