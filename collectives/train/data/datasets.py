"""Data sets for ``python -m collectives train``: scikit-learn's digits, or a file of the user's."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..agree import on_rank_0
from ..models.nn import Array

TEST_EVERY = 5


class Dataset(NamedTuple):
    """A data set, for training and for testing. x: floats, (samples, ...); y: int64 labels from 0, (samples,)."""

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array

    @property
    def classes(self) -> int:
        """Number of classes: one more than the largest label."""
        return int(max(self.y_train.max(), self.y_test.max())) + 1


def stratified_split(y: Array, every: int = TEST_EVERY) -> tuple[Array, Array]:
    """Row numbers for training and for testing. Of the rows of each label, in order, every `every`-th is for testing.

    The split is not random, so its result cannot depend on the choice of a seed. Raises ValueError if one of the two
    parts is empty.
    """
    chosen = np.zeros(len(y), bool)
    for label in np.unique(y):
        chosen[np.flatnonzero(y == label)[every - 1 :: every]] = True
    if not chosen.any() or chosen.all():
        raise ValueError(f"{len(y)} samples are too few to set one of {every} of each label apart for testing")
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def digits() -> Dataset:
    """The 1797 handwritten digits of scikit-learn: x (n, 1, 8, 8) in [0, 1]. A fixed fifth is for testing.

    Raises ImportError, which says what to install, if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn, which is not installed: "
            "pip install scikit-learn, or give a file of your own with --data"
        ) from error
    bunch = load_digits()
    x, y = bunch.images[:, None] / 16.0, bunch.target.astype(np.int64)
    train, test = stratified_split(y)
    return Dataset("digits", x[train], y[train], x[test], y[test])


def load_npz(path: str | Path) -> Dataset:
    """A data set from a NumPy ``.npz`` file.

    The file has the arrays ``x_train, y_train, x_test, y_test``, or ``x, y``, of which a fifth is for testing. x:
    numbers, (samples, ...); images are (samples, h, w) or (samples, channels, h, w). Integers are divided by the
    largest one of ``x_train``. y: integer labels from 0, (samples,). Raises OSError for a file that cannot be read,
    ValueError for other contents.
    """
    path = Path(path)
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("it holds a single array")
        with file:
            arrays = {key: file[key] for key in file.files}
    except OSError as error:
        raise OSError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a readable .npz file of plain arrays: {error}") from error
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        parts = [arrays[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    elif {"x", "y"} <= set(arrays):
        x, y = arrays["x"], arrays["y"]
        _check(path, "x", x, "y", y)
        train, test = stratified_split(y)
        parts = [x[train], y[train], x[test], y[test]]
    else:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise ValueError(f"{path} needs x and y, or x_train, y_train, x_test and y_test; it has {found}")
    _check(path, "x_train", parts[0], "y_train", parts[1])
    _check(path, "x_test", parts[2], "y_test", parts[3])
    if parts[0].shape[1:] != parts[2].shape[1:]:
        raise ValueError(f"{path}: x_train has samples of shape {parts[0].shape[1:]}, x_test {parts[2].shape[1:]}")
    return _prepared(path.name, parts)


def _check(path: Path, x_name: str, x: Array, y_name: str, y: Array) -> None:
    """Raise ValueError unless x are samples and y their labels."""
    if x.dtype.kind not in "biuf" or x.ndim < 2:
        raise ValueError(f"{path}: {x_name} must be numbers of shape (samples, ...), not {x.dtype} {x.shape}")
    if y.dtype.kind not in "iu" or y.ndim != 1:
        raise ValueError(f"{path}: {y_name} must be integer labels of shape (samples,), not {y.dtype} {y.shape}")
    if len(x) != len(y) or len(x) == 0 or x[0].size == 0:
        raise ValueError(f"{path}: {x_name} has shape {x.shape} and {y_name} {y.shape}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise ValueError(f"{path}: {x_name} has values that are not finite")
    if y.min() < 0:
        raise ValueError(f"{path}: {y_name} has the label {y.min()}; labels count from 0")


def _prepared(name: str, parts: list[Array]) -> Dataset:
    x_train, y_train, x_test, y_test = parts
    if x_train.dtype.kind in "biu":
        largest = max(int(np.abs(x_train.astype(np.float64)).max()), 1)
        x_train, x_test = x_train / largest, x_test / largest
    if x_train.ndim == 3:  # grey images
        x_train, x_test = x_train[:, None], x_test[:, None]
    return Dataset(name, x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64))


def load(path: str | Path | None, comm: Any, dtype: DTypeLike) -> Dataset:
    """The data set of `path` (see `load_npz`; None: `digits`) on all ranks of `comm`, with x as `dtype`.

    Collective: rank 0 reads the file and broadcasts the arrays. Errors of rank 0 are raised on all ranks.
    """
    data: Dataset | None = None

    def read() -> tuple[str, list[tuple[tuple[int, ...], str]]]:
        nonlocal data
        data = digits() if path is None else load_npz(path)
        data = data._replace(x_train=data.x_train.astype(dtype), x_test=data.x_test.astype(dtype))
        return data.name, [(a.shape, a.dtype.str) for a in data[1:]]

    name, shapes = on_rank_0(comm, read)
    arrays = data[1:] if data is not None else [np.empty(shape, kind) for shape, kind in shapes]
    arrays = [np.ascontiguousarray(a) for a in arrays]
    for array in arrays:
        comm.Bcast(array, root=0)
    return Dataset(name, *arrays)
