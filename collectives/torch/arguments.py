"""The arguments that c10d passes to a process group: options, or a value in their place, and lists of one item."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from .tensors import lies_plain

__all__ = ["Tensors", "plain_blocks", "list_of", "one_of", "options_of"]

Tensors = list[torch.Tensor]


def options_of(kind: Any, given: Any, timeout: timedelta | None = None) -> tuple[Any, Any]:
    """The options of a call, and the value that was given in their place (an op or a root, as in C++ overloads)."""
    if isinstance(given, kind):
        return given, None
    made = kind()
    if timeout is not None:
        made.timeout = timeout
    return made, given


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
