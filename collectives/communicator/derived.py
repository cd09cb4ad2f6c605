"""Methods that make communicators from a communicator, as classes of this library, and the settings these inherit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..arguments.calls import checked_flag
from ..arguments.timeouts import checked_timeout
from ..diagnostics import deaths
from ..errors import CollectiveError
from ..runtime.meeting import Making, meeting
from ..runtime.mpi_context import MPIContext, duplicate
from ..system import mpi_library
from ..waiting import ending
from . import rehearsal

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Derived"]


def _made(parent: Derived, name: str, plain: MPI.Comm, making: Making | None = None) -> Any:
    """The MPI communicator ``plain`` as an object of this library's class ``name``."""
    return parent._kinds[name]._adopt(plain, parent, making=making)


class Derived(MPI.Intracomm):
    """Methods of :class:`collectives.Communicator`, which derives from this class, that make others, and the settings.

    A duplicate that ``Idup`` began has no context yet. Its settings are local all the same, and kept for its context.
    """

    _kinds: dict[str, Any] = {}  # this library's classes by name; filled by the module that defines them
    _adopt: Any
    _enter: Any
    _context: MPIContext | None
    _inherited: Mapping[str, Any] = {}  # settings to begin with: those of the communicator that this one was made from

    if TYPE_CHECKING:

        def _refuse_if_freed(self) -> None: ...

    def _inherit(self, parent: MPI.Comm | None) -> None:
        """Begin without a context, and with the settings of the communicator that this one is made from."""
        self._context = None
        if isinstance(parent, Derived):
            self._inherited = parent._settings

    @property
    def _begun_by_idup(self) -> bool:
        """Whether it is a duplicate that ``Idup`` began, and has no context yet."""
        return self._context is None and self != MPI.COMM_NULL

    @property
    def _settings(self) -> Mapping[str, Any]:
        """The settings that communicators made from this one begin with."""
        context = self._context
        if context is None:
            return self._inherited
        return {"timeout": context.timeout, "deterministic": context.deterministic}

    def _set(self, name: str, value: Any) -> None:
        """Change a setting."""
        if self._begun_by_idup:
            self._inherited = {**self._inherited, name: value}
        else:
            setattr(self._enter(), name, value)

    @property
    def timeout(self) -> float | None:
        """Seconds after which a call that this rank waits for raises CollectiveTimeout; None: never.

        The default is that of the parent communicator, or rank 0's ``COLLECTIVES_TIMEOUT``. Each rank may set its own
        value; ``timeout=`` of a call takes precedence.
        """
        seconds: float | None = self._settings.get("timeout") if self._begun_by_idup else self._enter().timeout
        return seconds

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._set("timeout", checked_timeout(seconds))

    @property
    def deterministic(self) -> bool:
        """Whether reductions fold in rank order by default; it must be the same on all ranks.

        The ``deterministic`` argument of a call takes precedence. Communicators made from this one begin with its
        setting. See docs/reproducibility.md.
        """
        return bool(self._settings.get("deterministic"))

    @deterministic.setter
    def deterministic(self, value: bool) -> None:
        self._set("deterministic", checked_flag(value, "deterministic"))

    def Dup(self, info: MPI.Info | None = None) -> Self:
        """A duplicate of the same class, with the hints in ``info`` or this communicator's; collective."""
        if info is not None:
            rehearsal.rehearse("Dup", info)
        with self._enter().in_turn(), self._making("Dup") as making:
            return type(self)._adopt(duplicate(MPI.Intracomm(self), info), self, making=making)

    Clone = Dup

    def Dup_with_info(self, info: MPI.Info) -> Self:
        """A duplicate of the same class, with the hints in ``info``; collective."""
        return self.Dup(info)

    def Idup(self, info: MPI.Info | None = None) -> tuple[Self, MPI.Request]:
        """Begin a duplicate of the same class; returns it with a request.

        The duplicate can be used once the request is complete. Its first collective, ``with comm.group()`` or
        ``explain`` sets up the library's side. That waits for all ranks to do so, and a non-blocking call does, too.
        """
        self._refuse_if_freed()
        with deaths.named(self, "Idup"):
            plain, request = MPI.Intracomm(self).Idup(info)
        duplicate = MPI.Intracomm.__new__(type(self), plain)
        duplicate._inherit(self)
        return duplicate, request

    Idup_with_info = Idup

    @property
    def why_no_shrink(self) -> str | None:
        """Why :meth:`shrink` is refused here, as text; None if live ranks can go on without the dead."""
        return mpi_library.why_no_survivors()

    def shrink(self) -> Any:
        """A new communicator of the live ranks, in their order. All live ranks call this after a rank has died.

        All calls under way on this communicator are given up, on all ranks: a rank that waits in a collective of it
        gets a CollectiveError, and then calls this method, too. This communicator cannot be used afterwards, and other
        communicators with the dead rank must be shrunk as well. CollectiveError, without communication, if the launcher
        ends the job when a rank dies; with Open MPI 5 under ``mpiexec --with-ft ulfm`` it does not. Method:
        MPI_Comm_revoke and MPI_Comm_shrink (ULFM, MPI 5), then a new set-up of the library's side.
        """
        ending.refuse_if_forked()
        if self.why_no_shrink is not None:
            raise CollectiveError(f"no communicator of survivors: {self.why_no_shrink}")
        self._refuse_if_freed()
        plain = MPI.Intracomm(self)
        plain.Revoke()
        if self._context is not None:
            self._context.abandon()
        with deaths.named(plain, "shrink"):
            survivors = plain.Shrink()
        return _made(self, "Communicator", survivors)

    def Shrink(self) -> Any:
        """MPI_Comm_shrink: a communicator without the dead ranks; collective among the others.

        If the MPI has no ULFM, it is mpi4py's ``Shrink``, which removes nobody.
        """
        return self.shrink() if self.why_no_shrink is None else self._make("Communicator", "Shrink")

    def Revoke(self) -> None:
        """Make every call on this communicator fail, on all ranks. A single rank can call this.

        Ranks that wait in a collective get a CollectiveError that names this rank and the line of this call. Afterwards
        only :meth:`shrink` can be used. NotImplementedError, or an error of MPI's, if the MPI cannot revoke.
        """
        ending.refuse_if_forked()  # the child's messages of MPI's would take the place of its parent's
        self._refuse_if_freed()
        super().Revoke()
        if self._context is not None:
            self._context.revoke()

    def _make(self, kind: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call mpi4py's ``method``; returns its communicator as an object of this library's class ``kind``."""
        with self._enter().in_turn(), self._making(method) as making:
            with deaths.named(self, method):
                plain = getattr(super(), method)(*args, **kwargs)
            return _made(self, kind, plain, making)

    def _making(self, method: str, members: list[int] | None = None, tag: int = 0) -> AbstractContextManager[Making]:
        """A :func:`meeting` of all ranks, or of ``members``, for ``method``, which makes a communicator."""
        return meeting(f"creating a communicator by {method}", self, self._context, members, tag)

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """A :class:`Communicator` of the ranks with the same ``color``, ordered by ``key``; collective."""
        rehearsal.rehearse("Split", color, key)
        return self._make("Communicator", "Split", color, key)

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Any:
        """A :class:`Communicator` of the ranks that share what ``split_type`` says, ordered by ``key``; collective."""
        rehearsal.rehearse("Split_type", split_type, key, info)
        return self._make("Communicator", "Split_type", split_type, key, info)

    def Create(self, group: MPI.Group) -> Any:
        """A :class:`Communicator` of the ranks in ``group``, null on others; collective over this communicator."""
        self._refuse_if_freed()
        rehearsal.group(self, group)
        return self._make("Communicator", "Create", group)

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Any:
        """A :class:`Communicator` of the ranks in ``group``. Only these ranks call it; ``tag`` tells calls apart."""
        self._refuse_if_freed()
        members = rehearsal.group(self, group)
        if self.rank not in members:
            return _made(self, "Communicator", super().Create_group(group, tag))
        if self._begun_by_idup:  # a set-up would wait for the ranks that are not in the group
            with deaths.named(self, "Create_group"):
                plain = super().Create_group(group, tag)
            return _made(self, "Communicator", plain)
        context = self._enter()
        with context.in_turn(), self._making("Create_group", members, context.meeting_tag(tag)) as making:
            with deaths.named(self, "Create_group"):
                plain = super().Create_group(group, tag)
            return _made(self, "Communicator", plain, making)

    def Create_cart(self, dims: Any, periods: Any = None, reorder: bool = False) -> Any:
        """A :class:`Cartcomm` with dimensions ``dims``, null on surplus ranks (MPI_Cart_create); collective."""
        self._refuse_if_freed()
        rehearsal.cart(self, dims, periods, reorder)
        return self._make("Cartcomm", "Create_cart", dims, periods, reorder)

    def Create_graph(self, index: Any, edges: Any, reorder: bool = False) -> Any:
        """A :class:`Graphcomm`, null on surplus ranks (MPI_Graph_create); collective."""
        rehearsal.graph(index, edges)
        return self._make("Graphcomm", "Create_graph", index, edges, reorder)

    def Create_dist_graph_adjacent(
        self, sources: Any, destinations: Any, sourceweights: Any = None, destweights: Any = None,
        info: MPI.Info = MPI.INFO_NULL, reorder: bool = False,
    ) -> Any:  # fmt: skip
        """A :class:`Distgraphcomm` from this rank's neighbours (MPI_Dist_graph_create_adjacent); collective."""
        args = sources, destinations, sourceweights, destweights, info, reorder
        self._refuse_if_freed()
        rehearsal.adjacent(self, *args)
        return self._make("Distgraphcomm", "Create_dist_graph_adjacent", *args)

    def Create_dist_graph(
        self, sources: Any, degrees: Any, destinations: Any, weights: Any = None, info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> Any:  # fmt: skip
        """A :class:`Distgraphcomm` from edges that any rank may give (MPI_Dist_graph_create); collective."""
        args = sources, degrees, destinations, weights, info, reorder
        self._refuse_if_freed()
        rehearsal.dist_graph(self, *args)
        return self._make("Distgraphcomm", "Create_dist_graph", *args)
