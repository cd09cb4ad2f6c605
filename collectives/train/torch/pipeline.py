"""`Block` and `Framework` for torch's modules: the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..models.nn import Array
from ..pipeline.blocks import LossOf
from ..tensors import as_numpy, as_tensor
from . import adaptor

__all__ = ["TorchFramework"]

PassingState = tuple[torch.Tensor, dict[tuple[int, str], torch.Tensor]]


class _Saved(NamedTuple):
    """What a block keeps for its backward pass."""

    inputs: list[torch.Tensor]
    differentiated: Sequence[bool]  # whose gradients are asked for; integers have none
    output: torch.Tensor
    used: list[torch.Tensor]
    memory: dict[int, int]


class TorchBlock:
    """A module that takes tensors and returns one (see `Block`).

    What it saves are its inputs, cut off from the graphs of other blocks, its result with the graph of this one, and
    the parameters that were used. The halves of a backward pass both go through the graph, which costs the gradients
    within the module twice; of a module with one operation, as Linear, it costs nothing.
    """

    def __init__(self, module: torch.nn.Module, names: Mapping[torch.nn.Parameter, str]) -> None:
        self._module = module
        self._own = {names[p]: p for p in module.parameters() if p.requires_grad}
        self._paths = {names[p]: path for path, p in module.named_parameters() if p.requires_grad}
        self._weights: Mapping[str, torch.Tensor] | None = None
        self._in_place = any(getattr(inner, "inplace", False) for inner in module.modules())

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """See `Block.parameters`."""
        return self._own

    def forward(
        self, inputs: Sequence[torch.Tensor], differentiated: Sequence[bool], keep: bool
    ) -> tuple[torch.Tensor, _Saved | None]:
        """See `Block.forward`. RuntimeError for a module that changes an input which is kept."""
        if not keep:
            versions = [x._version for x in inputs]
            with torch.no_grad():
                output = self._call(inputs)
            if versions != [x._version for x in inputs]:
                name = type(self._module).__name__
                raise RuntimeError(f"{name} changes its input in place, so its forward pass cannot be repeated")
            return output, None
        own = [
            x.detach().requires_grad_(asked and (x.is_floating_point() or x.is_complex()))
            for x, asked in zip(inputs, differentiated, strict=True)
        ]
        memory: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
            memory[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return (tensor.detach() if tensor.grad_fn is not None else tensor), tensor._version

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, self._unpack):
            output = self._call(own)
        used = self._used()
        for parameter in used:
            memory.pop(parameter.untyped_storage().data_ptr(), None)
        return output.detach(), _Saved(own, differentiated, output, used, memory)

    def _unpack(self, packed: tuple[torch.Tensor, int]) -> torch.Tensor:
        """A tensor that the graph has saved. torch itself does not look for changes of what hooks have packed."""
        tensor, version = packed
        if tensor._version != version:
            name = type(self._module).__name__
            raise RuntimeError(f"a tensor that {name} needs for its backward pass was changed in place")
        return tensor

    def _call(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The module's result. A copy of what it reads is for modules that work in place. TypeError for no tensor."""
        given = tuple(x.clone() for x in inputs) if self._in_place else tuple(inputs)
        if self._weights is None:
            output = self._module(*given)
        else:
            chosen = {path: self._weights[name] for name, path in self._paths.items()}
            output = torch.func.functional_call(self._module, chosen, given)
        if not isinstance(output, torch.Tensor):
            name = type(self._module).__name__
            raise TypeError(f"a block of a pipeline returns one tensor; {name} has returned {type(output).__name__}")
        return output

    def _used(self) -> list[torch.Tensor]:
        """The weights whose gradients are asked for. The program may freeze parameters between steps."""
        if self._weights is None:
            return [parameter for parameter in self._own.values() if parameter.requires_grad]
        return [self._weights[name] for name in self._own]

    def backward(self, saved: _Saved, grad: torch.Tensor) -> Sequence[torch.Tensor | None]:
        """See `Block.backward`."""
        asked = [x for x in saved.inputs if x.requires_grad]
        if self._weights is None:
            _add_up(saved.output, [*asked, *saved.used], grad)
            return _below(saved, [x.grad for x in asked])
        grads = _gradients(saved.output, [*asked, *saved.used], grad, again=False)
        self._accumulate(grads[len(asked) :])
        return _below(saved, grads)

    def backward_input(self, saved: _Saved, grad: torch.Tensor) -> Sequence[torch.Tensor | None]:
        """See `Block.backward_input`."""
        asked = [x for x in saved.inputs if x.requires_grad]
        return _below(saved, _gradients(saved.output, asked, grad, again=bool(saved.used)))

    def backward_weight(self, saved: _Saved, grad: torch.Tensor) -> None:
        """See `Block.backward_weight`."""
        if self._weights is None:
            _add_up(saved.output, saved.used, grad)
        else:
            self._accumulate(_gradients(saved.output, saved.used, grad, again=False))

    def _accumulate(self, grads: Sequence[torch.Tensor | None]) -> None:
        """Add gradients of copies of the weights to those of the parameters."""
        for parameter, grad in zip(self._own.values(), grads, strict=True):
            if grad is None or not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = grad.detach().clone()
            else:
                parameter.grad += grad

    def held(self, saved: _Saved) -> Mapping[int, int]:
        """See `Block.held`."""
        return saved.memory

    def use(self, weights: Mapping[str, torch.Tensor] | None) -> None:
        """See `Block.use`."""
        self._weights = weights

    def copy_weights(self) -> dict[str, torch.Tensor]:
        """See `Block.copy_weights`."""
        return {name: parameter.detach().clone().requires_grad_() for name, parameter in self._own.items()}

    def flops(self, inputs: Sequence[torch.Tensor]) -> float:
        """See `Block.flops`. Of what torch does not count (element by element), one for each element of the result."""
        from torch.utils.flop_counter import FlopCounterMode

        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            output = self._module(*inputs)
        return float(counter.get_total_flops() or output.numel())


