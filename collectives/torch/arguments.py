"""The arguments that c10d passes to a process group: options, or values in their place, and lists of one item."""

from __future__ import annotations

from datetime import timedelta
from numbers import Integral
from typing import Any

import torch
import torch.distributed as dist

from .tensors import lies_plain

__all__ = ["Limit", "Root", "Tensors", "plain_blocks", "list_of", "one_of", "options_of"]

Tensors = list[torch.Tensor]
Limit = timedelta | None  # the timeout of a call; None: the group's
Root = int | None

#: The fields of options, each with the type of its values.
_TYPES: dict[str, Any] = {
    "rootRank": Integral, "reduceOp": (dist.ReduceOp, dist.ReduceOp.RedOpType), "timeout": timedelta
}  # fmt: skip


def options_of(kind: Any, given: Any, op: Any = None, timeout: Limit = None, root: Root = None) -> Any:
    """The options of a call, of class ``kind``, from options or from single values, as in the overloads of C++.

    ``given`` is what was passed in the place of options: these, or the first value of an overload, which is a root if
    ``kind`` has one, else an op, else a timeout. The others are the values beside it. TypeError if they do not fit.
    """
    fields = {"rootRank": root, "reduceOp": op, "timeout": timeout}
    if isinstance(given, kind) and root is None and op is None and timeout is None:
        return given
    made = kind()
    if given is not None:
        first = next(field for field in _TYPES if hasattr(made, field))
        if not isinstance(given, _TYPES[first]) or fields[first] is not None:
            what = f"{kind.__name__} alone, or {first} in its place"
            raise TypeError(f"opts: expected {what}, not {type(given).__name__}")
        fields[first] = given
    for field, value in fields.items():
        if value is not None:
            setattr(made, field, value)
    return made


def one_of(tensors: Any, argument: str) -> torch.Tensor:
    """The tensor in a list of one, as c10d passes it. ValueError for any other number of tensors."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{argument}: {len(tensors)} tensors, where each process passes one")
    return tensors[0]


def list_of(tensors: Any) -> Tensors:
    """The list of tensors in a list of one, as c10d passes it. ValueError for any other number of lists."""
    if tensors and isinstance(tensors[0], torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{len(tensors)} lists of tensors, where each process passes one")
    return tensors[0]


def plain_blocks(block: torch.Tensor, whole: torch.Tensor, size: int) -> bool:
    """Whether ``block`` is one rank's block of ``whole``, and both can be used as they lie in memory, without a
    copy."""
    return (
        block.is_cpu and whole.is_cpu and block.dtype is whole.dtype
        and block.layout is torch.strided and whole.layout is torch.strided
        and lies_plain(block) and lies_plain(whole) and whole.numel() == block.numel() * size
        and not _overlap(block, whole)
    )  # fmt: skip


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    a, b = one.data_ptr(), other.data_ptr()
    return a < b + other.nbytes and b < a + one.nbytes
