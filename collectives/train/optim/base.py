"""``Optimizer``, the base class of the optimizers of NumPy's networks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from collectives import span

from ..counts import real
from ..loading import check_array, check_mapping, fields
from ..models.nn import Array, Parameter

Hook = Callable[["Optimizer", tuple[Any, ...], dict[str, Any]], None]


class Optimizer:
    """Changes parameters by their gradients, element by element. The interface is PyTorch's.

    A derived class has ``arrays``, the names of the arrays that it keeps for each parameter, of the parameter's shape
    and dtype, and overrides `update`. ``lr`` is the learning rate; it may be set between steps. ``steps`` is the number
    of steps taken. Raises ValueError for a negative rate or weight decay, and without parameters.
    """

    arrays: ClassVar[tuple[str, ...]] = ()

    def __init__(self, parameters: Iterable[Parameter], lr: float, *, weight_decay: float = 0.0) -> None:
        parameters = list(parameters) if isinstance(parameters, Iterable) else [parameters]
        if strange := [type(given).__name__ for given in parameters if not isinstance(given, Parameter)]:
            raise TypeError(f"parameters must be a network's, as of net.parameters(), not {strange[0]}")
        self.lr = lr
        self.weight_decay = weight_decay
        self.strategy: Any = None  # the Strategy, set by distribute
        self._before: list[Hook] = []
        self._after: list[Hook] = []
        self.replace(parameters)
        name = type(self).__name__
        if not self.parameters:
            raise ValueError(f"{name} got no parameters")
        if not real("lr", lr) >= 0:
            raise ValueError(f"lr must not be negative, not {lr}")
        if not real("weight_decay", weight_decay) >= 0:
            raise ValueError(f"weight_decay must not be negative, not {weight_decay}")

    def replace(self, parameters: Iterable[Parameter]) -> None:
        """Work on `parameters` from now on, without any state."""
        self.steps, self.parameters = 0, list(parameters)
        self._kept = {key: [np.zeros_like(p.data) for p in self.parameters] for key in self.arrays}

    def copy(self) -> Optimizer:
        """An optimizer with the same settings, without hooks, state and strategy; `replace` gives it parameters."""
        made = copy.copy(self)
        made.strategy, made._before, made._after = None, [], []
        made.replace([])
        return made

    def register_step_pre_hook(self, hook: Hook) -> None:
        """Call ``hook(optimizer, args, kwargs)`` before each step, as in PyTorch."""
        self._before.append(hook)

    def register_step_post_hook(self, hook: Hook) -> None:
        """Call ``hook(optimizer, args, kwargs)`` after each step, as in PyTorch."""
        self._after.append(hook)

    def zero_grad(self) -> None:
        """Set all gradients to zero."""
        for p in self.parameters:
            p.zero_grad()

    def step(self) -> None:
        """Change every parameter in place, by its gradient (see the class)."""
        with span("step"):
            for hook in self._before:
                hook(self, (), {})
            self.steps += 1
            for i, p in enumerate(self.parameters):
                self.update(p.data, p.grad, *self._kept_of(i))
            for hook in self._after:
                hook(self, (), {})

    def step_rows(self, index: int, rows: NDArray[Any], grads: Array) -> None:
        """Change some rows of parameter `index` by their gradients, of shape (len(rows), ...); `rows` differ.

        What is kept for other rows stays as it is, also where a whole step would let it decay.
        """
        self.steps += 1
        wholes = [self.parameters[index].data, *self._kept_of(index)]
        parts = [whole[rows] for whole in wholes]
        self.update(parts[0], grads, *parts[1:])
        for whole, part in zip(wholes, parts, strict=True):
            whole[rows] = part

    def _kept_of(self, index: int) -> list[Array]:
        return [self._kept[key][index] for key in self.arrays]

    def update(self, data: Array, grad: Array, *kept: Array) -> None:
        """Change `data` and the arrays `kept` of one parameter in place. ``steps`` counts this step."""
        raise NotImplementedError

    def kept(self) -> list[Array]:
        """The kept arrays themselves: for each name in ``arrays``, one for each parameter, of its shape."""
        return [array for key in self.arrays for array in self._kept[key]]

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {"optimizer": type(self).__name__, "lr": self.lr, "weight_decay": self.weight_decay}

    def state_dict(self) -> dict[str, Any]:
        """The number of steps taken, the learning rate, and copies of the kept arrays by parameter name."""
        names = [p.name for p in self.parameters]
        kept = {
            key: {name: array.copy() for name, array in zip(names, self._kept[key], strict=True)} for key in self.arrays
        }
        return {"steps": self.steps, "lr": self.lr, **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. Nothing has changed if that raises an error.

        TypeError for what is no mapping, ValueError unless it has this optimizer's arrays and parameters.
        """
        what, names = type(self).__name__, [p.name for p in self.parameters]
        check_mapping(what, state)
        for key in self.arrays:
            if key not in state:
                raise ValueError(f"the state has no {key}; it is not one of {what}")
            check_mapping(f"{what}: {key}", state[key])
            if set(names) != set(state[key]):
                raise ValueError(f"the state is for {sorted(state[key])}, this optimizer for {sorted(names)}")
            for name, array in zip(names, self._kept[key], strict=True):
                check_array(f"{what}: {key} of {name}", state[key][name], array.shape)
        steps, lr = fields(what, state, steps=int, lr=float)
        for key in self.arrays:
            for name, array in zip(names, self._kept[key], strict=True):
                array[...] = state[key][name]
        self.steps, self.lr = steps, lr
