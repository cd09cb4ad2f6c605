"""The interface of Horovod's module for PyTorch: ``import collectives.horovod as hvd``. See docs/horovod.md.

The functions use torch.distributed's default process group. :func:`init` makes one of the backend ``collectives`` if
there is none. autograd does not differentiate through the collectives. The argument ``name`` is ignored.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .system.machine import node_name

Average, Sum, Min, Max = dist.ReduceOp.AVG, dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX
BUCKET_BYTES = 25 << 20  # as DistributedDataParallel's
rank, size = dist.get_rank, dist.get_world_size
Named = Iterable[tuple[str, torch.Tensor]]
_nodes: list[str] = []  # by rank
_made: list[Any] = []  # the default process group, if init made it


def init() -> None:
    """Make the default process group, unless there is one, and learn which ranks share a node."""
    if not dist.is_initialized():
        from . import torch as _backend  # noqa: F401  registers it

        dist.init_process_group("collectives")
        _made[:] = [dist.group.WORLD]
    _nodes[:] = allgather_object(node_name())


def shutdown() -> None:
    """Destroy the default process group if :func:`init` made it; a group that it found stays."""
    if dist.group.WORLD in _made:
        dist.destroy_process_group()


def local_rank() -> int:
    """The number of this rank among the ranks of its node, from 0; RuntimeError before :func:`init`."""
    if not dist.is_initialized() or len(_nodes) != size():
        raise RuntimeError("local_rank: call init() first")
    return _nodes[: rank()].count(_nodes[rank()])


class _Compressor(NamedTuple):
    wide: tuple[torch.dtype, ...]

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return (tensor.half() if tensor.dtype in self.wide else tensor), tensor.dtype

    def decompress(self, tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx)


class Compression:
    """What is sent for a tensor: ``none``, the tensor; ``fp16``, a float16 copy if it is float32 or float64."""

    none, fp16 = _Compressor(()), _Compressor((torch.float32, torch.float64))


def allreduce(tensor: torch.Tensor, name: str | None = None, compression=Compression.none, op=Average) -> torch.Tensor:
    """All ranks' tensors reduced by ``op``, as a new tensor of their shape. ValueError for means of integers."""
    if isinstance(name, bool):
        raise TypeError("name: Horovod's `average` is not an argument here; pass op=Average or op=Sum")
    if op == Average and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"op: the mean of {tensor.dtype} has another type; take Sum and divide")
    small, ctx = compression.compress(tensor.detach().clone(memory_format=torch.contiguous_format))
    dist.all_reduce(small, op=op)
    return compression.decompress(small, ctx)


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """The ranks' tensors concatenated along the first dimension; ValueError if shapes differ in another dimension."""
    shapes = allgather_object(tuple(tensor.shape))
    if not all(shapes) or len({shape[1:] for shape in shapes}) > 1:
        raise ValueError(f"tensor: the ranks' shapes may differ in the first dimension only, not {shapes}")
    padded = torch.cat([tensor.detach(), tensor.new_zeros((max(shapes)[0] - len(tensor), *tensor.shape[1:]))])
    dist.all_gather(parts := [torch.empty_like(padded) for _ in shapes], padded)
    return torch.cat([part[: shape[0]] for part, shape in zip(parts, shapes, strict=True)])


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """The root's tensor, as a new tensor. All ranks pass a tensor of the same shape and type. Blocking."""
    dist.broadcast(result := tensor.detach().clone(memory_format=torch.contiguous_format), root_rank)
    return result


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """A list of all ranks' objects, in rank order; objects are pickled. Blocking."""
    dist.all_gather_object(objects := [None] * size(), obj)
    return objects


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The root's object on all ranks; it is pickled. Blocking."""
    dist.broadcast_object_list(objects := [obj], src=root_rank)
    return objects[0]


def broadcast_parameters(params: Mapping[str, torch.Tensor] | Named, root_rank: int = 0) -> None:
    """Copy the root's ``state_dict()`` or ``named_parameters()`` to all ranks; ValueError unless they have the same."""
    _check_alike("params", pairs := list(params.items() if isinstance(params, Mapping) else params))
    for _, tensor in pairs:
        tensor.detach().copy_(broadcast(tensor, root_rank))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Copy the optimizer's state and options from the root to all ranks, also to ranks that have no state yet."""
    optimizer.load_state_dict(broadcast_object(optimizer.state_dict(), root_rank))


def _check_alike(argument: str, pairs: list[tuple[str, torch.Tensor]]) -> None:
    mine = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in pairs]
    for other, theirs in enumerate(of_all := allgather_object(mine)):
        if theirs != of_all[0]:
            at = next((pair for pair in zip(of_all[0], theirs, strict=False) if pair[0] != pair[1]), "another number")
            raise ValueError(f"{argument}: not the same on ranks 0 and {other}: {at}")