def _gradients(
    output: torch.Tensor, wanted: Sequence[torch.Tensor], grad: torch.Tensor, again: bool
) -> Sequence[torch.Tensor | None]:
    if not wanted or not output.requires_grad:
        return [None] * len(wanted)
    return torch.autograd.grad(output, wanted, grad, retain_graph=again, allow_unused=True)


def _add_up(output: torch.Tensor, wanted: Sequence[torch.Tensor], grad: torch.Tensor) -> None:
    """Add to the gradients of `wanted`. torch does that in less time than `_gradients` and an addition take."""
    if wanted and output.requires_grad:
        torch.autograd.backward(output, grad, inputs=wanted)


def _below(saved: _Saved, grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The gradients of all inputs: zeros where one is asked for and does not count."""
    found = iter(grads)
    below: list[torch.Tensor | None] = []
    for x, asked in zip(saved.inputs, saved.differentiated, strict=True):
        grad = next(found) if x.requires_grad else None
        below.append(torch.zeros_like(x) if grad is None and asked else grad)
    return below


def _told(loss: Any) -> str:
    """What a loss function has returned."""
    if not isinstance(loss, torch.Tensor):
        return type(loss).__name__
    return f"one of shape {tuple(loss.shape)} and {loss.dtype}" + ("" if loss.requires_grad else " without a gradient")


class Modules(torch.nn.Module):
    """The modules of one rank as a network, whose parameters have the names of the whole model."""

    def __init__(self, blocks: Mapping[int, torch.nn.Module]) -> None:
        super().__init__()
        for number, block in blocks.items():
            self.add_module(str(number), block)


def _buffers(blocks: Sequence[torch.nn.Module]) -> dict[tuple[int, str], torch.Tensor]:
    """The buffers of modules, by the number of the module and their names there."""
    return {(number, name): buffer for number, block in enumerate(blocks) for name, buffer in block.named_buffers()}


class TorchFramework:
    """torch's modules (see `Framework`). A shared parameter has the name by which the first module has it."""

    copies_early = True

    def __init__(self, blocks: Sequence[torch.nn.Module]) -> None:
        self._names: dict[torch.nn.Parameter, str] = {}
        for number, block in enumerate(blocks):
            for name, parameter in block.named_parameters():
                self._names.setdefault(parameter, f"{number}.{name}")

    def block(self, number: int, block: torch.nn.Module) -> TorchBlock:
        """See `Framework.block`."""
        return TorchBlock(block, self._names)

    def model(self, blocks: Mapping[int, Any], names: Mapping[str, Any]) -> Modules:
        """See `Framework.model`."""
        return Modules(blocks)

    def state(self, model: Modules) -> dict[str, Array]:
        """See `Framework.state`."""
        found = model.state_dict(keep_vars=True)
        return {self._names.get(tensor, key): as_numpy(tensor) for key, tensor in found.items()}

    def adapt(self, model: Any, opt: Any) -> tuple[Any, Any]:
        """See `Framework.adapt`."""
        inner, handle = adaptor.adapt(model, opt)
        for slot in inner.slots:
            slot.name = self._names[slot.parameter]
        return inner, handle

    def part(self, batch: Any, start: int, stop: int) -> torch.Tensor:
        """See `Framework.part`. For torch, the change of one part in place is none of the others."""
        return torch.as_tensor(batch)[start:stop].data

    def incoming(self, array: Any) -> torch.Tensor:
        """See `Framework.incoming`."""
        return array if isinstance(array, torch.Tensor) else as_tensor(array)

    def outgoing(self, value: torch.Tensor) -> Array:
        """See `Framework.outgoing`."""
        return np.ascontiguousarray(as_numpy(value))

    def passing_state(self, blocks: Sequence[Any]) -> PassingState:
        """See `Framework.passing_state`."""
        return torch.get_rng_state(), {key: buffer.clone() for key, buffer in _buffers(blocks).items()}

    def changed_since(self, blocks: Sequence[Any], state: PassingState) -> PassingState:
        """See `Framework.changed_since`. BatchNorm does not count its changes in a buffer's version."""
        now = _buffers(blocks)
        return state[0], {key: before for key, before in state[1].items() if not torch.equal(before, now[key])}

    def set_passing_state(self, blocks: Sequence[Any], state: PassingState) -> None:
        """See `Framework.set_passing_state`."""
        torch.set_rng_state(state[0])
        now = _buffers(blocks)
        for key, before in state[1].items():
            now[key].data.copy_(before)  # not counted as a change: graphs may refer to statistics, but do not read them

    def loss(self, output: torch.Tensor, labels: Any, loss_fn: Callable[[Any, Any], Any], factor: float) -> LossOf:
        """See `Framework.loss`."""
        end = output.detach().requires_grad_()
        with torch.enable_grad():
            loss = loss_fn(end, labels)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise TypeError(f"a loss function returns one number as a tensor that has a gradient, not {_told(loss)}")
        value = float(loss.detach())
        (grad,) = torch.autograd.grad(loss, end, torch.full_like(loss, factor))
        return LossOf(value, grad)

    def stepped(self) -> None:
        """See `Framework.stepped`: autocast keeps its casts as long as its context lasts, which is the program's."""
        torch.clear_autocast_cache()

    def gradient(self, parameter: torch.nn.Parameter) -> Array:
        """See `Framework.gradient`."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return as_numpy(parameter.grad)

    def take_gradient(self, parameter: torch.nn.Parameter) -> Array | None:
        """See `Framework.take_gradient`."""
        taken, parameter.grad = parameter.grad, None
        return None if taken is None else as_numpy(taken)

    def values(self, parameter: torch.nn.Parameter) -> Array:
        """See `Framework.values`."""
        return as_numpy(parameter)
