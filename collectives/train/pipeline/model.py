"""`Model` for the stages of one rank, so that strategies act in a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..flat.model import Model, Slot
from ..models.nn import Array

__all__ = ["StagesModel"]


class StagesModel:
    """The stages of one rank (see `Model`). The pipeline says when a gradient is complete: `ready`, `end`.

    `inner` is the interface of the same parameters as a network. `copies` are the numbers of stages that share a
    parameter.
    """

    def __init__(self, inner: Model, copies: Mapping[str, int]) -> None:
        self._inner, self.samples = inner, 0
        self._by_name = {slot.name: slot for slot in inner.slots}
        for name, slot in self._by_name.items():
            slot.copies = copies.get(name, 1)
        self._ready: Callable[[Slot], None] = lambda slot: None
        self._end: Callable[[], None] = lambda: None
        self._loaded: list[Callable[[], None]] = []

    @property
    def slots(self) -> Sequence[Slot]:
        """See `Model.slots`."""
        return self._inner.slots

    def ready(self, name: str) -> None:
        """Tell that the gradient of a parameter is complete."""
        self._ready(self._by_name[name])

    def end(self) -> None:
        """Tell that the backward passes of a step have ended."""
        self._end()

    def loaded(self) -> None:
        """Tell that parameters were loaded."""
        for hook in self._loaded:
            hook()

    def listen(self, ready: Callable[[Slot], None], end: Callable[[], None]) -> None:
        """See `Model.listen`."""
        self._ready, self._end = ready, end

    def clear(self) -> None:
        """See `Model.clear`."""
        self._inner.clear()

    def strangers(self) -> list[str]:
        """See `Model.strangers`."""
        return self._inner.strangers()

    def extras(self) -> list[tuple[Array, Callable[[Array], None]]]:
        """See `Model.extras`."""
        return self._inner.extras()

    def on_load(self, hook: Callable[[], None], parts: bool = False) -> None:
        """See `Model.on_load`."""
        self._loaded.append(hook)
        self._inner.on_load(hook, parts)  # the program may load a state into a block of the rank's stages

    def describe(self) -> dict[str, Any]:
        """See `Model.describe`."""
        return self._inner.describe()
