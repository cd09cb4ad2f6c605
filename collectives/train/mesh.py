"""``Mesh``: the ranks of a job as a grid, with a communicator along each axis."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

from .agree import communicator, same_as_rank_0, together
from .counts import count

__all__ = ["AXES", "Mesh"]

AXES = ("tasks", "pipeline", "data", "tensor")  # the last one varies fastest from rank to rank


class Mesh:
    """The ranks of `comm` (default: the world) as a grid with the axes of hybrid parallelism.

    * ``data``: ranks with the same part of the model, which train on different samples.
    * ``pipeline``: ranks with the stages of one model, one after the other.
    * ``tensor``: ranks with pieces of the same layers.
    * ``tasks``: independent models, trained side by side.

    The arguments are the lengths of the axes (default: 1); their product is the number of ranks. ``mesh.data``,
    ``mesh.pipeline``, ``mesh.tensor`` and ``mesh.tasks`` are communicators of the ranks that differ from this one on
    that axis only, in its order. ``mesh.comm`` is the communicator of all ranks of this rank's task.

    ``tensor`` varies fastest from rank to rank, then ``data``, ``pipeline`` and ``tasks``: the ranks of a node, which
    have neighbouring numbers, share layers, and a pipeline's messages cross nodes (Narayanan et al., SC 2021, section
    3.2). A loader on ``mesh.data`` gives the same batches along ``pipeline`` and ``tensor``, disjoint ones along
    ``data``: ``train.Loader(dataset, batch=256, comm=mesh.data)``; its `batch` is that of one task.

    ``shape`` and ``place`` are the lengths of the axes and this rank's coordinates, as dicts by axis. Collective over
    `comm`, as is `free`. Raises on all ranks: TypeError for a length that is no integer, ValueError for one below 1, if
    the product is not the number of ranks, or if the ranks ask for different meshes.
    """

    def __init__(self, comm: Any = None, *, data: int = 1, pipeline: int = 1, tensor: int = 1, tasks: int = 1) -> None:
        comm = communicator(comm)
        given = {"tasks": tasks, "pipeline": pipeline, "data": data, "tensor": tensor}
        self.shape: dict[str, int] = together(comm, lambda: _checked(given, int(comm.size)))
        same_as_rank_0(comm, self.shape, "Mesh")
        self.place = _coordinates(int(comm.rank), self.shape)
        self.tasks = self._axis(comm, "tasks")
        self.pipeline = self._axis(comm, "pipeline")
        self.data = self._axis(comm, "data")
        self.tensor = self._axis(comm, "tensor")
        self.comm = comm.Split(self.place["tasks"], comm.rank)
        self._strategies: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by their ``id``
        self._freed = False

    def _axis(self, comm: Any, axis: str) -> Any:
        """The communicator of the ranks with this rank's coordinates on all other axes. Collective."""
        others = {name: (0 if name == axis else at) for name, at in self.place.items()}
        return comm.Split(_rank(others, self.shape), self.place[axis])

    @property
    def in_parts(self) -> bool:
        """Whether ranks hold parts of a model that others lack."""
        return self.shape["pipeline"] * self.shape["tensor"] > 1

    def serve(self, strategy: Any) -> None:
        """Let `give_up` end the waits in communicators of `strategy`, too."""
        self._strategies[id(strategy)] = strategy

    def give_up(self) -> None:
        """After the death of a rank: let no live rank wait for this one in a collective of the mesh. A local call."""
        for strategy in self._strategies.values():
            strategy.give_up()
        for comm in (self.data, self.tensor, self.comm):
            if comm.size > 1:
                comm.Revoke()

    def free(self) -> None:
        """Free the communicators of the axes. Collective. A second call does nothing."""
        if not self._freed:
            self._freed = True
            for comm in (self.tasks, self.pipeline, self.data, self.tensor, self.comm):
                comm.Free()

    def __repr__(self) -> str:
        lengths = ", ".join(f"{axis}={self.shape[axis]}" for axis in reversed(AXES))
        place = ", ".join(f"{axis} {self.place[axis]}" for axis in reversed(AXES) if self.shape[axis] > 1)
        return f"<Mesh({lengths}){' at ' if place else ''}{place}>"


def named(shape: Mapping[str, int]) -> str:
    """The axes that are longer than 1, as text: ``data=2, pipeline=2``."""
    return ", ".join(f"{axis}={shape[axis]}" for axis in reversed(AXES) if shape.get(axis, 1) > 1) or "data=1"


def _checked(given: dict[str, Any], ranks: int) -> dict[str, int]:
    """The lengths of the axes as integers. Raises TypeError or ValueError as `Mesh`."""
    shape = {axis: count(f"Mesh: {axis}", length) for axis, length in given.items()}
    product = math.prod(shape.values())
    if product != ranks:
        factors = " x ".join(f"{axis}={shape[axis]}" for axis in AXES)
        raise ValueError(f"Mesh: {factors} makes {product} ranks, the communicator has {ranks}")
    return shape


def _coordinates(rank: int, shape: dict[str, int]) -> dict[str, int]:
    """Where a rank is on each axis."""
    place = {}
    for axis in reversed(AXES):
        rank, place[axis] = divmod(rank, shape[axis])
    return {axis: place[axis] for axis in AXES}


def _rank(place: dict[str, int], shape: dict[str, int]) -> int:
    """The rank at these coordinates."""
    rank = 0
    for axis in AXES:
        rank = rank * shape[axis] + place[axis]
    return rank
