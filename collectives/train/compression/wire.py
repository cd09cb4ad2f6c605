"""Gradients that travel in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..flat.buckets import Bucket
from .base import Area, Compression


class Wire(Area):
    """The gradients of a bucket in the type in which they travel."""

    def __init__(self, bucket: Bucket, comm: Any, dtype: DTypeLike) -> None:
        super().__init__(bucket, comm)
        self.array = self.message(self.count, dtype)


class Cast(Compression[Wire]):
    """Casts to a type of 16 bits, all-reduces, and casts back."""

    def _dtype(self) -> DTypeLike:
        """The type in which gradients travel."""
        raise NotImplementedError

    def _make(self, bucket: Bucket, comm: Any) -> Wire:
        return Wire(bucket, comm, self._dtype())

    def exchange(self, bucket: Bucket, comm: Any) -> Iterator[Any]:
        """See `Compression.exchange`."""
        import collectives

        wire = self._area(bucket, comm).array
        with np.errstate(over="ignore", invalid="ignore"):
            wire[...] = bucket.grads
        yield self._allreduce(comm, wire, wire, collectives.AVG)
        bucket.grads[...] = wire


class Float16Wire(Cast):
    """Gradients travel as float16 (the type of Micikevicius et al., ICLR 2018, sec. 3).

    Guarantee: the result is the mean of the rounded gradients. Each gradient is rounded once, and so is the mean, which
    is accumulated in float32; between nodes it is rounded once a hop. A rounding has a relative error of at most 2^-11,
    or an absolute one of 2^-25 below 6e-5. Nothing is kept for the next step. A gradient beyond 65504 becomes inf, and
    so does the mean on all ranks: a strategy that looks for such values skips the step.

    Cost: 2 bytes an element, in one all-reduce. The communicator must be a ``collectives.Communicator``, because MPI
    has no such type.
    """

    def _dtype(self) -> DTypeLike:
        return np.float16


class BFloat16Wire(Cast):
    """Gradients travel as bfloat16 (the type of Kalamkar et al. 2019).

    Guarantee: the result is the mean of the rounded gradients. Each gradient is rounded once, and so is the mean, which
    is accumulated in float32; between nodes it is rounded once a hop. A rounding has a relative error of at most 2^-8.
    The range is that of float32. Nothing is kept for the next step.

    Cost: 2 bytes an element, in one all-reduce. The communicator must be a ``collectives.Communicator``, because MPI
    has no such type. Raises ImportError where the package ml_dtypes is missing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dtype()

    def _dtype(self) -> DTypeLike:
        try:
            import ml_dtypes
        except ImportError as e:
            raise ImportError("BFloat16Wire needs ml_dtypes: pip install ml_dtypes", name="ml_dtypes") from e
        dtype: DTypeLike = ml_dtypes.bfloat16
        return dtype
