"""What strategies and buckets see of a network and its optimizer. There is an implementation for each kind of network.

The interface is small: pieces of flat NumPy arrays take the place of the parameters' own memory, and callbacks say when
a gradient is complete. The network's own backward pass computes the gradients.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..models.nn import Array
from .memory import is_narrow


class Slot:
    """A trainable parameter as a piece of flat arrays.

    ``name``, ``shape`` and ``dtype`` (NumPy's) are the parameter's, ``size`` is its number of elements. ``order`` is
    its number in the network, ``group`` that of its group in the optimizer. ``start`` is where it begins in the arrays
    of its bucket. ``parameter`` is the network's own object. ``copies`` is the number of ranks of one model that hold
    this same parameter (default: 1). ``on_device`` says whether the parameter stays on a device (default: False): the
    flat arrays then have copies of it and of its gradient, which `fetch`, `deliver` and `deliver_grad` keep alike.
    """

    copies = 1
    on_device = False
    parameter: Any

    def __init__(self, name: str, shape: tuple[int, ...], dtype: Any, order: int, group: int) -> None:
        self.name, self.shape, self.dtype = name, shape, np.dtype(dtype)
        self.size = int(np.prod(shape))
        self.order, self.group = order, group
        self.start = 0

    @property
    def nbytes(self) -> int:
        """The length of the parameter in bytes."""
        return self.size * self.dtype.itemsize

    def move(self, data: Array) -> None:
        """Copy the parameter into `data`, of shape (size,), and keep it there."""
        raise NotImplementedError

    def bind(self, grad: Array) -> None:
        """Let `grad`, of shape (size,), be the place of the gradient."""
        raise NotImplementedError

    def collect(self) -> str | None:
        """Copy the gradient to its place, unless it is there. Returns why that cannot be done, or None."""
        raise NotImplementedError

    def put_zeros(self) -> None:
        """Make the gradient zeros, at its place."""
        raise NotImplementedError

    def renew(self) -> None:
        """Let the next backward pass make a new gradient, rather than add to the last one."""
        raise NotImplementedError

    def release(self) -> None:
        """Give back the gradient's own memory; its place in a flat array keeps it."""
        raise NotImplementedError

    def fetch(self) -> None:
        """Bring a parameter that is on a device into the flat array. Nothing if the flat array is its memory."""

    def deliver(self) -> None:
        """Bring what the flat array has into a parameter that is on a device."""

    def deliver_grad(self) -> None:
        """Bring what is at the place of the gradient into the gradient of a parameter that is on a device."""

    def touched(self) -> bool:
        """Whether the program has changed the gradient since `collect` or `put_zeros`, as far as that shows.

        The gradient may be on its way then.
        """
        raise NotImplementedError

    def moved(self) -> bool:
        """Whether the parameter has left its place in the flat array, so that strategies no longer see it."""
        raise NotImplementedError


class Model(Protocol):
    """A network: its trainable parameters, and the events of its backward pass."""

    @property
    def slots(self) -> Sequence[Slot]:
        """The trainable parameters, first layer first."""

    @property
    def samples(self) -> int:
        """The number of samples of the backward pass under way, or of the last one."""

    def listen(self, ready: Callable[[Slot], None], end: Callable[[], None]) -> None:
        """Call ``ready(slot)`` when a gradient is complete, and ``end()`` at the end of each backward pass."""

    def clear(self) -> None:
        """Set all gradients to zero."""

    def strangers(self) -> list[str]:
        """Names of parameters that require a gradient now and did not at first, so that they are not in ``slots``."""

    def extras(self) -> list[tuple[Array, Callable[[Array], None]]]:
        """Arrays that are no trainable parameters but must begin alike on all ranks, as bytes, of shape (n,).

        With each comes a function that puts other bytes in their place.
        """

    def on_load(self, hook: Callable[[], None], parts: bool = False) -> None:
        """Call ``hook()`` after parameters were loaded from a state.

        With `parts` also after a load into modules within the network, if it has those; `Slot.fetch` is then left to
        the hook.
        """

    def describe(self) -> dict[str, Any]:
        """What must be equal on all ranks, by name."""


def narrow(model: Model) -> str | None:
    """The name of the first parameter whose elements have 16 bits; None if there is none."""
    return next((slot.name for slot in model.slots if is_narrow(slot.dtype)), None)


def check_fresh(handle: Handle) -> None:
    """Raise ValueError if an optimizer has a state, which would be that of other arrays than those it gets."""
    if not handle.fresh:
        raise ValueError(
            "the optimizer has made steps already, or has a state from the beginning, as Adagrad; distribute it before "
            "its first step, and load its state after"
        )


class Work(Protocol):
    """An array of shape (n,) that an optimizer works on, instead of parameters."""

    @property
    def name(self) -> str:
        """A name of its own."""

    @property
    def data(self) -> Array:
        """What the optimizer changes."""

    @property
    def grad(self) -> Array:
        """The gradient, of the shape of ``data``."""

    @property
    def group(self) -> int:
        """The number of the optimizer's group."""


class Handle:
    """An optimizer, ``opt``."""

    def __init__(self, opt: Any) -> None:
        self.opt = opt

    @property
    def fresh(self) -> bool:
        """Whether the optimizer has made no step."""
        raise NotImplementedError

    @property
    def elementwise(self) -> bool:
        """Whether it steps each element alone, as far as is known, so that it can work on pieces of parameters."""
        return True

    def take_over(self, before: Callable[[], bool], after: Callable[[], None], clear: Callable[[], None]) -> None:
        """Make ``opt.step()`` call ``before()``, then step, then call ``after()``; only the first if it is False.

        ``opt.zero_grad()`` calls ``clear()``.
        """
        inner = self.opt.step

        @functools.wraps(inner)  # torch's schedulers of the learning rate mark the method that they have wrapped
        def step(opt: Any) -> None:
            if before():
                inner()
                after()

        self.override("step", step)
        self.override("zero_grad", lambda opt, set_to_none=True: clear())

    def kept(self) -> list[Array]:
        """The arrays that the optimizer keeps with an element for each of a parameter, such as momentum.

        They are the optimizer's own, to be changed in place; what is on a device comes as a copy, which `put_back`
        takes. After as many steps, all ranks have them in the same order.
        """
        raise NotImplementedError

    def put_back(self, arrays: Sequence[Array]) -> None:
        """Take what was changed in `arrays`, which `kept` returned, to where it is a copy of."""

    def override(self, name: str, function: Callable[..., Any]) -> None:
        """Make ``function(opt, ...)`` the method `name` of this optimizer."""
        setattr(self.opt, name, types.MethodType(function, self.opt))

    def copy(self) -> Handle:
        """An optimizer with the same settings, without state and hooks; `replace` gives it something to work on."""
        raise NotImplementedError

    def replace(self, works: Sequence[Work]) -> None:
        """Let the optimizer work on `works` instead of parameters, from the beginning. Its options are kept."""
        raise NotImplementedError

    def state(self, leaf: Callable[[Work, Array], Any]) -> dict[str, Any]:
        """The state, with ``leaf(work, array)`` in place of each array that has an element for each of a work."""
        raise NotImplementedError

    def load(self, state: Mapping[str, Any], read: Callable[[Work, Any], Array]) -> None:
        """Restore what `state` returned; ``read(work, leaf)`` gives the array for a leaf."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """The optimizer's settings by name, without its learning rates."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        raise NotImplementedError
