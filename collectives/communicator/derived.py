"""Communicators made from another keep our type."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..diagnostics import deaths
from ..errors import CollectiveError
from ..runtime.meeting import Making, meeting
from ..runtime.mpi_context import MPIContext, duplicate
from ..system import mpi_library
from . import rehearsal

__all__ = ["Derived"]


def _made(parent: Derived, name: str, plain: MPI.Comm, making: Making | None = None) -> Any:
    """The communicator as one of our classes."""
    return parent._kinds[name]._adopt(plain, parent, making=making)


class Derived(MPI.Intracomm):
    """How :class:`collectives.Communicator` makes others; mixed into it."""

    _kinds: dict[str, Any] = {}  # our classes by name, which are defined above this module
    _deterministic: bool
    _adopt: Any
    _enter: Any
    _context: MPIContext | None

    if TYPE_CHECKING:

        def _refuse_if_freed(self) -> None: ...

    def Dup(self, info: MPI.Info | None = None) -> Any:
        """Duplicate, keeping our type."""
        if info is not None:
            rehearsal.rehearse("Dup", info)
        with self._enter().in_turn(), self._making("Dup") as making:
            return type(self)._adopt(duplicate(MPI.Intracomm(self), info), self, making=making)

    Clone = Dup

    def Dup_with_info(self, info: MPI.Info) -> Any:
        """Duplicate with hints, keeping our type."""
        return self.Dup(info)

    def Idup(self, info: MPI.Info | None = None) -> tuple[Any, MPI.Request]:
        """Non-blocking duplicate, keeping our type; the library's side is set up by its first collective."""
        self._refuse_if_freed()
        with deaths.named(self, "Idup"):
            plain, request = MPI.Intracomm(self).Idup(info)
        duplicate = MPI.Intracomm.__new__(type(self), plain)
        duplicate._deterministic = self._deterministic
        return duplicate, request

    Idup_with_info = Idup

    def shrink(self) -> Any:
        """A working communicator of the ranks that live, in their order; all of them call it, after a rank died.

        What is under way on this communicator is given up, on all ranks: those that wait in a collective of it get a
        CollectiveError, and call this method in their turn. It cannot be used afterwards; others made from it, with the
        dead rank in them, are to be shrunk as well. Needs an MPI that survives failures (ULFM: Open MPI 5 under
        ``mpiexec --with-ft ulfm``); CollectiveError, without communication, where the launcher ends the job instead.
        Method: MPI 5's revoke and shrink, and a new set-up of the library's side among the survivors.
        """
        why = mpi_library.why_no_survivors()
        if why is not None:
            raise CollectiveError(f"no communicator of survivors: {why}")
        self._refuse_if_freed()
        plain = MPI.Intracomm(self)
        plain.Revoke()
        if self._context is not None:
            self._context.abandon()
        with deaths.named(plain, "shrink"):
            survivors = plain.Shrink()
        return _made(self, "Communicator", survivors)

    def Shrink(self) -> Any:
        """:meth:`shrink`, where ranks can outlive one that dies; elsewhere MPI's own, of all ranks."""
        return self.shrink() if mpi_library.why_no_survivors() is None else self._make("Communicator", "Shrink")

    def Revoke(self) -> None:
        """Have every call on this communicator, on all ranks, end in an error; any rank may call it, alone.

        Those that wait in a collective get a CollectiveError that names this rank and line. What is left to do with the
        communicator is :meth:`shrink`. NotImplementedError or an error of MPI's where MPI cannot revoke.
        """
        self._refuse_if_freed()
        super().Revoke()
        if self._context is not None:
            self._context.revoke()

    def _make(self, kind: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """What a method of mpi4py's makes, as one of our classes."""
        with self._enter().in_turn(), self._making(method) as making:
            with deaths.named(self, method):
                plain = getattr(super(), method)(*args, **kwargs)
            return _made(self, kind, plain, making)

    def _making(self, method: str, members: list[int] | None = None, tag: int = 0) -> AbstractContextManager[Making]:
        """What waits for the other ranks, or for ``members``, in a method that makes a communicator."""
        return meeting(f"creating a communicator by {method}", self, self._context, members, tag)

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """Split by color and key, keeping our type."""
        rehearsal.rehearse("Split", color, key)
        return self._make("Communicator", "Split", color, key)

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Any:
        """Split by what ranks share, keeping our type."""
        rehearsal.rehearse("Split_type", split_type, key, info)
        return self._make("Communicator", "Split_type", split_type, key, info)

    def Create(self, group: MPI.Group) -> Any:
        """A communicator of a subgroup, keeping our type."""
        rehearsal.group(self, group)
        return self._make("Communicator", "Create", group)

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Any:
        """A communicator of a subgroup, made by its members only, keeping our type."""
        members = rehearsal.group(self, group)
        if self.rank not in members:
            return _made(self, "Communicator", super().Create_group(group, tag))
        context = self._enter()
        with context.in_turn(), self._making("Create_group", members, context.meeting_tag(tag)) as making:
            with deaths.named(self, "Create_group"):
                plain = super().Create_group(group, tag)
            return _made(self, "Communicator", plain, making)

    def Create_cart(self, dims: Any, periods: Any = None, reorder: bool = False) -> Any:
        """A Cartesian communicator, keeping our collectives."""
        rehearsal.cart(self, dims, periods, reorder)
        return self._make("Cartcomm", "Create_cart", dims, periods, reorder)

    def Create_graph(self, index: Any, edges: Any, reorder: bool = False) -> Any:
        """A graph communicator, keeping our collectives."""
        rehearsal.graph(index, edges)
        return self._make("Graphcomm", "Create_graph", index, edges, reorder)

    def Create_dist_graph_adjacent(
        self, sources: Any, destinations: Any, sourceweights: Any = None, destweights: Any = None,
        info: MPI.Info = MPI.INFO_NULL, reorder: bool = False,
    ) -> Any:  # fmt: skip
        """A distributed graph communicator, keeping our collectives."""
        args = sources, destinations, sourceweights, destweights, info, reorder
        rehearsal.adjacent(self, *args)
        return self._make("Distgraphcomm", "Create_dist_graph_adjacent", *args)

    def Create_dist_graph(
        self, sources: Any, degrees: Any, destinations: Any, weights: Any = None, info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> Any:  # fmt: skip
        """A distributed graph communicator, keeping our collectives."""
        args = sources, degrees, destinations, weights, info, reorder
        rehearsal.dist_graph(self, *args)
        return self._make("Distgraphcomm", "Create_dist_graph", *args)
