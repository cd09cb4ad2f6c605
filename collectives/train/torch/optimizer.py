"""`Handle` for the optimizers of torch.optim."""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..flat.model import Handle, Work
from ..models.nn import Array
from ..tensors import as_numpy, as_tensor
from .on_device import on_device

#: What torch's optimizers keep for a parameter as one number, which is no element of a parameter without dimensions.
COUNTERS = ("step", "mu_product", "eta", "mu")


class TorchHandle(Handle):
    """An optimizer of torch.optim (see `Handle`)."""

    opt: torch.optim.Optimizer

    def __init__(self, opt: torch.optim.Optimizer, names: Mapping[torch.nn.Parameter, str]) -> None:
        super().__init__(opt)
        self._names = names
        self._works: list[Work] = []  # in the order of the optimizer's parameters

    @property
    def fresh(self) -> bool:
        """See `Handle.fresh`."""
        return not self.opt.state

    @property
    def elementwise(self) -> bool:
        """See `Handle.elementwise`."""
        return type(self.opt).__name__ not in ("Adafactor", "Muon")

    def take_over(self, before: Callable[[], bool], after: Callable[[], None], clear: Callable[[], None]) -> None:
        """See `Handle.take_over`. With a closure, ``opt.step(closure)`` calls the closure first, once."""
        super().take_over(before, after, clear)
        plain = self.opt.step

        @functools.wraps(plain)
        def step(opt: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            plain()
            return loss

        self.override("step", step)
        self.override("add_param_group", _refuse_group)

    def copy(self) -> TorchHandle:
        """See `Handle.copy`. torch copies defaults and groups, as where an optimizer is pickled.

        Tensors among the settings, such as a learning rate, are cloned, for they are changed in place.
        """
        made = copy.copy(self.opt)
        made.param_groups = [
            {key: [] if key == "params" else _own(value) for key, value in group.items()}
            for group in self.opt.param_groups
        ]
        made.state = defaultdict(dict)
        return TorchHandle(made, self._names)

    def replace(self, works: Sequence[Work]) -> None:
        """See `Handle.replace`."""
        self._works = []
        self.opt.state.clear()
        for number, group in enumerate(self.opt.param_groups):
            mine = [work for work in works if work.group == number]
            group["params"] = [self._parameter(work) for work in mine]
            self._works += mine

    @staticmethod
    def _parameter(work: Work) -> torch.nn.Parameter:
        parameter = torch.nn.Parameter(as_tensor(work.data))
        parameter.grad = as_tensor(work.grad)
        return parameter

    def state(self, leaf: Callable[[Work, Array], Any]) -> dict[str, Any]:
        """See `Handle.state`."""
        state = type(self.opt).state_dict(self.opt)
        for number, values in state["state"].items():
            work = self._works[number]
            state["state"][number] = {
                key: leaf(work, as_numpy(value)) if self._whole(work, value) else value for key, value in values.items()
            }
        return state

    @staticmethod
    def _whole(work: Work, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dim() == 1 and len(value) == len(work.data)

    def load(self, state: Mapping[str, Any], read: Callable[[Work, Any], Array]) -> None:
        """See `Handle.load`."""
        restored = {
            int(number): {key: self._restored(self._works[int(number)], value, read) for key, value in values.items()}
            for number, values in state["state"].items()
        }
        type(self.opt).load_state_dict(self.opt, {**state, "state": restored})

    @staticmethod
    def _restored(work: Work, value: Any, read: Callable[[Work, Any], Array]) -> Any:
        """A value of the state; a number of steps, for example, is an array of no dimension."""
        if isinstance(value, int | float | bool | None):
            return value
        if getattr(value, "shape", None) == ():
            return torch.as_tensor(value)
        return as_tensor(read(work, value))

    def kept(self) -> list[Array]:
        """See `Handle.kept`."""
        return [as_numpy(_on_host(value)) for value in self._values()]

    def put_back(self, arrays: Sequence[Array]) -> None:
        """See `Handle.put_back`."""
        for value, array in zip(self._values(), arrays, strict=True):
            if on_device(value):
                value.copy_(as_tensor(array))

    def _values(self) -> list[torch.Tensor]:
        """What the optimizer keeps with the shape of a parameter."""
        parameters = [p for group in self.opt.param_groups for p in group["params"] if p in self.opt.state]
        kept = [(p, key, value) for p in parameters for key, value in self.opt.state[p].items()]
        tensors = [(p, key, value) for p, key, value in kept if isinstance(value, torch.Tensor)]
        return [value for p, key, value in tensors if value.shape == p.shape and (value.dim() or key not in COUNTERS)]

    def options(self) -> dict[str, Any]:
        """See `Handle.options`."""
        return {
            f"{key} of group {i}": repr(tuple(value) if isinstance(value, list) else value)  # as checkpoints have betas
            for i, group in enumerate(self.opt.param_groups)
            for key, value in group.items()
            if key not in ("params", "lr")
        }

    def describe(self) -> dict[str, Any]:
        """See `Handle.describe`."""
        found: dict[str, Any] = {"optimizer": type(self.opt).__name__}
        for i, group in enumerate(self.opt.param_groups):
            found[f"parameters of group {i}"] = [self._names[p] for p in group["params"]]
            found[f"lr of group {i}"] = repr(group["lr"])
        return found | self.options()


def _own(value: Any) -> Any:
    """`value`, or a clone of a tensor."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _on_host(value: torch.Tensor) -> torch.Tensor:
    """`value`, or a copy of what is on a device, in the computer's memory."""
    return torch.empty(value.shape, dtype=value.dtype).copy_(value) if on_device(value) else value


def _refuse_group(opt: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """Raise RuntimeError: no strategy would see the gradients of these parameters."""
    raise RuntimeError("parameters cannot be added to a distributed optimizer: add all groups before distribute")
