"""Dropout whose masks do not depend on how the activations are cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...models.nn import Array
from ...tensor.cuts import Cut, place


class ParallelDropout(torch.nn.Module):
    """Zeroes each element with probability `p`, and multiplies the others by ``1 / (1 - p)``, in training.

    ``layer(x)``: x is the same on all ranks of `comm`, and so is the mask. ``layer(x, cut)``: x is this rank's part of
    the activations, cut along `axis` as the `Cut` says. Each rank then draws its own part of the mask of the whole, so
    ranks have different masks, and together that which one rank alone would draw.

    Each call takes one number from torch's generator. So the ranks of the axis must be seeded alike, and data ranks and
    the stages of a pipeline should not be: ``train.TorchRandom(seed, "dropout", mesh=mesh)``. Who restores torch's
    generator, as recomputation does, gets the same mask again. Raises ValueError unless 0 <= p < 1.
    """

    def __init__(self, p: float, comm: Any = None, *, axis: int) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p must be at least 0 and less than 1, not {p}")
        self.p, self.comm, self.axis = p, comm, axis

    def forward(self, x: torch.Tensor, cut: Cut | None = None) -> torch.Tensor:
        """See the class."""
        if not self.training or self.p == 0:
            return x
        rank, _ = place(self.comm)
        seed = int(torch.randint(2**63 - 1, ()))
        keep = kept(seed, x.shape, self.p, self.axis, 0 if cut is None else cut.start(rank))
        return x * torch.from_numpy(keep) * (1 / (1 - self.p))


def kept(seed: int, shape: Sequence[int], p: float, axis: int, start: int) -> Array:
    """A mask of bools of `shape`, true with probability 1 - p: the part that begins at `start` of `axis`.

    The whole mask is drawn element by element from PCG64, `axis` slowest, so that a part begins at a known place of the
    stream (O'Neill 2014, sec. 4.3.1: jumping ahead). A draw takes one step of the generator.
    """
    front = [shape[axis], *(n for i, n in enumerate(shape) if i != axis)]
    bits = np.random.PCG64(seed)
    bits.advance(start * math.prod(front[1:]))
    keep = np.random.Generator(bits).random(math.prod(front)) >= p
    return np.ascontiguousarray(np.moveaxis(keep.reshape(front), 0, axis))
