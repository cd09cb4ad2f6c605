"""Calls of torch.distributed as calls of the engine: checks the arguments, finds the memory, makes the shape."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..arguments.shape import Shape
from ..core import _core
from . import gradients
from .tensors import Inward, Outward, Reduction, check, write

__all__ = ["Call", "Calls"]


@dataclass(slots=True)
class Call:
    """A collective on memory at two addresses.

    ``name`` is the collective's name in :data:`collectives.arguments.calls.COLLECTIVES`. ``owners`` keep the memory.
    When the call has run, the functions ``ends`` must be called. After that ``results`` hold the result.
    """

    name: str
    shape: Shape
    source: int
    target: int
    owners: Any
    results: list[Any]  # tensors, or as with c10d a list of them
    ends: list[Callable[[], None]] = field(default_factory=list)

    def finish(self) -> None:
        """Do what must be done when the call has run."""
        for end in self.ends:
            end()


class Calls:
    """Makes the calls of one group. TypeError or ValueError, naming the argument, before anything is sent."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self._token = torch.zeros(1, dtype=torch.uint8, device="cpu")

    def _check_root(self, root: int, argument: str) -> None:
        if not 0 <= root < self.size:
            raise ValueError(f"{argument}: {root} is not a rank of a group of {self.size}")

    # One vector

    def barrier(self) -> Call:
        """A barrier."""
        uint8, bor = _core.DTYPES.index("uint8"), _core.OPS.index("bor")
        address = self._token.data_ptr()
        return Call("barrier", Shape("barrier", 0, 1, 1, uint8, bor, True), address, address, self._token, [])

    def allreduce(self, tensor: torch.Tensor, op: Any) -> Call:
        """An all-reduce, in place."""
        reduction = Reduction(op, tensor.dtype)
        result = Outward([tensor], "tensor")
        if result.flat is not None:
            write(result.flat, tensor.detach().reshape(-1))
        if reduction.factor is not None:
            written = result.tensors[0] if result.flat is None else result.flat
            write(written, reduction.scaled(written))
        shape = Shape("allreduce", 0, tensor.numel(), tensor.element_size(), reduction.dtype, reduction.op, True)
        address = result.address if result.flat is not None else gradients.address_of(tensor)
        return Call("allreduce", shape, address, address, result.owner, [tensor], result.ends)

    def reduce(self, tensor: torch.Tensor, root: int, op: Any) -> Call:
        """A reduce, in place at the root; the tensors of the other ranks stay as they are."""
        self._check_root(root, "dst")
        if root == self.rank:
            made = self.allreduce(tensor, op)
            made.name, made.shape = "reduce", made.shape._replace(collective="reduce", root=root)
            return made
        reduction = Reduction(op, tensor.dtype)
        check(tensor, "tensor")
        source = Inward([reduction.scaled(tensor.detach())], "tensor")
        shape = Shape("reduce", root, tensor.numel(), tensor.element_size(), reduction.dtype, reduction.op, False)
        return Call("reduce", shape, source.address, 0, source.owner, [tensor])

    def broadcast(self, tensor: torch.Tensor, root: int) -> Call:
        """A broadcast, in place."""
        self._check_root(root, "src")
        buffer: Any = (Inward if root == self.rank else Outward)([tensor], "tensor")
        shape = _bytes("bcast", tensor.numel() * tensor.element_size(), root, True)
        ends = [] if root == self.rank else buffer.ends
        return Call("bcast", shape, buffer.address, buffer.address, buffer.owner, [tensor], ends)

    # A block from or for every rank

    def allgather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Call:
        """A block from every rank, each into a tensor of its own; blocks may differ in length."""
        target = Outward(outputs, "tensor_list")
        source = self._own(tensor, target.tensors[0].dtype)
        counts = self._counts(target.counts, tensor.numel(), "tensor_list")
        return self._moved("allgather", 0, source, target, counts, tensor.element_size(), [list(outputs)])

    def allgather_single(self, output: torch.Tensor, tensor: torch.Tensor) -> Call:
        """A block of one length from every rank, one after the other in one tensor."""
        target, source = Outward([output], "output_tensor"), self._own(tensor, output.dtype)
        counts = self._whole(output, tensor, "output_tensor")
        return self._moved("allgather", 0, source, target, counts, tensor.element_size(), [output])

    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Call:
        """A block of one length from every rank, on the root."""
        self._check_root(root, "dst")
        if self.rank != root:
            source = self._own(tensor, tensor.dtype)
            shape = _bytes("gather", tensor.numel() * tensor.element_size() * self.size, root)
            return Call("gather", shape, source.address, 0, source.owner, [])
        target = Outward(outputs, "gather_list")
        source = self._own(tensor, target.tensors[0].dtype)
        counts = self._counts(target.counts, tensor.numel(), "gather_list", equal=True)
        return self._moved("gather", root, source, target, counts, tensor.element_size(), outputs)

    def scatter(self, tensor: torch.Tensor, inputs: Sequence[torch.Tensor], root: int) -> Call:
        """A block of one length for every rank, from the root."""
        self._check_root(root, "src")
        target = Outward([tensor], "tensor")
        if self.rank != root:
            shape = _bytes("scatter", tensor.numel() * tensor.element_size() * self.size, root)
            return Call("scatter", shape, 0, target.address, target.owner, [tensor], target.ends)
        source = Inward(inputs, "scatter_list")
        _same(inputs[0].dtype, tensor.dtype, "scatter_list", "tensor")
        counts = self._counts(source.counts, tensor.numel(), "scatter_list", equal=True)
        return self._moved("scatter", root, source, target, counts, tensor.element_size(), [tensor])

    def reduce_scatter(self, output: torch.Tensor, inputs: Sequence[torch.Tensor], op: Any) -> Call:
        """This rank's block of the reduced vector. ``inputs`` are the vector's blocks, which may differ in length."""
        counts = self._counts([t.numel() for t in inputs], output.numel(), "input_list")
        return self._reduced(output, inputs, op, counts)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, op: Any) -> Call:
        """This rank's block of the reduced tensor; blocks are of one length."""
        return self._reduced(output, [tensor], op, self._whole(tensor, output, "input"))

    def _reduced(self, output: torch.Tensor, inputs: Sequence[torch.Tensor], op: Any, counts: list[int]) -> Call:
        reduction = Reduction(op, output.dtype)
        _same(inputs[0].dtype, output.dtype, "input", "output")
        for tensor in inputs:
            check(tensor, "input")
        source = Inward([reduction.scaled(tensor.detach()) for tensor in inputs], "input")
        target = Outward([output], "output")
        source.avoid(target)
        cuts = _cuts(counts, 1)
        shape = Shape(
            "reduce_scatter", 0, sum(counts), output.element_size(), reduction.dtype, reduction.op, False, cuts
        )  # fmt: skip
        name = "reduce_scatter_block" if cuts is None else "reduce_scatter"
        return Call(name, shape, source.address, target.address, (source.owner, target.owner), [output], target.ends)

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Call:
        """A block to and from every rank; blocks may differ in length."""
        for tensors, name in ((outputs, "output_tensor_list"), (inputs, "input_tensor_list")):
            if len(tensors) != self.size:
                raise ValueError(f"{name}: {len(tensors)} tensors for a group of {self.size}")
        source, target = Inward(inputs, "input_tensor_list"), Outward(outputs, "output_tensor_list")
        return self._exchanged(source, target, source.counts, target.counts, inputs[0], outputs)

    def alltoall_single(
        self, output: torch.Tensor, tensor: torch.Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> Call:  # fmt: skip
        """An all-to-all of tensors that are split along their first dimension, into equal parts if no lengths are
        given."""
        source, target = Inward([tensor], "input"), Outward([output], "output")
        sent = self._split(tensor, input_splits, "input")
        received = self._split(output, output_splits, "output")
        made = self._exchanged(source, target, sent, received, tensor, [output])
        if not len(output_splits) and not len(input_splits):
            made.name, made.shape = "alltoall", made.shape._replace(cuts=None, input_cuts=None)
        return made

    def _split(self, tensor: torch.Tensor, lengths: Sequence[int], name: str) -> list[int]:
        """Elements of each rank's part of a tensor."""
        rows = tensor.size(0) if tensor.dim() else 1
        lengths = list(map(operator.index, lengths))
        if not lengths:
            if rows % self.size:
                raise ValueError(f"{name}: its first dimension, {rows}, does not divide by {self.size} ranks")
            lengths = [rows // self.size] * self.size
        if len(lengths) != self.size:
            raise ValueError(f"{name}_split_sizes: {len(lengths)} numbers for a group of {self.size}")
        if sum(lengths) != rows or min(lengths) < 0:
            raise ValueError(f"{name}_split_sizes: they do not add up to the first dimension of {name}, {rows}")
        return [length * (tensor.numel() // max(1, rows)) for length in lengths]

    def _exchanged(
        self, source: Inward, target: Outward, sent: list[int], received: list[int], one: torch.Tensor,
        outputs: Sequence[torch.Tensor],
    ) -> Call:  # fmt: skip
        _same(one.dtype, outputs[0].dtype, "input", "output")
        if sent[self.rank] != received[self.rank]:
            raise ValueError(
                f"input has {sent[self.rank]} elements for this rank itself, output expects {received[self.rank]}"
            )
        source.avoid(target)
        item = one.element_size()
        shape = _bytes("alltoall", sum(received) * item, 0)
        shape = shape._replace(cuts=_bounds(received, item), input_cuts=_bounds(sent, item))
        owners = source.owner, target.owner
        return Call("alltoallv", shape, source.address, target.address, owners, list(outputs), target.ends)

    def _own(self, tensor: torch.Tensor, dtype: torch.dtype) -> Inward:
        _same(tensor.dtype, dtype, "tensor", "the list")
        return Inward([tensor], "tensor")

    def _counts(self, counts: list[int], own: int, argument: str, equal: bool = False) -> list[int]:
        """Elements of each rank's block, from a list of blocks of which this rank has one."""
        if len(counts) != self.size:
            raise ValueError(f"{argument}: {len(counts)} tensors for a group of {self.size}")
        if counts[self.rank] != own:
            raise ValueError(f"{argument}: {counts[self.rank]} elements for this rank, which has {own}")
        if equal and len(set(counts)) > 1:
            raise ValueError(f"{argument}: tensors of different sizes: {counts}")
        return counts

    def _whole(self, tensor: torch.Tensor, block: torch.Tensor, argument: str) -> list[int]:
        """Elements of each rank's block, from one tensor that has all blocks, of one length."""
        if tensor.numel() != block.numel() * self.size:
            raise ValueError(
                f"{argument}: {tensor.numel()} elements, where each of {self.size} ranks has {block.numel()}"
            )
        return [block.numel()] * self.size

    def _moved(
        self, name: str, root: int, source: Inward, target: Outward, counts: list[int], item: int,
        results: Sequence[Any],
    ) -> Call:  # fmt: skip
        cuts = _cuts(counts, item)
        begin = sum(counts[: self.rank]) * item
        same = (
            name != "scatter"
            and source.flat is None
            and target.flat is None
            and source.address == target.address + begin
        )
        if not same:
            source.avoid(target)
        shape = _bytes(name, sum(counts) * item, root, same)._replace(cuts=cuts)
        name += "" if cuts is None else "v"
        owners = source.owner, target.owner
        return Call(name, shape, source.address, target.address, owners, list(results), target.ends)


def _bytes(name: str, nbytes: int, root: int, same: bool = False) -> Shape:
    return Shape(name, root, nbytes, 1, -1, None, same)


def _bounds(counts: Sequence[int], item: int) -> tuple[int, ...]:
    return tuple(itertools.accumulate((count * item for count in counts), initial=0))


def _cuts(counts: Sequence[int], item: int) -> tuple[int, ...] | None:
    """Boundaries of the blocks, or None if all blocks are of one length."""
    return None if len(set(counts)) == 1 else _bounds(counts, item)


def _same(one: torch.dtype, other: torch.dtype, name: str, than: str) -> None:
    if one is not other:
        raise TypeError(f"{name}: of {one}, while {than} is of {other}")
