"""What a data set may be, and how a batch of its rows is read: arrays, files of arrays, objects with samples."""

from __future__ import annotations

import hashlib
import importlib
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from ..tensors import as_bytes, is_tensor

Rows = NDArray[np.int64]
#: What samples are made of: for each part of a sample its type ("float32", "torch.int64") and its shape.
Fields = list[list[Any]]

PROBED = 16  # rows of arrays that tell one content from another
SAMPLED, REPEATS = 3, 6  # samples of an object that do, and how often each is read: random ones differ then


class SampleError(ValueError):
    """A sample of a data set could not be read. ``sample`` is its row number; the cause is the data set's own error."""

    def __init__(self, sample: int, message: str) -> None:
        super().__init__(message)
        self.sample = sample


class Source(Protocol):
    """A data set whose rows are read in batches."""

    fields: Fields | None  # None: it has no sample to tell them

    def __len__(self) -> int: ...

    def read(self, rows: Rows) -> tuple[Any, ...]:
        """The samples with these row numbers: for each field an array of shape (rows, ...). SampleError."""

    def content(self) -> str | None:
        """A digest of a few samples; None if the data set has none, or makes them at random."""


def source_of(dataset: Any) -> ArraySource | SampleSource:
    """The source of a data set, see `Loader`. Raises TypeError, ValueError and OSError."""
    kind = type(dataset)
    if (kind.__module__, kind.__name__) == ("torch.utils.data.dataset", "TensorDataset"):
        dataset = tuple(dataset.tensors)
    if _is_array(dataset) or isinstance(dataset, str | Path):
        dataset = (dataset,)
    if isinstance(dataset, tuple) or (isinstance(dataset, list) and dataset and _are_arrays(dataset)):
        return ArraySource(dataset)
    return SampleSource(dataset)


def _is_array(thing: Any) -> bool:
    return all(hasattr(thing, name) for name in ("shape", "dtype", "__len__", "__getitem__"))


def _are_arrays(things: Sequence[Any]) -> bool:
    return all(isinstance(thing, str | Path) or (_is_array(thing) and len(thing.shape) > 0) for thing in things)


class ArraySource:
    """Arrays with the same number of rows: NumPy's, memory maps, torch tensors, others with shape and dtype; files."""

    def __init__(self, dataset: Sequence[Any]) -> None:
        if not _are_arrays(dataset):
            kinds = ", ".join(type(thing).__name__ for thing in dataset)
            raise TypeError(f"a tuple is a data set if it has arrays with rows, or paths of files; this has {kinds}")
        named = [pair for i, thing in enumerate(dataset) for pair in _named_arrays(thing, f"array {i}")]
        self.names = [name for name, _ in named]
        self.arrays = tuple(array for _, array in named)
        lengths = [len(a) for a in self.arrays]
        if len(set(lengths)) != 1:
            raise ValueError(f"the arrays of a data set need the same number of rows; these have {lengths}")
        for name, array in named:
            if isinstance(array, np.ma.MaskedArray):
                raise TypeError(f"{name} has a mask, which batches would not have; fill it, or leave these samples out")
            if str(array.dtype) == "object":
                raise TypeError(f"{name} holds Python objects; a data set needs arrays of numbers")
        self.fields: Fields | None = [[str(a.dtype), list(a.shape[1:])] for a in self.arrays]

    def __len__(self) -> int:
        return len(self.arrays[0])

    def read(self, rows: Rows) -> tuple[Any, ...]:
        """One indexed read from each array; from files and unknown arrays in the order of the rows."""
        return tuple(self._read(name, array, rows) for name, array in zip(self.names, self.arrays, strict=True))

    def content(self) -> str | None:
        """A digest of 16 rows, evenly spread."""
        return _digest(self.read(_spread(len(self), PROBED))) if len(self) else None

    def labels(self) -> NDArray[Any]:
        """The last array. ValueError unless it has one number for each sample."""
        labels = np.asarray(self.arrays[-1])
        if labels.ndim != 1:
            raise ValueError(f"sorting needs one label per sample, got labels of shape {labels.shape}")
        return labels

    def _read(self, name: str, array: Any, rows: Rows) -> Any:
        try:
            if is_tensor(array) or (isinstance(array, np.ndarray) and not isinstance(array, np.memmap)):
                return array[rows]
            order = np.argsort(rows)
            batch = np.asarray(array[rows[order]])
            unsorted = np.empty_like(batch)
            unsorted[order] = batch
            return unsorted
        except Exception:
            for row in rows:  # which one is it?
                try:
                    array[np.array([row])]
                except Exception as error:
                    _fail(int(row), f"{name}, row {row}", error)
            raise


