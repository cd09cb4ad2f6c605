"""Matrices as products of two thin ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..counts import count
from ..flat.buckets import Bucket
from ..loading import fields
from ..models.nn import Array
from .base import Area, Compression, restore
from .matrices import length, orthonormal, product


class Factors:
    """One matrix of a bucket, (m, n), at elements ``place``; ``p`` (r, m) and ``q`` (r, n) are its factors."""

    def __init__(self, place: slice, m: int, n: int, rank: int, seed: list[int]) -> None:
        self.place, self.m, self.n, self.r = place, m, n, min(rank, m, n)
        self.seed = seed
        self.p: Array
        self.q: Array
        self.mean_q: Array

    def fresh(self) -> Array:
        """The rows with which ``q`` begins, (r, n). Uniform numbers have the same bits on every processor."""
        return np.random.default_rng(self.seed).random((self.r, self.n)) - 0.5

    def warm_start(self) -> None:
        """Begin the next step with the mean's rows, of length 1. A row that has no length is drawn anew."""
        rows = self.mean_q.astype(np.float64)
        lengths = [length(row) for row in rows]
        usable = [0 < norm < math.inf for norm in lengths]
        fresh = self.q if all(usable) else self.fresh()
        for i, (row, norm) in enumerate(zip(rows, lengths, strict=True)):
            self.q[i] = row / norm if usable[i] else fresh[i]

    def matrix(self, flat: Array) -> Array:
        """The matrix as a view of a flat array of the bucket."""
        return flat[self.place].reshape(self.m, self.n)


