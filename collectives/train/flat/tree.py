"""``allreduce_tree``: arrays in nested containers, all-reduced in few messages."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from ..agree import communicator, raise_on_all
from ..models.nn import Array
from ..tensors import as_numpy, as_tensor, is_tensor
from .memory import allocate

Tree = TypeVar("Tree")


def allreduce_tree(tree: Tree, comm: Any = None, op: Any = None) -> Tree:
    """All ranks' `tree` reduced element by element, as a new tree of the same structure. Collective.

    A tree is a dict, list, tuple or named tuple of trees, an array, or None. Arrays are NumPy's, torch's or of any
    library with DLPack and the array API (JAX), in the memory of the CPU. The results are of the same kinds and shapes.
    There is one message for each element type. `op` is the sum by default; ``collectives.AVG`` gives means. `comm` is
    by default the world.

    Raises TypeError for other leaves, ValueError if the ranks' trees differ, both on all ranks before any array is
    sent.
    """
    from mpi4py import MPI

    comm = communicator(comm)
    leaves: list[Any] = []
    arrays: list[Array] = []
    error: Exception | None = None
    try:
        _rebuilt(tree, leaves.append, "tree")
        arrays = [_array(leaf) for leaf in leaves]
        text = repr(
            [(path, *mine) for path, mine in zip(_paths(tree), [(a.shape, a.dtype.str) for a in arrays], strict=True)]
        )
    except Exception as found:  # of any library that made an array
        error, text = found, ""
    _same(comm, text, error)

    by_type: dict[Any, list[int]] = {}
    for i, array in enumerate(arrays):
        by_type.setdefault(array.dtype, []).append(i)
    flats, requests = [], []
    for dtype, members in by_type.items():
        flat = allocate(comm, sum(arrays[i].size for i in members), dtype)
        np.concatenate([arrays[i].reshape(-1) for i in members], out=flat)
        requests.append(comm.Iallreduce(MPI.IN_PLACE, flat, op=MPI.SUM if op is None else op))
        flats.append(flat)
    for request in requests:
        request.Wait()
    reduced: dict[int, Array] = {}
    for flat, members in zip(flats, by_type.values(), strict=True):
        ends = np.cumsum([arrays[i].size for i in members])
        for i, part in zip(members, np.split(flat, ends[:-1]), strict=True):
            reduced[i] = part.reshape(arrays[i].shape).copy()
    results = iter(_like(leaf, reduced[i]) for i, leaf in enumerate(leaves))
    return _rebuilt(tree, lambda leaf: next(results), "tree")


def _same(comm: Any, text: str, error: Exception | None) -> None:
    """Raise `error` on all ranks, or ValueError unless `text` is the same on all ranks. Collective."""
    from mpi4py import MPI

    mark = float(zlib.crc32(text.encode()))
    status = np.array([mark, -mark, float(error is not None)])
    comm.Allreduce(MPI.IN_PLACE, status, op=MPI.MAX)
    if status[2]:
        raise_on_all(comm, error)
    if status[0] != -status[1]:
        raise ValueError("the ranks' trees differ in structure, shapes or element types")


def _items(tree: Any) -> list[tuple[Any, Any]] | None:
    """Keys and subtrees of a container, in an order that does not depend on insertion; None for a leaf."""
    if isinstance(tree, dict):
        return sorted(tree.items(), key=lambda item: repr(item[0]))
    return list(enumerate(tree)) if isinstance(tree, list | tuple) else None


def _paths(tree: Any, path: str = "") -> Iterator[str]:
    items = _items(tree)
    if items is None:
        if tree is not None:
            yield path
        return
    for key, value in items:
        yield from _paths(value, f"{path}[{key!r}]")


def _rebuilt(tree: Any, function: Callable[[Any], Any], path: str) -> Any:
    """The tree with ``function(leaf)`` in place of each leaf."""
    items = _items(tree)
    if items is None:
        known = isinstance(tree, np.ndarray) or is_tensor(tree) or hasattr(tree, "__array_namespace__")
        if tree is not None and not (known and hasattr(tree, "__dlpack__")):
            raise TypeError(f"{path} is a {type(tree).__name__}, not an array")
        return None if tree is None else function(tree)
    made = {key: _rebuilt(value, function, f"{path}[{key!r}]") for key, value in items}
    if isinstance(tree, dict):
        ordered = [(key, made[key]) for key in tree]
        return OrderedDict(ordered) if isinstance(tree, OrderedDict) else dict(ordered)
    values = list(made.values())
    if hasattr(tree, "_fields"):
        return type(tree)(*values)
    return tuple(values) if isinstance(tree, tuple) else values


def _array(leaf: Any) -> Array:
    """`leaf` as a NumPy array, without a copy where that is possible."""
    if isinstance(leaf, np.ma.MaskedArray):
        raise TypeError("a masked array: allreduce_tree would add up what is masked")
    if isinstance(leaf, np.ndarray):
        return leaf
    if is_tensor(leaf):
        if leaf.device.type != "cpu":
            raise TypeError(f"a tensor on {leaf.device}; allreduce_tree takes arrays in the memory of the CPU")
        return as_numpy(leaf)
    return np.asarray(leaf) if hasattr(leaf, "__array__") else np.from_dlpack(leaf)


def _like(leaf: Any, array: Array) -> Any:
    """`array` as an array of the kind of `leaf`."""
    if isinstance(leaf, np.ndarray):
        return array
    if is_tensor(leaf):
        return as_tensor(array)
    return leaf.__array_namespace__().asarray(array)
