"""Frames that many stacks have in common: each different one once, and where it belongs.

An observation of a game is a stack of its last frames. The stacks of neighbouring steps share all frames but one, and
a transition has two stacks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Numbers = NDArray[np.int32]


def apart(frames: Array) -> tuple[Array, Numbers]:
    """The different ones of `frames` (count, h, w), in order of their first place, and the number of each in these."""
    known: dict[bytes, int] = {}
    numbers = [known.setdefault(frame.tobytes(), len(known)) for frame in frames]
    joined = np.frombuffer(b"".join(known), frames.dtype)
    return joined.reshape(len(known), *frames.shape[1:]), np.array(numbers, np.int32)


class Pool:
    """Room for `most` frames of a shape and type. A frame is kept once, for as long as it is in use.

    Frames are looked for among those of the newest `add`; what is older and equal may be there twice. Memory is taken
    only by as many frames as were ever there at once, since the system gives memory when it is first written.
    """

    def __init__(self, most: int, shape: tuple[int, ...], dtype: str) -> None:
        self._frames = np.empty((most, *shape), dtype)
        self._uses = np.zeros(most, np.int32)
        self._free: list[int] = []  # numbers below `_touched` that are free
        self._touched = 0
        self._newest: dict[bytes, int] = {}

    def __len__(self) -> int:
        return self._touched - len(self._free)

    def add(self, frames: Array) -> Numbers:
        """Use frames (count, h, w), of which there may be equal ones; returns their numbers."""
        different, places = apart(frames)
        newest: dict[bytes, int] = {}
        for frame in different:
            content = frame.tobytes()
            number = self._newest.get(content)
            if number is None or not self._uses[number]:
                number = self._free.pop() if self._free else self._touched
                self._touched = max(self._touched, number + 1)
                self._frames[number] = frame
            newest[content] = number
        self._newest = newest
        numbers = np.fromiter(newest.values(), np.int32, len(newest))[places]
        np.add.at(self._uses, numbers, 1)
        return numbers

    def drop(self, numbers: Numbers) -> None:
        """Use frames once less for each time that they are in `numbers`."""
        np.subtract.at(self._uses, numbers, 1)
        for number in np.unique(numbers[self._uses[numbers] == 0]).tolist():
            self._free.append(number)

    def take(self, numbers: Numbers) -> Array:
        """Copies of frames: `numbers` of any shape, with a frame for each."""
        return self._frames[numbers]

    def clear(self) -> None:
        """Drop all frames."""
        self._uses.fill(0)
        self._free, self._touched, self._newest = [], 0, {}
