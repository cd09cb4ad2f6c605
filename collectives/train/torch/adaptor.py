"""`Model` for torch's networks, and the choice of `Handle` for their optimizers."""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..flat.model import Slot
from ..models.nn import Array
from ..tensors import as_bytes
from .on_device import DeviceSlot, check_devices, on_device
from .optimizer import TorchHandle
from .slots import TorchSlot, numpy_dtype


class TorchModel:
    """A module (see `Model`). Parameters that do not require a gradient, and buffers, are `extras`.

    A parameter that several layers share is one slot. ``samples`` is the length of the first tensor among the arguments
    of the last call of the module with gradients enabled.
    """

    def __init__(self, net: torch.nn.Module, groups: dict[torch.nn.Parameter, int]) -> None:
        self._net = net
        self.samples = 1
        named = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
        kind = DeviceSlot if any(on_device(p) for _, p in named) else TorchSlot
        self.slots = [kind(name, p, order, groups[p]) for order, (name, p) in enumerate(named)]
        self._frozen = [(name, p) for name, p in net.named_parameters() if not p.requires_grad]
        self._pass: object = None  # stands for the backward pass under way, from its first gradient to its end

    def __reduce__(self) -> tuple[Any, ...]:
        """Let copies and pickles of the network, whose hooks refer to this object, have one that nobody listens to."""
        return copyreg.__newobj__, (TorchModel,)  # type: ignore[attr-defined]

    def listen(self, ready: Callable[[Slot], None], end: Callable[[], None]) -> None:
        """See `Model.listen`."""
        self._end = end
        self._net.register_forward_pre_hook(self._count, with_kwargs=True)

        def arrived(slot: TorchSlot, _: torch.Tensor) -> None:
            if self._pass is None:
                self._pass = object()
                self._await_end(self._pass)
            ready(slot)

        for slot in self.slots:
            slot.parameter.register_post_accumulate_grad_hook(functools.partial(arrived, slot))

    def _await_end(self, begun: object) -> None:
        """Let autograd call ``_over(begun)`` at the end of the run that is under way. If that raises, none comes."""
        torch.autograd.Variable._execution_engine.queue_callback(functools.partial(self._over, begun))

    def _over(self, begun: object) -> None:
        """A run of autograd has ended, and with it the pass, unless it was a run within another one.

        Reentrant checkpoints make such runs. The run around ends later, and the next operation that it executes can ask
        for that.
        """
        if begun is not self._pass:  # `clear` was called after the pass had raised
            return
        around = torch._C._current_autograd_node()  # the operation within which this run was; None if this is outermost
        after = None if around is None else next((node for node, _ in around.next_functions if node is not None), None)
        if after is None:
            self._pass = None
            self._end()
            return

        def goes_on(_: Any) -> None:
            handle.remove()
            self._await_end(begun)

        handle = after.register_prehook(goes_on)

    def _count(self, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self.samples = next((len(t) for t in _tensors((args, kwargs)) if t.dim()), 1)

    def clear(self) -> None:
        """See `Model.clear`. A pass that has raised is given up, so that the next gradient begins a new one."""
        self._pass = None
        for slot in self.slots:
            slot.renew()

    def strangers(self) -> list[str]:
        """See `Model.strangers`."""
        return [name for name, p in self._frozen if p.requires_grad]

    def _others(self) -> list[tuple[str, torch.Tensor]]:
        return [*self._frozen, *self._net.named_buffers()]

    def extras(self) -> list[tuple[Array, Callable[[Array], None]]]:
        """See `Model.extras`."""
        return [(as_bytes(t).copy(), functools.partial(_put_bytes, t)) for _, t in self._others()]

    def on_load(self, hook: Callable[[], None], parts: bool = False) -> None:
        """See `Model.on_load`."""
        self._loaded = hook
        for module in self._net.modules() if parts else (self._net,):
            module.register_load_state_dict_post_hook(self._refresh if module is self._net else self._tell)

    def _tell(self, *_: Any) -> None:
        getattr(self, "_loaded", lambda: None)()  # absent in a copy

    def _refresh(self, *_: Any) -> None:
        for slot in getattr(self, "slots", ()):  # absent in a copy
            slot.fetch()
        self._tell()

    def describe(self) -> dict[str, Any]:
        """See `Model.describe`."""
        found: dict[str, Any] = {f"parameter {slot.name}": (slot.shape, slot.dtype.name) for slot in self.slots}
        return found | {f"buffer {name}": (tuple(t.shape), str(t.dtype)) for name, t in self._others()}


def _put_bytes(tensor: torch.Tensor, data: Array) -> None:
    """Put bytes that `as_bytes` made of a tensor of the same shape and type into `tensor`."""
    if tensor.numel():
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(data).view(tensor.dtype).view(tensor.shape))


def _tensors(thing: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict | tuple | list):
        for item in thing.values() if isinstance(thing, dict) else thing:
            yield from _tensors(item)


def _check(net: torch.nn.Module, devices: bool) -> None:
    """Raise TypeError or ValueError unless the module can be distributed; with `devices`, on a device too."""
    if isinstance(net, torch.nn.parallel.DistributedDataParallel):
        raise TypeError("the network is a DistributedDataParallel already; pass its .module")
    for name, p in net.named_parameters():
        if isinstance(p, torch.nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter {name} has no shape yet; call the network once first")
    check_devices(net, devices)
    for name, t in [*net.named_parameters(), *net.named_buffers()]:
        if t.layout is not torch.strided:
            raise TypeError(f"{name} has the layout {t.layout}; distribute takes dense tensors only")
    for name, p in net.named_parameters():
        if p.requires_grad:
            try:
                numpy_dtype(p.dtype)
            except TypeError as error:
                raise TypeError(f"parameter {name}: {error}") from None
    places: dict[int, str] = {}
    for name, p in net.named_parameters():
        if p.numel() and (other := places.setdefault(p.data_ptr(), name)) != name:
            raise ValueError(f"{other} and {name} share memory, which ends when they move; make them one Parameter")
    for name, module in net.named_modules():
        if getattr(module, "sparse", False) is True:
            raise TypeError(f"layer {name} makes sparse gradients; use sparse=False")


def adapt(net: torch.nn.Module, opt: Any, devices: bool = False) -> tuple[TorchModel, TorchHandle]:
    """The interface of `net` and `opt`. Raises TypeError or ValueError unless they can be distributed.

    `devices` says whether a network on a device can be.
    """
    _check(net, devices)
    if not isinstance(opt, torch.optim.Optimizer):
        raise TypeError(f"a torch network needs an optimizer of torch.optim, not {type(opt).__name__}")
    if isinstance(opt, torch.optim.LBFGS):
        raise TypeError("LBFGS calls the network several times in a step, which cannot be distributed")
    names = {p: name for name, p in net.named_parameters()}
    groups = {p: i for i, group in enumerate(opt.param_groups) for p in group["params"]}
    if any(p not in names for p in groups):
        raise ValueError("the optimizer is not over the parameters of this network")
    if left := [name for p, name in names.items() if p.requires_grad and p not in groups]:
        raise ValueError(f"the optimizer lacks {', '.join(left)}; add them, or set requires_grad to False")
    if not any(p.requires_grad for p in groups):
        raise ValueError("no parameter of this network requires a gradient")
    return TorchModel(net, groups), TorchHandle(opt, names)
