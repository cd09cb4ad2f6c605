"""Gradients in 8 bits, with one scale for each block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..flat.buckets import Bucket
from ..models.nn import Array
from .base import Area, Compression

BLOCK = 1024  # the most elements of one scale
TOP = 127.0
TINY = TOP * float(np.finfo(np.float32).tiny)  # below this a scale has no exact reciprocal


def layout(count: int, size: int) -> tuple[int, int]:
    """How many blocks each of `size` ranks owns, and how many elements a block has: as few as cover `count`.

    All blocks have the same length, a multiple of 4 of at most BLOCK elements.
    """
    share = -(-count // size)
    blocks = max(1, -(-share // BLOCK))
    return blocks, max(4, 4 * -(-share // (4 * blocks)))


class Blocks(Area):
    """A bucket as blocks by owner: ``x`` (ranks, blocks, elements) holds the residuals, padded with zeros.

    ``send`` and ``receive`` have one record for each rank: the scales of its blocks and their 8-bit values.
    """

    residual: Array

    def __init__(self, bucket: Bucket, comm: Any) -> None:
        super().__init__(bucket, comm)
        blocks, length = layout(self.count, comm.size)
        record = np.dtype([("scales", np.float32, (blocks,)), ("values", np.int8, (blocks, length))])
        shape = (comm.size, blocks, length)
        self.x = np.zeros(shape, self.dtype)
        self.scratch = np.empty(shape, self.dtype)
        self.total = np.empty(shape[1:], self.dtype)
        self.sent_bytes = self.message(comm.size * record.itemsize, np.uint8)
        self.received_bytes = self.message(comm.size * record.itemsize, np.uint8)
        self.send, self.receive = self.sent_bytes.view(record), self.received_bytes.view(record)
        self.residual = self.x.reshape(-1)[: self.count]


def quantise(x: Array, record: Any, scratch: Array) -> None:
    """Write the scales and values of the blocks `x` (..., elements) into `record`, and what they lose into `x`.

    scale = max|x|, value = round(127 x / scale). The values of a block that has a number that is not finite are 0, its
    scale is NaN, and nothing is left of it in `x`. A block below 1.5e-36 is not sent: all of it stays in `x`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scales = np.maximum(x.max(axis=-1), -x.min(axis=-1)).astype(np.float32)
    wrong = ~np.isfinite(scales)
    if wrong.any():
        x[wrong] = 0
        scales[wrong] = 0
    scales[scales < TINY] = 0
    factors = np.divide(TOP, scales, out=np.zeros_like(scales), where=scales > 0)
    np.multiply(x, factors[..., None], out=scratch)
    np.rint(scratch, out=scratch)
    record["values"] = scratch
    record["scales"] = scales
    x -= dequantise(record, scratch)
    if wrong.any():
        record["scales"][wrong] = np.nan


def dequantise(record: Any, scratch: Array) -> Array:
    """The blocks that `record` stands for, value scale / 127, in `scratch`, which is returned."""
    steps = record["scales"] / np.float32(TOP)
    return np.multiply(record["values"], steps[..., None], out=scratch)


class Int8(Compression[Blocks]):
    """8 bits an element and a scale for each block of at most 1024 (QSGD: Alistarh et al., NeurIPS 2017, sec. 3, here
    with rounding to nearest), with error feedback on both ways (DoubleSqueeze: Tang et al., ICML 2019, algorithm 1).

    g is the gradient, e the residual: what roundings have lost in earlier steps. Each block Q(x) is max|x| and
    round(127 x / max|x|). A rank sends Q(g + e) and keeps e = (g + e) - Q(g + e). Each rank owns a part of the vector,
    adds the ranks' numbers of that part in float32 or float64, in rank order, and sends Q of the sum to all. What that
    second rounding loses is added to the owner's residual.

    Guarantee: the number of ranks times the result, and the sum of the residuals, together are the sum of the gradients
    and of the former residuals, to rounding. An element of the result is off by at most max|x| / 254 of its block on
    each rank, and once more for the sum. A block that is not finite on one rank becomes NaN everywhere.

    Cost: 1 + 1/ranks bytes an element and 4 bytes a scale, in an all-to-all and an all-gather.
    """

    per_rank = True

    def _make(self, bucket: Bucket, comm: Any) -> Blocks:
        return Blocks(bucket, comm)

    def exchange(self, bucket: Bucket, comm: Any) -> Iterator[Any]:
        """See `Compression.exchange`."""
        area = self._area(bucket, comm)
        area.residual += bucket.grads
        quantise(area.x, area.send, area.scratch)
        yield self._alltoall(comm, area.sent_bytes, area.received_bytes)
        own = slice(comm.rank, comm.rank + 1)
        with np.errstate(over="ignore", invalid="ignore"):
            np.sum(dequantise(area.receive, area.scratch), axis=0, out=area.total)
        quantise(area.total[None], area.send[own], area.scratch[own])
        area.x[own] += area.total
        record = area.send[own].view(np.uint8)
        yield self._allgather(comm, record, area.received_bytes)
        mean = dequantise(area.receive, area.scratch).reshape(-1)[: area.count]
        np.divide(mean, comm.size, out=bucket.grads)

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "block": BLOCK}
