"""``Storage``: the newest transitions, in arrays of a fixed length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..transitions import Form, Transitions
from .sum_tree import Indices


class Storage:
    """Room for `capacity` transitions of the form `form`; each new one takes the place of the oldest.

    ``added`` counts all transitions that have come; ``serials`` has, for each place, the number of its transition, -1
    if it is empty.
    """

    def __init__(self, capacity: int, form: Form) -> None:
        if capacity < 1:
            raise ValueError(f"a replay has room for at least 1 transition, not {capacity}")
        self.capacity, self.form, self.added = capacity, form, 0
        self.serials = np.full(capacity, -1, np.int64)
        self._arrays = form.empty(capacity)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, transitions: Transitions) -> Indices:
        """Take transitions; returns their places. ValueError for another form, or for more than there is room for."""
        count = transitions.rows
        if count > self.capacity:
            raise ValueError(f"{count} transitions at once in a replay for {self.capacity}")
        for name, array, given in zip(Transitions._fields, self._arrays, transitions, strict=True):
            if np.shape(given) != (count, *array.shape[1:]):
                raise ValueError(f"{name}: {count} transitions of shape {array.shape[1:]}, not {np.shape(given)}")
        serials = np.arange(self.added, self.added + count)
        places: Indices = serials % self.capacity
        for array, given in zip(self._arrays, transitions, strict=True):
            array[places] = given
        self.serials[places] = serials
        self.added += count
        return places

    def take(self, places: Indices) -> Transitions:
        """Copies of the transitions at `places`."""
        return Transitions(*(array[places] for array in self._arrays))

    def ordered(self) -> Transitions:
        """Copies of all transitions, the oldest first."""
        return self.take(np.arange(self.added - len(self), self.added) % self.capacity)

    def state_dict(self) -> dict[str, Any]:
        """The transitions, the oldest first, and how many have come."""
        return {"added": self.added, **self.ordered()._asdict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of a storage with the same capacity. ValueError for another one."""
        count = len(state["actions"])
        if count != min(int(state["added"]), self.capacity):
            raise ValueError(f"the state has {count} transitions, which is not a replay for {self.capacity}")
        self.serials.fill(-1)
        self.added = int(state["added"]) - count
        self.add(Transitions(*(state[name] for name in Transitions._fields)))
