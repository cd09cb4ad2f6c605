"""Communicators made from another keep our type."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .context import duplicate

if TYPE_CHECKING:
    from .communicator import Cartcomm, Communicator, Distgraphcomm, Graphcomm

__all__ = ["Derived"]


def _made(parent: MPI.Comm, name: str, plain: MPI.Comm) -> Any:
    """The communicator as one of our classes, which are defined above this module."""
    return getattr(importlib.import_module(".communicator", __package__), name)._adopt(plain, parent)


class Derived(MPI.Intracomm):
    """How :class:`collectives.Communicator` makes others; mixed into it."""

    _owned: bool
    _deterministic: bool
    _adopt: Any

    def Dup(self, info: MPI.Info | None = None) -> Communicator:
        """Duplicate, keeping our type."""
        return type(self)._adopt(duplicate(MPI.Intracomm(self), info), self)

    Clone = Dup

    def Dup_with_info(self, info: MPI.Info) -> Communicator:
        """Duplicate with hints, keeping our type."""
        return self.Dup(info)

    def Idup(self, info: MPI.Info | None = None) -> tuple[Any, MPI.Request]:
        """Non-blocking duplicate, keeping our type; the library's side is set up by its first collective."""
        plain, request = MPI.Intracomm(self).Idup(info)
        duplicate = MPI.Intracomm.__new__(type(self), plain)
        duplicate._owned = True
        duplicate._deterministic = self._deterministic
        return duplicate, request

    Idup_with_info = Idup

    def Split(self, color: int = 0, key: int = 0) -> Communicator:
        """Split by color and key, keeping our type."""
        return _made(self, "Communicator", super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Communicator:
        """Split by what ranks share, keeping our type."""
        return _made(self, "Communicator", super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Communicator:
        """A communicator of a subgroup, keeping our type."""
        return _made(self, "Communicator", super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Communicator:
        """A communicator of a subgroup, made by its members only, keeping our type."""
        return _made(self, "Communicator", super().Create_group(group, tag))

    def Create_cart(self, dims: Any, periods: Any = None, reorder: bool = False) -> Cartcomm:
        """A Cartesian communicator, keeping our collectives."""
        return _made(self, "Cartcomm", super().Create_cart(dims, periods, reorder))

    def Create_graph(self, index: Any, edges: Any, reorder: bool = False) -> Graphcomm:
        """A graph communicator, keeping our collectives."""
        return _made(self, "Graphcomm", super().Create_graph(index, edges, reorder))

    def Create_dist_graph_adjacent(self, *args: Any, **kwargs: Any) -> Distgraphcomm:
        """A distributed graph communicator, keeping our collectives."""
        return _made(self, "Distgraphcomm", super().Create_dist_graph_adjacent(*args, **kwargs))

    def Create_dist_graph(self, *args: Any, **kwargs: Any) -> Distgraphcomm:
        """A distributed graph communicator, keeping our collectives."""
        return _made(self, "Distgraphcomm", super().Create_dist_graph(*args, **kwargs))
