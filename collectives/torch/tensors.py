"""Tensors as memory: address, count, and the kernels' codes of element type and op."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..core import _core

__all__ = [
    "CODES",
    "FAST_CODES",
    "FAST_OPS",
    "Inward",
    "Outward",
    "Reduction",
    "check",
    "check_on_cpu",
    "lies_plain",
    "write",
]

#: The kernels' code of each element type that can be reduced; other types (float8, quantised, ...) are only moved.
CODES = {
    getattr(torch, name): code
    for code, name in enumerate(_core.DTYPES)
    if isinstance(getattr(torch, name, 0), torch.dtype)
}

_RED = dist.ReduceOp.RedOpType
_NAMES = {
    _RED.SUM: "sum", _RED.AVG: "avg", _RED.PRODUCT: "prod", _RED.MIN: "min", _RED.MAX: "max", _RED.BAND: "band",
    _RED.BOR: "bor", _RED.BXOR: "bxor",
}  # fmt: skip
#: Ops on bool, as in torch: a sum is true if any term is, a product if all factors are.
_LOGICAL = {"sum": "lor", "max": "lor", "bor": "lor", "prod": "land", "min": "land", "band": "land", "bxor": "lxor"}

#: What the fast path takes: ops by their hash, which costs half as much as their type, and all types but bool.
FAST_OPS = {hash(dist.ReduceOp(op)): _core.OPS.index(name) for op, name in _NAMES.items()}
FAST_CODES = {dtype: code for dtype, code in CODES.items() if dtype is not torch.bool}


def check(tensor: torch.Tensor, argument: str) -> None:
    """TypeError if a tensor is neither on the CPU nor on a GPU of NVIDIA's, or is not strided."""
    if not tensor.is_cpu and not tensor.is_cuda:
        raise TypeError(f"{argument}: a tensor on {tensor.device}; this backend takes tensors on the CPU and on CUDA")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{argument}: a tensor of layout {tensor.layout}; only all_reduce takes sparse tensors (COO)")


def check_on_cpu(tensor: torch.Tensor, argument: str) -> torch.Tensor:
    """The tensor; TypeError if it is not on the CPU, for what takes no others."""
    if not tensor.is_cpu:
        raise TypeError(f"{argument}: a tensor on {tensor.device}; this call takes tensors on the CPU only")
    return tensor


def write(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values into a tensor, also into one of torch's inference mode outside that mode, in any thread."""
    with torch.inference_mode() if target.is_inference() else contextlib.nullcontext():
        target.copy_(values)


class Reduction:
    """An op of torch's for an element type: the kernels' codes, and the factor of PREMUL_SUM.

    TypeError if the op cannot be applied to the type.
    """

    def __init__(self, op: Any, dtype: torch.dtype):
        kind = op.op if isinstance(op, dist.ReduceOp) else op
        self.factor = op.factor if kind == _RED.PREMUL_SUM else None
        name = "sum" if self.factor is not None else _NAMES.get(kind)
        if dtype is torch.bool and name is not None:
            name = _LOGICAL.get(name)
        code = CODES.get(dtype)
        self.op = -1 if name is None else _core.OPS.index(name)
        floating = dtype.is_floating_point or dtype.is_complex
        wrong = self.factor is not None and not floating
        if code is None or name is None or wrong or not _core.has_kernel(code, self.op):
            raise TypeError(f"op: Cannot use ReduceOp.{kind.name} with {dtype} tensors")
        self.dtype: int = code

    def scaled(self, tensor: torch.Tensor) -> torch.Tensor:
        """The operand: the tensor, multiplied by the factor if there is one."""
        return tensor if self.factor is None else tensor * torch.as_tensor(self.factor, dtype=tensor.dtype)


class _Memory:
    """Tensors as one piece of memory. ``flat`` is None if they lie one after the other, else new memory for all."""

    def __init__(self, tensors: Sequence[torch.Tensor], argument: str):
        if not tensors:
            raise ValueError(f"{argument}: no tensors")
        for tensor in tensors:
            check(tensor, argument)
        self.counts = [tensor.numel() for tensor in tensors]
        self.tensors = [tensor.detach() for tensor in tensors]
        self.flat = adjacent(tensors)

    @property
    def owner(self) -> Any:
        """The object that keeps the memory alive."""
        return self.tensors if self.flat is None else self.flat

    @property
    def address(self) -> int:
        """Address of the first element."""
        return (self.tensors[0] if self.flat is None else self.flat).data_ptr()

    def pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor, and its part of the new memory in the same shape."""
        assert self.flat is not None
        for tensor, part in zip(self.tensors, self.flat.split(self.counts), strict=True):
            yield tensor, part.view(tensor.shape)

    def _join(self) -> None:
        for tensor, part in self.pairs():
            write(part, tensor)


class Inward(_Memory):
    """Tensors that a call reads."""

    def __init__(self, tensors: Sequence[torch.Tensor], argument: str):
        super().__init__(tensors, argument)
        if self.flat is not None:
            self._join()

    def avoid(self, target: Outward) -> None:
        """Read from a copy if the target overlaps."""
        if self.flat is None and target.flat is None:
            mine, theirs = (sum(counts) * self.tensors[0].element_size() for counts in (self.counts, target.counts))
            if self.address < target.address + theirs and target.address < self.address + mine:
                self.flat = _empty_like(self.tensors, sum(self.counts))
                self._join()


class Outward(_Memory):
    """Tensors that a call writes. ValueError if elements of one of them lie at the same place."""

    def __init__(self, tensors: Sequence[torch.Tensor], argument: str):
        super().__init__(tensors, argument)
        if self.flat is not None and any(torch._debug_has_internal_overlap(tensor) == 1 for tensor in tensors):
            raise ValueError(f"{argument}: elements that share memory, as after expand(); pass a copy made by clone()")

    @property
    def ends(self) -> list[Callable[[], None]]:
        """Functions to call when the memory has been written."""
        return [] if self.flat is None else [self.spread]

    def spread(self) -> None:
        """Copy what was written from the new memory to the tensors."""
        for tensor, part in self.pairs():
            write(tensor, part)

    def keep(self) -> None:
        """Copy the tensors to the new memory, if there is any, for a call that may write only some of it."""
        if self.flat is not None:
            self._join()


def lies_plain(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in memory one after the other, and are neither negated nor conjugated lazily."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def adjacent(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """None if tensors lie one after the other in memory, like pieces of one tensor; else new memory for all of them."""
    end = tensors[0].data_ptr()
    for tensor in tensors:
        if not lies_plain(tensor) or tensor.numel() and tensor.data_ptr() != end:
            return _empty_like(tensors, sum(t.numel() for t in tensors))
        end += tensor.numel() * tensor.element_size()
    return None


def _empty_like(tensors: Sequence[torch.Tensor], count: int) -> torch.Tensor:
    """New memory for ``count`` elements, where the tensors are."""
    return torch.empty(count, dtype=tensors[0].dtype, device=tensors[0].device)