def _named_arrays(thing: Any, name: str) -> list[tuple[str, Any]]:
    """An array, or the arrays of a file, with names for messages."""
    if not isinstance(thing, str | Path):
        array = thing.to_numpy() if hasattr(thing, "to_numpy") else thing  # indices of pandas are labels, not rows
        return [(str(getattr(thing, "filename", None) or name), array)]
    path = Path(thing)
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                found = [(f"{path}[{key}]", file[key]) for key in file.files]
        else:
            found = [(str(path), np.load(path, mmap_mode="r", allow_pickle=False))]
    except OSError as error:
        raise OSError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError, TypeError, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a readable .npy or .npz file of plain arrays: {error}") from error
    if not found or not _are_arrays([array for _, array in found]):
        raise ValueError(f"{path} has no arrays with rows")
    return found


class SampleSource:
    """An object with ``len(dataset)`` and ``dataset[i]``, such as a torch data set: one sample for each i."""

    def __init__(self, dataset: Any) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise TypeError(
                "a data set is a tuple of arrays, a file of arrays, or an object with __len__ and __getitem__, "
                f"not {type(dataset).__name__}"
            )
        self._dataset = dataset
        self._length = len(dataset)
        self._torch = False
        self.fields: Fields | None = None
        if self._length:  # what sample 0 has, all others must have
            sample = self._sample(0)
            self._torch = any(is_tensor(part) for part in sample)
            self.fields = [_field(part) for part in self._as_arrays(0, sample)]

    def __len__(self) -> int:
        return self._length

    def read(self, rows: Rows) -> tuple[Any, ...]:
        """One sample after the other, put together field by field."""
        assert self.fields is not None
        if not len(rows):
            return tuple(_empty(*field) for field in self.fields)
        samples = [self._checked(row) for row in rows.tolist()]
        return tuple(_stacked(parts) for parts in zip(*samples, strict=True))

    def content(self) -> str | None:
        """A digest of 3 samples, evenly spread, each read 6 times; None if a sample is not always the same."""
        if not self._length:
            return None
        digests = []
        for row in _spread(self._length, SAMPLED).tolist():
            readings = {_digest(self._checked(row))}
            for _ in range(REPEATS - 1):
                readings.add(_digest(self._checked(row)))
                if len(readings) > 1:
                    return None
            digests += sorted(readings)
        return hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()

    def _sample(self, row: int) -> tuple[Any, ...]:
        try:
            sample = self._dataset[row]
        except Exception as error:
            _fail(row, f"sample {row}", error)
        return tuple(sample) if isinstance(sample, tuple | list) else (sample,)

    def _as_arrays(self, row: int, sample: tuple[Any, ...]) -> tuple[Any, ...]:
        """The parts of a sample as arrays; as torch tensors if sample 0 has one."""
        parts = []
        for part in sample:
            array = part
            if not is_tensor(part):
                try:
                    array = np.asarray(part)
                except ValueError as error:
                    _fail(row, f"sample {row}", error)
                if array.dtype.kind not in "biufcV":  # V: bfloat16 and its like
                    raise SampleError(row, f"sample {row} has a {type(part).__name__}; return numbers or arrays")
                if self._torch:
                    array = _torch().from_numpy(np.array(array))
            parts.append(array)
        return tuple(parts)

    def _checked(self, row: int) -> tuple[Any, ...]:
        parts = self._as_arrays(row, self._sample(row))
        fields = [_field(part) for part in parts]
        if fields != self.fields:
            raise SampleError(row, f"sample {row} has {described(fields)}, sample 0 {described(self.fields)}")
        return parts


def described(fields: Fields | None) -> str:
    """Types and shapes of the fields in words."""
    return " and ".join(f"{dtype} {tuple(shape)}" for dtype, shape in fields or []) or "nothing"


def _fail(row: int, what: str, error: Exception) -> NoReturn:
    if isinstance(error, SampleError):
        raise error
    raise SampleError(row, f"{what}: {type(error).__name__}: {error}") from error


def _torch() -> Any:
    return importlib.import_module("torch")


def _field(part: Any) -> list[Any]:
    return [str(part.dtype), list(part.shape)]


def _stacked(parts: Sequence[Any]) -> Any:
    stack: Callable[[Any], Any] = _torch().stack if is_tensor(parts[0]) else np.stack
    return stack(parts)


def _empty(dtype: str, shape: Sequence[int]) -> Any:
    """No samples of this type and shape."""
    if dtype.startswith("torch."):
        return _torch().empty((0, *shape), dtype=getattr(_torch(), dtype.removeprefix("torch.")))
    return np.empty((0, *shape), dtype)


def _spread(length: int, count: int) -> Rows:
    """At most `count` row numbers from the first to the last."""
    return np.unique(np.linspace(0, length - 1, min(length, count)).astype(np.int64))


def _digest(parts: Sequence[Any]) -> str:
    """A digest of arrays or tensors, 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(as_bytes(part).data if is_tensor(part) else np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()
