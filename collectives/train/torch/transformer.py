"""A small transformer that predicts the next token, as a chain of modules; whole, or cut over a tensor axis."""

from __future__ import annotations

from typing import Any

import torch

from ..tensor.cuts import Cut, agreed, place
from ..tensor.pairs import COPY
from .tensor import (
    ColumnParallelLinear,
    ParallelAttention,
    ParallelDropout,
    ParallelEmbedding,
    ParallelLayerNorm,
    ParallelMLP,
    paired,
)


class Embedding(torch.nn.Module):
    """The first module: tokens (samples, positions) to activations (samples, positions, width), or this rank's part."""

    def __init__(
        self, vocabulary: int, context: int, width: int, comm: Any, sequence_parallel: bool, dropout: float, dtype: Any
    ) -> None:
        super().__init__()
        self.comm, self.sequence_parallel = comm, sequence_parallel
        self.tokens = ParallelEmbedding(torch.nn.Embedding(vocabulary, width, dtype=dtype), comm)
        self.positions = torch.nn.Parameter(torch.randn(context, width, dtype=dtype) * 0.02)
        self.dropout = ParallelDropout(dropout, comm, axis=1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """See the class. Raises ValueError for more positions than the context has, and tokens out of range."""
        length = tokens.shape[1]
        if length > len(self.positions):
            raise ValueError(f"{length} positions are more than the context of {len(self.positions)}")
        positions = self.positions[:length]
        sequence = None
        if self.sequence_parallel:
            rank, ranks = place(self.comm)
            sequence = Cut.even(1, length, ranks)
            positions = Cut(0, sequence.sizes).part(paired(COPY, positions, self.comm), rank)
        return self.dropout(self.tokens(tokens, sequence) + positions, sequence)


class Block(torch.nn.Module):
    """Attention and a perceptron, each added to its input, which is normed first (Radford et al. 2019, sec. 2.3)."""

    def __init__(
        self, width: int, heads: int, comm: Any, sequence_parallel: bool, dropout: float, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.comm, self.sequence_parallel = comm, sequence_parallel
        self.norm1 = ParallelLayerNorm(width, comm, dtype=dtype)
        self.attention = ParallelAttention(width, heads, comm, dropout=dropout, dtype=dtype)
        self.norm2 = ParallelLayerNorm(width, comm, dtype=dtype)
        self.mlp = ParallelMLP(width, 4 * width, comm, dtype=dtype)
        self.dropout = ParallelDropout(dropout, comm, axis=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Activations to activations, of the same shape."""
        sequence = _sequence(x, self)
        x = x + self.dropout(self.attention(self.norm1(x, sequence), sequence), sequence)
        return x + self.dropout(self.mlp(self.norm2(x, sequence), sequence), sequence)


class Head(torch.nn.Module):
    """The last module: activations to this rank's part of the logits, (samples, positions, its part of the
    vocabulary)."""

    def __init__(self, vocabulary: int, width: int, comm: Any, sequence_parallel: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.comm, self.sequence_parallel = comm, sequence_parallel
        self.norm = ParallelLayerNorm(width, comm, dtype=dtype)
        self.logits = ColumnParallelLinear(torch.nn.Linear(width, vocabulary, bias=False, dtype=dtype), comm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        sequence = _sequence(x, self)
        return self.logits(self.norm(x, sequence), sequence)


def _sequence(x: torch.Tensor, module: Block | Head) -> Cut | None:
    """How the positions are cut, if they are. A module knows its rank's part only, whatever stage it is in."""
    cut = module.sequence_parallel and module.comm is not None
    return agreed(1, x.shape[1], module.comm) if cut else None


def transformer(
    vocabulary: int,
    context: int,
    *,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
    comm: Any = None,
    sequence_parallel: bool = False,
    dropout: float = 0.0,
    tied: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> torch.nn.Sequential:
    """A causal transformer: ``Sequential(Embedding, Block, ..., Head)`` with `layers` blocks, which a pipeline can cut.

    Tokens (samples, positions), of at most `context` positions, become logits (samples, positions, vocabulary). With
    `comm`, the layers are cut over its ranks, and a rank returns its part of the logits: train it with
    ``ParallelCrossEntropy(vocabulary, comm)``. With `sequence_parallel`, activations between the layers are cut along
    the positions, too (Korthikanti et al. 2022). With `tied`, the head uses the weight of the embedding (Press and Wolf
    2017). Whatever `comm` is, the whole weights depend on `seed` and the sizes only. torch's generator is left as it
    was.

    Collective over `comm`. Raises ValueError on all ranks unless heads divide the width and each rank has at least one
    head and one entry of the vocabulary, and for several ranks that are threads: these share torch's generator.
    """
    if hasattr(comm, "same_ranks") and comm.size > 1:
        raise ValueError("ranks that are threads share torch's generator, and would draw other weights each: use MPI")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = [Block(width, heads, comm, sequence_parallel, dropout, dtype) for _ in range(layers)]
        first = Embedding(vocabulary, context, width, comm, sequence_parallel, dropout, dtype)
        last = Head(vocabulary, width, comm, sequence_parallel, dtype)
    if tied:
        first.tokens.weight.data *= width**-0.5  # the logits of normed activations then have a variance of 1
        last.logits.weight = first.tokens.weight
    return torch.nn.Sequential(first, *blocks, last)