class _Distributed:
    """Base class of distributed optimizers. Buckets are reduced in one order on all ranks, as they become complete."""

    def _distribute(self, params: list[torch.Tensor], compression, passes: int, op) -> None:
        self._compression, self._op, self.backward_passes_per_step, self._reduced = compression, op, passes, False
        self._fresh = True  # whether step() is to reduce: unless synchronize() has, and no backward pass came after it
        self._buckets: list[list[torch.Tensor]] = []
        self._index: dict[torch.Tensor, int] = {}  # number of each parameter's bucket
        filled, alike = 0, None
        for param in reversed(params):  # about the order in which gradients come
            if alike != (alike := (param.dtype, param.device)) or filled + param.nbytes > BUCKET_BYTES:
                self._buckets, filled = [*self._buckets, []], 0
            self._buckets[-1].append(param)
            self._index[param], filled = len(self._buckets) - 1, filled + param.nbytes
            param.register_post_accumulate_grad_hook(self._arrived)
        self._reset()
        self.register_step_pre_hook(_Distributed._before_step)  # type: ignore[attr-defined]

    def _reset(self) -> None:
        self._passes: Counter[torch.Tensor] = Counter()
        self._missing = [len(bucket) for bucket in self._buckets]
        self._begun: list[tuple[torch.Tensor, torch.dtype, dist.Work]] = []  # of the buckets that are under way
        self._sent: list[tuple[torch.Tensor, torch.Tensor, int]] = []  # their gradients, and the versions of these

    def _arrived(self, param: torch.Tensor) -> None:
        self._passes[param] += 1
        self._fresh = True
        if self._passes[param] > (most := self.backward_passes_per_step):
            self._sent = []  # this pass has changed the gradient, which is said here
            raise RuntimeError(f"more backward passes before step() than backward_passes_per_step={most}")
        self._missing[self._index[param]] -= self._passes[param] == self.backward_passes_per_step
        while len(self._begun) < len(self._buckets) and not self._missing[len(self._begun)]:
            self._start(self._buckets[len(self._begun)])

    def _start(self, bucket: list[torch.Tensor]) -> None:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        if any(grad.layout is not torch.strided for grad in grads):
            raise TypeError("a sparse gradient, as of Embedding(sparse=True): DistributedOptimizer takes dense ones")
        self._sent += [(p, p.grad, p.grad._version) for p in bucket if p.grad is not None]
        small, ctx = self._compression.compress(torch.cat([grad.reshape(-1) for grad in grads]))
        self._begun.append((small, ctx, dist.all_reduce(small, op=self._op, async_op=True)))

    def synchronize(self) -> None:
        """Wait until all gradients are reduced, e.g. to clip them. Then ``step`` inside :meth:`skip_synchronize`.

        RuntimeError for a gradient that is in no bucket: of a parameter that was added or unfrozen later; and for one
        that was changed, e.g. unscaled or clipped, between ``backward`` and this call, since it was being reduced.
        """
        held = [p for group in self.param_groups for p in group["params"]]  # type: ignore[attr-defined]
        if late := [number for number, p in enumerate(held) if p.grad is not None and p not in self._index]:
            why = "were frozen, or not there, when DistributedOptimizer was called: freeze them after that"
            raise RuntimeError(f"the gradients of the optimizer's parameters {late} are not reduced, since these {why}")
        if any(param.grad is not grad or grad._version != version for param, grad, version in self._sent):
            raise RuntimeError(
                "a gradient was changed after backward(), while it was being reduced: call synchronize() before that, "
                "and step() inside skip_synchronize()"
            )
        for bucket in self._buckets[len(self._begun) :]:
            self._start(bucket)
        for bucket, (small, ctx, work) in zip(self._buckets, self._begun, strict=True):
            work.wait()
            parts = self._compression.decompress(small, ctx).split([p.numel() for p in bucket])
            for param, part in zip(bucket, parts, strict=True):
                if param.requires_grad or param.grad is not None:  # else it was frozen: torch leaves it out of steps
                    param.grad = part.view_as(param)
        self._reset()
        self._fresh = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients; RuntimeError after a backward pass, until ``step`` or :meth:`synchronize`."""
        if self._passes:
            raise RuntimeError("zero_grad: the gradients are being reduced; call step() or synchronize() before it")
        self._fresh = True
        super().zero_grad(set_to_none)  # type: ignore[misc]

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which ``step`` uses the gradients as they are, after a call of :meth:`synchronize`."""
        self._reduced = True
        try:
            yield
        finally:
            self._reduced = False

    def _before_step(self, args, kwargs) -> None:
        if (args[1] if len(args) > 1 else kwargs.get("closure")) is not None:
            raise ValueError("closure: gradients made inside step() are not reduced; call backward() before it")
        if not self._reduced and self._fresh:
            self.synchronize()
        self._fresh = True


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer, named_parameters: Named | None = None,
    compression=Compression.none, backward_passes_per_step: int = 1, op=Average,
) -> Any:  # fmt: skip
    """Let an optimizer's ``step`` use gradients that were reduced over all ranks during the backward pass.

    Changes the optimizer in place and returns it. Gradients of ``backward_passes_per_step`` passes are added up and
    sent once; a parameter without a gradient counts with zeros. ``step`` raises RuntimeError for a gradient of one that
    was added, or did not require gradients yet. ValueError unless ``named_parameters`` names each parameter once, and
    those that require gradients in one order on all ranks. ``op`` and ``compression`` are as in :func:`allreduce`.
    """
    if isinstance(optimizer, _Distributed):
        raise ValueError("optimizer: it is distributed already")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step: expected at least 1, not {backward_passes_per_step}")
    params = {p: f"parameter {i}" for i, p in enumerate(p for g in optimizer.param_groups for p in g["params"])}
    named = [(name, p) for name, p in named_parameters or ((n, p) for p, n in params.items()) if p in params]
    if len({name for name, _ in named}) < len(params) or len(named) > len(params):
        raise ValueError("named_parameters: each parameter of the optimizer needs one name of its own")
    _check_alike("named_parameters", trained := [(name, p) for name, p in named if p.requires_grad])
    optimizer.__class__ = type(type(optimizer).__name__, (_Distributed, type(optimizer)), {})
    optimizer._distribute([p for _, p in trained], compression, backward_passes_per_step, op)
    return optimizer