class LowRank(Area):
    """The arrays of one bucket. ``first`` and ``second`` are sent: all p and what is not factored, and all q."""

    residual: Array

    def __init__(self, bucket: Bucket, comm: Any, rank: int, seed: int) -> None:
        super().__init__(bucket, comm)
        self.residual = np.zeros(self.count, self.dtype)
        self.steps = 0
        self.matrices: list[Factors] = []
        self.whole: list[slice] = []
        for number, piece in enumerate(bucket.parameters):
            place = slice(piece.start, piece.start + piece.size)
            m = piece.shape[0] if piece.shape else 1
            n = math.prod(piece.shape[1:])
            if (m + n) * min(rank, m, n) < m * n:
                self.matrices.append(Factors(place, m, n, rank, [seed, bucket.index, number]))
            else:
                self.whole.append(place)
        self._allocate()

    def _allocate(self) -> None:
        """Cut the messages into the factors of each matrix and the gradients that are sent whole.

        A bucket without matrices is reduced in place, and needs no messages.
        """
        whole = sum(place.stop - place.start for place in self.whole) if self.matrices else 0
        rows = sum(f.m * f.r for f in self.matrices)
        columns = sum(f.n * f.r for f in self.matrices)
        self.first = self.message(rows + whole, self.dtype)
        self.rest = self.first[rows:]
        self.second, self.mean = self.message(columns, self.dtype), self.message(columns, self.dtype)
        start = begin = 0
        for f in self.matrices:
            f.p = self.first[start : start + f.m * f.r].reshape(f.r, f.m)
            f.q = self.second[begin : begin + f.n * f.r].reshape(f.r, f.n)
            f.mean_q = self.mean[begin : begin + f.n * f.r].reshape(f.r, f.n)
            start, begin = start + f.m * f.r, begin + f.n * f.r
            f.q[...] = f.fresh()

    def pack(self, grads: Array) -> None:
        """Copy the gradients that are not factored into the first message."""
        start = 0
        for place in self.whole:
            end = start + place.stop - place.start
            self.rest[start:end] = grads[place]
            start = end

    def unpack(self, grads: Array, size: int) -> None:
        """Copy their mean back."""
        start = 0
        for place in self.whole:
            end = start + place.stop - place.start
            np.divide(self.rest[start:end], size, out=grads[place])
            start = end

    def state_dict(self) -> dict[str, Any]:
        """The residual, the rows with which each q begins, and the number of exchanges."""
        return {**super().state_dict(), "q": self.second.copy(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Area.load_state_dict`."""
        super().load_state_dict(state)
        restore(self.second, state, "q")
        (self.steps,) = fields("PowerSGD", state, steps=int)


class PowerSGD(Compression[LowRank]):
    """Each matrix as a product of rank `rank` (Vogels, Karimireddy, Jaggi, NeurIPS 2019, algorithms 1 and 2).

    M is g + e, the gradient and the residual of earlier steps, in the shape (first dimension, product of the others).
    The ranks sum P = M Q and make its columns orthonormal. Then they average Q' = M^T P. The result is P Q'^T, each
    rank keeps e = M - P (M^T P)^T of its own, and the next step begins with that Q'. The first Q is drawn from `seed`.
    Gradients of one dimension, and matrices of which the factors have no fewer elements, are averaged as they are. So
    are all gradients of the first `start_after` steps (default: 0).

    Guarantee: the result, and the mean of the residuals, together are the mean of g + e, to rounding. A mean of rank at
    most `rank` comes out whole, so at full rank nothing is lost. A gradient of zeros gives zeros; a direction that a
    gradient lacks is drawn anew for the next step. A matrix that is not finite on one rank becomes NaN on all. What
    differs from rank to rank and cancels in the mean stays in the residuals, which grow where data differ in kind.

    Cost: `rank` (m + n) elements for a matrix (m, n), in two all-reduces a bucket; 4 `rank` m n operations and as many
    for the two products P Q^T. Raises ValueError for a rank below 1, or a negative `start_after` or `seed`.
    """

    per_rank = True

    def __init__(self, rank: int = 2, *, start_after: int = 0, seed: int = 0) -> None:
        super().__init__()
        self.rank = count("rank", rank)
        self.start_after, self.seed = count("start_after", start_after, 0), count("seed", seed, 0)

    def _make(self, bucket: Bucket, comm: Any) -> LowRank:
        return LowRank(bucket, comm, self.rank, self.seed)

    def exchange(self, bucket: Bucket, comm: Any) -> Iterator[Any]:
        """See `Compression.exchange`."""
        area, grads = self._area(bucket, comm), bucket.grads
        area.steps += 1
        if area.steps <= self.start_after or not area.matrices:
            yield self._allreduce(comm, grads, grads)
            grads /= comm.size
            return
        with np.errstate(over="ignore", invalid="ignore"):
            _project(area, grads)
        yield self._allreduce(comm, area.first, area.first)
        with np.errstate(over="ignore", invalid="ignore"):
            area.unpack(grads, comm.size)
            _project_back(area)
        request = self._allreduce(comm, area.second, area.mean)
        with np.errstate(over="ignore", invalid="ignore"):
            _keep_errors(area, grads)  # while the sum is under way
        yield request
        with np.errstate(over="ignore", invalid="ignore"):
            area.mean /= comm.size
            _finish(area, grads)

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "rank": self.rank, "start_after": self.start_after, "seed": self.seed}


def _project(area: LowRank, grads: Array) -> None:
    """M = g + e in place of the residual; P = M Q of each matrix."""
    for f in area.matrices:
        m = f.matrix(area.residual)
        m += f.matrix(grads)
        np.matmul(f.q, m.T, out=f.p)
    area.pack(grads)


def _project_back(area: LowRank) -> None:
    """Orthonormal P, and Q = M^T P, of each matrix."""
    for f in area.matrices:
        orthonormal(f.p)
        np.matmul(f.p, f.matrix(area.residual), out=f.q)


def _keep_errors(area: LowRank, grads: Array) -> None:
    """e = M - P Q^T with the Q of this rank; the gradients, which nothing needs any more, are working memory."""
    for f in area.matrices:
        sent, m = f.matrix(grads), f.matrix(area.residual)
        product(f.p, f.q, sent)
        m -= sent


def _finish(area: LowRank, grads: Array) -> None:
    """The result P Q^T with the mean Q. A matrix whose Q is not finite leaves no residual."""
    for f in area.matrices:
        product(f.p, f.mean_q, f.matrix(grads))
        if not np.isfinite(f.mean_q).all():
            f.matrix(area.residual).fill(0)
        f.warm_start()
