"""`Model` and `Handle` for NumPy's networks and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..models.nn import Array, Parameter, Sequential
from ..optim.base import Optimizer
from .model import Handle, Slot, Work


class NumpySlot(Slot):
    """A `Parameter` as a piece of flat arrays."""

    def __init__(self, parameter: Parameter, order: int) -> None:
        super().__init__(parameter.name, parameter.data.shape, parameter.data.dtype, order, 0)
        self.parameter = parameter

    def move(self, data: Array) -> None:
        """See `Slot.move`."""
        self._data = data.reshape(self.shape)
        self._data[...] = self.parameter.data
        self.parameter.data = self._data

    def bind(self, grad: Array) -> None:
        """See `Slot.bind`."""
        self._grad = grad.reshape(self.shape)

    def collect(self) -> str | None:
        """See `Slot.collect`."""
        if self.parameter.grad is not self._grad:
            self.parameter.bind_grad(self._grad)
        return None

    def put_zeros(self) -> None:
        """See `Slot.put_zeros`."""
        self._grad.fill(0)
        self.parameter.grad = self._grad

    def renew(self) -> None:
        """See `Slot.renew`."""
        self.parameter.renew_grad()

    def release(self) -> None:
        """See `Slot.release`."""
        self.parameter.release_grad()

    def touched(self) -> bool:
        """See `Slot.touched`. A change in place does not show."""
        return self.parameter.grad is not self._grad

    def moved(self) -> bool:
        """See `Slot.moved`."""
        return self.parameter.data is not self._data


class NumpyModel:
    """A `Sequential` (see `Model`)."""

    def __init__(self, net: Sequential) -> None:
        self._net = net
        self.slots = [NumpySlot(p, order) for order, p in enumerate(net.parameters())]

    @property
    def samples(self) -> int:
        """See `Model.samples`."""
        return self._net.samples

    def listen(self, ready: Callable[[Slot], None], end: Callable[[], None]) -> None:
        """See `Model.listen`."""
        for slot in self.slots:
            slot.parameter.register_post_accumulate_grad_hook(lambda _, slot=slot: ready(slot))
        self._net.register_backward_end_hook(lambda _: end())

    def clear(self) -> None:
        """See `Model.clear`."""
        for slot in self.slots:
            slot.parameter.zero_grad()

    def strangers(self) -> list[str]:
        """See `Model.strangers`."""
        return []

    def extras(self) -> list[tuple[Array, Callable[[Array], None]]]:
        """See `Model.extras`."""
        return []

    def on_load(self, hook: Callable[[], None], parts: bool = False) -> None:
        """See `Model.on_load`."""
        self._net.register_load_state_dict_post_hook(lambda _: hook())

    def describe(self) -> dict[str, Any]:
        """See `Model.describe`."""
        return {f"parameter {slot.name}": (slot.shape, slot.dtype.str) for slot in self.slots}


class NumpyHandle(Handle):
    """An `Optimizer` of this package (see `Handle`)."""

    opt: Optimizer

    def __init__(self, opt: Optimizer) -> None:
        super().__init__(opt)
        self._works: Sequence[Work] = []

    @property
    def fresh(self) -> bool:
        """See `Handle.fresh`."""
        return self.opt.steps == 0

    def copy(self) -> NumpyHandle:
        """See `Handle.copy`."""
        return NumpyHandle(self.opt.copy())

    def replace(self, works: Sequence[Work]) -> None:
        """See `Handle.replace`."""
        self._works = list(works)
        parameters = []
        for work in works:
            parameter = Parameter(work.data, work.name)
            parameter.grad = work.grad
            parameters.append(parameter)
        self.opt.replace(parameters)

    def state(self, leaf: Callable[[Work, Array], Any]) -> dict[str, Any]:
        """See `Handle.state`."""
        state = type(self.opt).state_dict(self.opt)
        for key in self.opt.arrays:
            state[key] = {work.name: leaf(work, state[key][work.name]) for work in self._works}
        return state

    def load(self, state: Mapping[str, Any], read: Callable[[Work, Any], Array]) -> None:
        """See `Handle.load`."""
        whole = dict(state)
        for key in self.opt.arrays:
            if set(state[key]) != {work.name for work in self._works}:
                raise ValueError(f"the state is for {sorted(state[key])}, not for the buckets of this run")
            whole[key] = {work.name: read(work, state[key][work.name]) for work in self._works}
        type(self.opt).load_state_dict(self.opt, whole)

    def kept(self) -> list[Array]:
        """See `Handle.kept`."""
        return self.opt.kept()

    def options(self) -> dict[str, Any]:
        """See `Handle.options`."""
        return {key: value for key, value in self.opt.settings().items() if key != "lr"}

    def describe(self) -> dict[str, Any]:
        """See `Handle.describe`."""
        return self.opt.settings()


def adapt(net: Sequential, opt: Any) -> tuple[NumpyModel, NumpyHandle]:
    """The interface of `net` and `opt`. Raises TypeError or ValueError unless they can be distributed."""
    if not isinstance(opt, Optimizer):
        raise TypeError(f"a NumPy network needs one of train's optimizers, not {type(opt).__name__}")
    parameters = net.parameters()
    for p in parameters:
        if not isinstance(p.data, np.ndarray):
            raise TypeError(f"distribute takes networks whose parameters are NumPy arrays, not {type(p.data).__name__}")
        if not p.data.flags.writeable:
            raise ValueError(f"parameter {p.name} is read-only")
    if {id(p) for p in parameters} != {id(p) for p in opt.parameters}:
        raise ValueError("the optimizer is not over the parameters of this network")
    return NumpyModel(net), NumpyHandle(opt)
