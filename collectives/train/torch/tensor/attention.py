"""The two halves of a transformer's block, cut apart (Shoeybi et al. 2019, sec. 3)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import gelu

from ...tensor.cuts import Cut, layer_cut
from .dropout import ParallelDropout
from .linear import ColumnParallelLinear, RowParallelLinear


class ParallelAttention(torch.nn.Module):
    """Self-attention of several heads, of which each rank computes some (Shoeybi et al. 2019, sec. 3).

    The heads are cut evenly over the ranks of `comm`, numbers differ by at most 1. All ranks draw the same weights from
    torch's generator, and keep their parts. ``qkv`` makes queries, keys and values of the heads, one head after the
    other: its rows are (heads, 3, width / heads). With `causal`, a position attends to itself and to those before it.
    `dropout` is that of the attention's weights.

    ``layer(x)``: x (samples, positions, width) is the same on all ranks, and so is the result, of the same shape.
    ``layer(x, sequence)``: both are this rank's part, cut along the positions as the `Cut` `sequence` says.

    Making one is collective. Raises ValueError on all ranks unless heads divide the width and each rank has a head.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        comm: Any = None,
        *,
        causal: bool = True,
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.heads = layer_cut("ParallelAttention", "heads", heads, comm, axis=1, width=width)
        if width % heads:
            raise ValueError(f"ParallelAttention: {heads} heads do not divide a width of {width}")
        self.size, self.causal = width // heads, causal
        rows, columns = self.heads.times(3 * self.size, 0).sizes, self.heads.times(self.size, 1).sizes
        self.qkv = ColumnParallelLinear(torch.nn.Linear(width, 3 * width, dtype=dtype), comm, sizes=rows)
        self.out = RowParallelLinear(torch.nn.Linear(width, width, dtype=dtype), comm, sizes=columns)
        self.dropout = ParallelDropout(dropout, comm, axis=1)

    def forward(self, x: torch.Tensor, sequence: Cut | None = None) -> torch.Tensor:
        """See the class."""
        mixed = self.qkv(x, sequence)
        samples, positions, _ = mixed.shape
        heads = mixed.shape[-1] // (3 * self.size)  # not -1, which is ambiguous if there are no samples
        query, key, value = mixed.view(samples, positions, heads, 3, self.size).permute(3, 0, 2, 1, 4)
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.size)
        if self.causal:
            later = torch.ones(positions, positions, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        weights = self.dropout(scores.softmax(dim=-1), self.heads)  # (samples, heads, positions, positions)
        return self.out((weights @ value).transpose(1, 2).reshape(samples, positions, heads * self.size), sequence)


class ParallelMLP(torch.nn.Module):
    """Two linear layers with a GELU between them, whose `hidden` elements are cut over the ranks of `comm`.

    All ranks draw the same weights from torch's generator, and keep their parts. ``layer(x)`` and ``layer(x,
    sequence)`` are those of `ParallelAttention`; so are the errors.
    """

    def __init__(self, width: int, hidden: int, comm: Any = None, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(torch.nn.Linear(width, hidden, dtype=dtype), comm)
        self.down = RowParallelLinear(torch.nn.Linear(hidden, width, dtype=dtype), comm)

    def forward(self, x: torch.Tensor, sequence: Cut | None = None) -> torch.Tensor:
        """See the class."""
        return self.down(gelu(self.up(x, sequence)), sequence)
