"""``Storage``: the newest transitions, in arrays of a fixed length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..frames import Numbers, Pool
from ..transitions import Form, Transitions
from .sum_tree import Indices

PART = 1000  # transitions of a state whose frames are put together at once


class Storage:
    """Room for `capacity` transitions of the form `form`; each new one takes the place of the oldest.

    ``added`` counts all transitions that have come; ``serials`` has, for each place, the number of its transition, -1
    if it is empty. Of stacked frames each is kept once; transitions have their numbers (see `Pool`).
    """

    def __init__(self, capacity: int, form: Form) -> None:
        if capacity < 1:
            raise ValueError(f"a replay has room for at least 1 transition, not {capacity}")
        self.capacity, self.form, self.added = capacity, form, 0
        self.serials = np.full(capacity, -1, np.int64)
        self._pool: Pool | None = None
        if form.stacked:
            self._pool = Pool(2 * form.shape[0] * capacity, form.shape[1:], form.dtype)
        self._arrays = (Form((form.shape[0],), "<i4") if form.stacked else form).empty(capacity)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, transitions: Transitions) -> Indices:
        """Take transitions; returns their places. ValueError for another form, or for more than there is room for."""
        count = transitions.rows
        if count > self.capacity:
            raise ValueError(f"{count} transitions at once in a replay for {self.capacity}")
        for name, array, given in zip(Transitions._fields, self.form.empty(0), transitions, strict=True):
            if np.shape(given) != (count, *array.shape[1:]):
                raise ValueError(f"{name}: {count} transitions of shape {array.shape[1:]}, not {np.shape(given)}")
        serials = np.arange(self.added, self.added + count)
        places: Indices = serials % self.capacity
        if self._pool is not None:
            self._pool.drop(self._numbers(places[self.serials[places] >= 0]))
            transitions = self._numbered(transitions, self._pool.add(self.form.frames(transitions)))
        for array, given in zip(self._arrays, transitions, strict=True):
            array[places] = given
        self.serials[places] = serials
        self.added += count
        return places

    def _numbers(self, places: Indices) -> Numbers:
        """The numbers of the frames of the transitions at `places`, in the order of ``Form.frames``."""
        return np.concatenate([self._arrays.observations[places], self._arrays.next_observations[places]]).reshape(-1)

    def _numbered(self, transitions: Transitions, numbers: Numbers) -> Transitions:
        """Transitions with the numbers of their frames for observations."""
        observations, after = numbers.reshape(2, transitions.rows, self.form.shape[0])
        return transitions._replace(observations=observations, next_observations=after)

    def take(self, places: Indices) -> Transitions:
        """Copies of the transitions at `places`."""
        found = Transitions(*(array[places] for array in self._arrays))
        if self._pool is None:
            return found
        observations, after = self._pool.take(found.observations), self._pool.take(found.next_observations)
        return found._replace(observations=observations, next_observations=after)

    def ordered(self) -> Transitions:
        """Copies of all transitions, the oldest first."""
        return self.take(self._oldest_first())

    def _oldest_first(self) -> Indices:
        places: Indices = np.arange(self.added - len(self), self.added) % self.capacity
        return places

    def state_dict(self) -> dict[str, Any]:
        """The transitions, the oldest first, and how many have come. Frames are there once, with numbers."""
        if self._pool is None:
            return {"added": self.added, **self.ordered()._asdict()}
        places = self._oldest_first()
        used, numbers = np.unique(self._numbers(places), return_inverse=True)
        kept = self._numbered(Transitions(*(array[places] for array in self._arrays)), numbers.astype(np.int32))
        return {"added": self.added, "frames": self._pool.take(used), **kept._asdict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of a storage with the same capacity. ValueError for another one."""
        count = len(state["actions"])
        if count != min(int(state["added"]), self.capacity):
            raise ValueError(f"the state has {count} transitions, which is not a replay for {self.capacity}")
        self.serials.fill(-1)
        self.added = int(state["added"]) - count
        if self._pool is not None:
            self._pool.clear()
            frames = np.asarray(state["frames"])
        for start in range(0, count, PART):
            part = Transitions(*(state[name][start : start + PART] for name in Transitions._fields))
            if self._pool is not None:
                part = part._replace(
                    observations=frames[part.observations], next_observations=frames[part.next_observations]
                )
            self.add(part)
