"""Parameters and gradients that are infinite or not a number: who has them, and the error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..flat.memory import squares

if TYPE_CHECKING:
    from ..flat.buckets import Bucket
    from ..models.nn import Array

REFUSED = "{} is not finite; a smaller learning rate may help"


def bad_parameter(buckets: Iterable[Bucket]) -> str | None:
    """The name of the first parameter that is not finite; None if all are. One pass over the parameters."""
    return _first((bucket, bucket.data) for bucket in buckets)


def _first(pairs: Iterable[tuple[Bucket, Array]]) -> str | None:
    found = [
        (slot.order, slot.name)
        for bucket, array in pairs
        if not math.isfinite(squares(array))
        for slot in bucket.parameters
        if not np.isfinite(array[slot.start : slot.start + slot.size]).all()
    ]
    return min(found)[1] if found else None


def check_gradients(buckets: Iterable[Bucket], rank: int | None = None) -> None:
    """Raise FloatingPointError, which names the parameter, if a gradient is not finite. One pass over the gradients.

    The gradient is that of `rank`, which is named, too, or (None) of all ranks.
    """
    name = _first((bucket, bucket.grads) for bucket in buckets)
    if name is not None:
        whose = "" if rank is None else f" on rank {rank}"
        raise FloatingPointError(REFUSED.format(f"the gradient of {name}{whose}"))


def check_parameters(buckets: Iterable[Bucket], rank: int) -> None:
    """Raise FloatingPointError, which names the parameter and the `rank`, if a parameter is not finite."""
    name = bad_parameter(buckets)
    if name is not None:
        raise FloatingPointError(REFUSED.format(f"parameter {name} of rank {rank}"))


def refuse_parameters(buckets: Iterable[Bucket], comm: Any) -> None:
    """Raise the error of `check_parameters` on all ranks, for the lowest rank that has one. Collective."""
    for rank, name in enumerate(comm.allgather(bad_parameter(buckets))):
        if name is not None:
            raise FloatingPointError(REFUSED.format(f"parameter {name} of rank {rank}"))
