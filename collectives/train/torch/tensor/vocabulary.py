"""Layers cut over the vocabulary: the embedding, and the loss of logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from ...tensor.cuts import Cut, layer_cut, place
from ...tensor.pairs import REDUCE, REDUCE_SCATTER
from ...tensors import as_numpy, as_tensor
from .linear import part
from .pairs import paired


class ParallelEmbedding(torch.nn.Module):
    """An embedding of which each rank has a part of the rows, that is of the vocabulary (Shoeybi et al. 2019, sec. 3).

    `whole` is the whole embedding, equal on all ranks of `comm`; its rows are cut evenly, sizes differ by at most 1.
    Without `comm` one rank has all.

    ``layer(tokens)``: tokens (...) are integers below the size of the vocabulary, the same on all ranks. So is the
    result, (..., width). ``layer(tokens, sequence)`` returns this rank's part of it, cut as the `Cut` `sequence` says.
    Raises ValueError for tokens that are out of range.

    ``cuts`` has the `Cut` of the weight. Making one is collective. Raises ValueError on all ranks if their layers
    differ, if there are more ranks than rows, or if `whole` has options besides its sizes.
    """

    def __init__(self, whole: torch.nn.Embedding, comm: Any = None) -> None:
        super().__init__()
        options = {name: getattr(whole, name) for name in ("padding_idx", "max_norm", "sparse", "scale_grad_by_freq")}
        settings = {"width": whole.embedding_dim, **options}
        cut = layer_cut("ParallelEmbedding", "rows of the vocabulary", whole.num_embeddings, comm, **settings)
        if any(value is not None and value is not False for value in options.values()):
            raise ValueError(f"ParallelEmbedding takes no {', '.join(options)}")
        self.comm, self.cuts = comm, {"weight": cut}
        self.weight = part(whole.weight, cut, comm)

    def forward(self, tokens: torch.Tensor, sequence: Cut | None = None) -> torch.Tensor:
        """See the class."""
        cut = self.cuts["weight"]
        local, mine = _own(tokens, cut, self.comm, "tokens")
        rows = torch.nn.functional.embedding(local, self.weight)
        rows = torch.where(mine.unsqueeze(-1), rows, rows.new_zeros(()))
        return paired(REDUCE if sequence is None else REDUCE_SCATTER, rows, self.comm, sequence)


def _own(numbers: torch.Tensor, cut: Cut, comm: Any, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers in this rank's part of the vocabulary (0 for rows of other ranks), and which are its own.

    ValueError if some are not in the vocabulary.
    """
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < cut.total:
        raise ValueError(
            f"{what} run from {int(numbers.min())} to {int(numbers.max())}, the vocabulary has {cut.total}"
        )
    rank, _ = place(comm)
    local = numbers - cut.start(rank)
    mine = (local >= 0) & (local < cut.sizes[rank])
    return torch.where(mine, local, 0), mine


class ParallelCrossEntropy(torch.nn.Module):
    """Softmax cross-entropy of logits that are cut over the vocabulary, which are not gathered (Shoeybi et al. 2019,
    sec. 3).

    ``loss(logits, targets)`` is the mean over all targets (...), integers below `vocabulary` that are the same on all
    ranks of `comm`; logits (..., its part) are what an evenly cut `ColumnParallelLinear` returns. For each target a
    rank gives all-reduces three numbers: the largest logit; the sum of exponentials and the target's logit. Logits of
    16 bits are widened to float32. Raises ValueError for other shapes and for targets out of range.

    Making one is collective. Raises ValueError on all ranks if there are more ranks than entries of the vocabulary.
    """

    def __init__(self, vocabulary: int, comm: Any = None) -> None:
        super().__init__()
        self.comm = comm
        self.cut = layer_cut("ParallelCrossEntropy", "entries of the vocabulary", vocabulary, comm)

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See the class."""
        rank, _ = place(self.comm)
        if logits.shape != (*targets.shape, self.cut.sizes[rank]):
            raise ValueError(
                f"logits {tuple(logits.shape)} do not fit targets {tuple(targets.shape)} and this rank's "
                f"{self.cut.sizes[rank]} of {self.cut.total} entries of the vocabulary"
            )
        local, mine = _own(targets, self.cut, self.comm, "targets")
        wide = logits.float() if logits.element_size() == 2 else logits
        losses: torch.Tensor = _CrossEntropy.apply(wide, local, mine, self.comm)
        return losses.mean()


class _CrossEntropy(torch.autograd.Function):
    """The loss of each target. What is saved is the softmax of this rank's part of the vocabulary."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, local: torch.Tensor, mine: torch.Tensor, comm: Any) -> torch.Tensor:
        largest = _reduced(logits.amax(dim=-1), comm, "MAX")
        shifted = logits - largest.unsqueeze(-1)  # so that exp cannot overflow
        at_target = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1)
        at_target = torch.where(mine, at_target, at_target.new_zeros(()))
        softmax = shifted.exp_()
        total, at_target = _reduced(torch.stack([softmax.sum(dim=-1), at_target]), comm, "SUM")
        softmax /= total.unsqueeze(-1)
        ctx.save_for_backward(softmax, local, mine)
        return total.log() - at_target

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        softmax, local, mine = ctx.saved_tensors
        below = softmax * grad.unsqueeze(-1)
        below.scatter_add_(-1, local.unsqueeze(-1), -(grad * mine).unsqueeze(-1))
        return below, None, None, None


def _reduced(x: torch.Tensor, comm: Any, op: str) -> torch.Tensor:
    """`x`, all-reduced by an op of MPI's."""
    _, ranks = place(comm)
    if ranks == 1:
        return x
    from mpi4py import MPI

    sent = as_numpy(x)
    received = np.empty_like(sent)
    comm.Allreduce(sent, received, op=getattr(MPI, op))
    made: torch.Tensor = as_tensor(received)
    return made
