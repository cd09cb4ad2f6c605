"""A batch of samples, cut into micro-batches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Hashable
from typing import Any

import numpy as np

from ..flat.memory import own as part_of
from ..tensors import as_numpy, is_tensor

__all__ = ["MicroBatches", "fingerprint"]

Cut = Callable[[Any, int, int], Any]
ROWS, COLUMNS = 256, 16  # the most elements of an array that its fingerprint looks at


class MicroBatches:
    """A batch ``(x, y)`` of n samples in `count` parts whose lengths differ by at most one; the longer ones come first.

    `x` is an input of the model, of shape (n, ...), or a tuple of all its inputs; `y` are the labels, with a row for
    each sample. ``cut(array, start, stop)`` gives rows. Raises ValueError if the inputs differ in length.
    """

    def __init__(self, x: Any, y: Any, count: int, cut: Cut) -> None:
        self._inputs = tuple(x) if isinstance(x, tuple | list) else (x,)
        self._labels, self.count, self._cut = y, count, cut
        if strange := [type(array).__name__ for array in (*self._inputs, y) if not hasattr(array, "__getitem__")]:
            raise TypeError(f"x and y of a batch are arrays or tensors with a row for each sample, not {strange[0]}")
        lengths = {len(array) for array in (*self._inputs, y)}
        if len(lengths) != 1:
            raise ValueError(f"inputs and labels of a batch have different lengths: {sorted(lengths)}")
        (self.samples,) = lengths
        self._keys: dict[int, Hashable] = {}

    def rows(self, micro_batch: int) -> int:
        """The number of samples of a micro-batch; it may be 0."""
        start, stop = self._range(micro_batch)
        return stop - start

    def _range(self, micro_batch: int) -> tuple[int, int]:
        return part_of(self.samples, micro_batch, self.count)

    def input(self, value: int, micro_batch: int) -> Any:
        """An input by its number in a `Graph`: -1 for the first one, -2 for the second."""
        return self._cut(self._inputs[-1 - value], *self._range(micro_batch))

    def labels(self, micro_batch: int) -> Any:
        """The labels."""
        return self._cut(self._labels, *self._range(micro_batch))

    def key(self, micro_batch: int) -> Hashable:
        """What the shapes of all activations follow from."""
        rows = self.rows(micro_batch)
        if rows not in self._keys:
            self._keys[rows] = (rows, *(tuple(array.shape[1:]) for array in self._inputs))
        return self._keys[rows]

    def prints(self, reads: Collection[int]) -> list[int]:
        """Fingerprints of the labels and of all inputs; 0 for inputs whose numbers are not among `reads`."""
        inputs = [fingerprint(array) if -1 - i in reads else 0 for i, array in enumerate(self._inputs)]
        return [fingerprint(self._labels), *inputs]


def fingerprint(array: Any) -> int:
    """A number that tells batches apart: a checksum of up to 4096 elements, from all over the array. It is not 0.

    0 for an array that would have to be copied from a device, or whose elements are objects.
    """
    try:
        if is_tensor(array) and array.device.type != "cpu":
            return 0
        found = as_numpy(array) if is_tensor(array) else np.asarray(array)
    except (TypeError, ValueError):  # a tensor that has no array
        return 0
    if found.dtype.hasobject:
        return 0
    if not found.size:
        return 1
    rows = found[:: -(-len(found) // ROWS)]
    rows = rows.reshape(len(rows), -1)
    return zlib.crc32(rows[:, :: -(-rows.shape[1] // COLUMNS)].tobytes()) or 1
