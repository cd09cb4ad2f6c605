"""The public communicator: mpi4py's, with collectives of this library and an algorithm chosen per call."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ..arguments.buffers import AVG, REPRODUCIBLE_SUM, op_code
from ..arguments.calls import checked_root
from ..arguments.datatypes import DTYPE_CODES
from ..core import _core
from ..core.interfaces import Caller
from ..diagnostics import deaths
from ..errors import CollectiveError
from ..runtime.hierarchy import DEPTH
from ..runtime.meeting import Making, meeting
from ..runtime.mpi_context import MPIContext, duplicate
from ..system import heap, lifetime
from ..trace.recording import EVENTS, Trace
from . import rehearsal
from .buffered import Buffered, Neighbours
from .derived import Derived
from .grouping import Groups
from .objects import Objects
from .requests import Request
from .started_objects import StartedObjects

__all__ = ["Cartcomm", "Communicator", "Distgraphcomm", "Graphcomm", "Record"]

#: MPI's predefined communicators by their names in mpi4py.MPI, where --replace-world puts others.
_PREDEFINED = {name: getattr(MPI, name) for name in ("COMM_WORLD", "COMM_SELF")}


@dataclass(frozen=True)
class Record:
    """The last collective: its name, its algorithm, the bytes of its whole vector, the seconds from call to return."""

    collective: str
    algorithm: str
    nbytes: int
    seconds: float


class Communicator(Buffered, StartedObjects, Derived, MPI.Intracomm):
    """An mpi4py intracommunicator whose collectives are this library's.

    ``comm = collectives.Communicator(MPI.COMM_WORLD)`` is collective. It works on two duplicates, so that messages of
    the program and of the library never match. ``comm.Free()``, also collective, frees them. Methods that are no
    collectives are mpi4py's; docs/calls.md lists which calls run here. If the object is deleted without ``Free``, the
    library's resources are freed later, and MPI's communicator stays, as with mpi4py, since there may be other handles
    to it.
    """

    __module__ = __name__.rpartition(".")[0]  # the package from which users import it

    __slots__ = ("_context",)  # which compiled code reads

    _context: MPIContext | None
    _alone = False  # whether nobody else can have a handle to MPI's communicator, so that it dies with this object

    def __new__(cls, comm: MPI.Intracomm | None = None) -> Communicator:
        """Duplicate ``comm``; the null communicator stays null. TypeError for anything but an intracommunicator."""
        if comm is None or comm == MPI.COMM_NULL:
            self = super().__new__(cls)
            self._inherit(None)
            return self
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"comm: expected an mpi4py.MPI.Intracomm, not {type(comm).__name__}")
        if not MPI.Is_initialized():  # what this library asks of MPI_COMM_SELF and of MPI's attributes needs it
            raise CollectiveError("MPI.Init has not been called; an MPI session is not enough for a Communicator")
        if isinstance(comm, Communicator):
            comm._refuse_if_freed()
        known = comm._context if isinstance(comm, Communicator) else None
        turn = contextlib.nullcontext() if known is None else known.in_turn()
        with turn, meeting(f"creating a {cls.__name__}", MPI.Intracomm(comm), known) as making:
            return cls._adopt(duplicate(MPI.Intracomm(comm)), comm, making=making)

    @classmethod
    def _adopt(
        cls, plain: MPI.Comm, parent: MPI.Comm | None = None, alone: bool = False, making: Making | None = None
    ) -> Any:
        """Make an object of this class for the MPI communicator ``plain`` itself; the null communicator stays null.

        The object begins with the settings of ``parent``. ``alone``: the program has no handle to ``plain``, which may
        be freed when the object is deleted. ``making`` waits for the other ranks, if they have met already.
        """
        self = MPI.Intracomm.__new__(cls, plain)
        self._inherit(parent)
        self._alone = alone
        if plain != MPI.COMM_NULL and making is not None:
            try:
                self._set_context(making)
            except BaseException:
                if making.undone:
                    plain.Free()
                raise
        elif plain != MPI.COMM_NULL:
            self._enter()
        return self

    @classmethod
    def in_place_of(cls, comm: MPI.Intracomm) -> Communicator:
        """An object of this class for ``comm`` itself rather than for a duplicate; collective.

        The handle is that of ``comm``, and so are name, attributes and group. A predefined communicator still cannot be
        freed.
        """
        if isinstance(comm, Communicator):
            comm._refuse_if_freed()
        return cls._adopt(MPI.Intracomm(comm))

    def __reduce__(self) -> Any:
        """Pickle MPI_COMM_WORLD and MPI_COMM_SELF by their names, as mpi4py does; others cannot be pickled."""
        for name, comm in _PREDEFINED.items():
            if self == comm:
                return _predefined, (name,)
        return super().__reduce__()

    def _enter(self) -> MPIContext:
        """The library's side of the communicator; its set-up, at the first call, is collective."""
        context = self._context
        if context is None or context.life.ended:
            context = self._make_context()
        context.check()
        return context

    def _make_context(self) -> MPIContext:
        self._refuse_if_freed()
        if self == MPI.COMM_NULL:
            raise MPI.Exception(MPI.ERR_COMM)
        with meeting("setting up a communicator", MPI.Intracomm(self)) as making:
            return self._set_context(making)

    def _refuse_if_freed(self) -> None:
        """CollectiveError if the program has freed MPI's communicator through another handle; this one becomes null."""
        if self._context is not None and self._context.life.ended:
            self._become_null()
            raise CollectiveError("this communicator has been freed through another handle")

    def _become_null(self) -> None:
        _core.write_handle(MPI._addressof(self), MPI._sizeof(self), MPI.COMM_NULL.handle)

    def _set_context(self, making: Making) -> MPIContext:
        plain = MPI.Intracomm(self)
        with deaths.named(plain, "setting up a communicator"):
            self._context = context = MPIContext(plain, making)
        for name, value in self._inherited.items():
            setattr(context, name, value)
        handles = [context.internal, plain] if self._alone else [context.internal]
        self._finalizer = lifetime.watch(self, context, handles)
        return context

    @property
    def last(self) -> Record | None:
        """Record of the last collective on this communicator that this rank began.

        None before the first one, while a blocking one waits, and after one that failed.
        """
        last = None if self._context is None else self._context.last
        return None if last is None else Record(*last)

    def trace(self, path: str | os.PathLike[str], *, events: int = EVENTS) -> Trace:
        """``with comm.trace("file.json"): ...`` records a timeline of all ranks; see docs/tracing.md.

        Begin and end of the block are collective. The file is for ui.perfetto.dev and ``python -m collectives trace``;
        it holds up to ``events`` calls and spans of each rank. Without rank 0 of MPI.COMM_WORLD its name has the number
        of the first rank, as in ``file.rank4.json``. ValueError on all ranks if rank 0 cannot write it.
        """
        if isinstance(events, bool) or not isinstance(events, int) or not 0 < events < 1 << 32:
            raise ValueError(f"events: {events!r} is not a number of calls and spans")
        context = self._enter()
        return Trace(context.internal, os.fspath(path), events, context.identity)

    def explain(
        self, collective: str, nbytes: int, dtype: Any = "float32", op: Any = MPI.SUM, *, gpu: bool = False
    ) -> str:  # fmt: skip
        """Which algorithm a blocking call with a vector of ``nbytes`` bytes would run, and why, as text.

        ``nbytes`` counts all blocks together. ``dtype`` (a name, a NumPy dtype, an MPI datatype) and ``op`` matter if
        the collective reduces. If a selection table has made the choice, the text has the time that its model expects.
        If the ranks do not share memory, it has the reason, as far as this rank knows. With ``gpu`` it says how a call
        on arrays of a GPU would run (docs/gpu.md). ValueError for an unknown collective or a negative length. A local
        call, except the first one on a communicator of ``Idup``, which waits for all ranks.
        """
        context = self._enter()
        draft, choice = self._foresee(collective, nbytes, dtype, op)
        path = str(choice)
        if gpu:
            from . import device_calls

            path = device_calls.foresee(self, context, draft, choice)
        seconds = context.rules.expected(collective, choice, context.size, nbytes, DEPTH)
        told = path if seconds is None else f"{path}; expected {seconds * 1e6:.3g} us"
        return told if context.apart is None else f"{told} ({context.apart})"

    def __repr__(self) -> str:
        """This rank, the ranks and hosts, and by what the ranks exchange data: ``engine``; a local call."""
        name = type(self).__name__
        if self == MPI.COMM_NULL:
            return f"<collectives.{name}: null>"
        context = self._context
        if context is None:
            known = "" if MPI.Is_finalized() else f" rank {self.rank} of {self.size},"
            return f"<collectives.{name}:{known} not set up>"
        if context.life.ended:
            return f"<collectives.{name}: freed>"
        hosts = f"{context.layout.nodes} host{'s' if context.layout.nodes > 1 else ''}"
        broken = "" if context.broken is None else f", broken: {context.broken}"
        place = f"rank {context.rank} of {context.size} on {hosts}"
        return f"<collectives.{name}: {place}, engine: {context.engine}{broken}>"

    # Arrays on the heap

    def empty(self, shape: Any, dtype: Any = np.float64) -> np.ndarray:
        """A new, uninitialized array in memory that the ranks of this node share: they read it without a copy.

        The call is local, and the array can be used with every communicator. Raises TypeError for
        a ``dtype`` with Python objects, ValueError for a negative or too great length, MemoryError if shared memory is
        full or this process has none, and CollectiveError in a forked child.
        """
        return heap.empty(shape, dtype)

    def zeros(self, shape: Any, dtype: Any = np.float64) -> np.ndarray:
        """A new array of zeros in memory that the ranks of this node share; a local call, see :meth:`empty`."""
        return heap.empty(shape, dtype, zero=True)

    def full(self, shape: Any, fill_value: Any, dtype: Any = None) -> np.ndarray:
        """A new array in memory that the ranks of this node share, filled with ``fill_value``; see :meth:`empty`.

        ``dtype`` is by default the type of ``fill_value``.
        """
        array = heap.empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype)
        array[...] = fill_value
        return array

    def share(self, array: Any) -> np.ndarray:
        """A copy of ``array`` in memory that the ranks of this node share, as :meth:`empty` makes it; a local call.

        Shape, type, order in memory and values are those of ``array``, which the copy does not replace: memory cannot
        be moved under an array, nor under its views. So ``x = comm.share(x)`` before the first call. If ``array`` is
        in shared memory already, it is returned itself. TypeError for arrays of Python objects.
        """
        return heap.share(array)

    @property
    def group(self) -> Groups:  # type: ignore[override]
        """The communicator's ``MPI.Group``, as in mpi4py. ``with comm.group():`` makes one call of many small ones.

        See :class:`Group`.
        """
        self._refuse_if_freed()
        made = Groups(self.Get_group())
        made.comm = self
        return made

    if TYPE_CHECKING:  # classes of this module, which Derived cannot name

        def shrink(self) -> Communicator: ...  # noqa: D102
        def Shrink(self) -> Communicator: ...  # noqa: D102
        def Split(self, color: int = 0, key: int = 0) -> Communicator: ...  # noqa: D102
        def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Communicator: ...  # noqa: D102
        def Create(self, group: MPI.Group) -> Communicator: ...  # noqa: D102
        def Create_group(self, group: MPI.Group, tag: int = 0) -> Communicator: ...  # noqa: D102
        def Create_cart(self, dims: Any, periods: Any = None, reorder: bool = False) -> Cartcomm: ...  # noqa: D102
        def Create_graph(self, index: Any, edges: Any, reorder: bool = False) -> Graphcomm: ...  # noqa: D102
        def Create_dist_graph_adjacent(  # noqa: D102
            self, sources: Any, destinations: Any, sourceweights: Any = None, destweights: Any = None,
            info: MPI.Info = MPI.INFO_NULL, reorder: bool = False,
        ) -> Distgraphcomm: ...  # fmt: skip
        def Create_dist_graph(  # noqa: D102
            self, sources: Any, degrees: Any, destinations: Any, weights: Any = None, info: MPI.Info = MPI.INFO_NULL,
            reorder: bool = False,
        ) -> Distgraphcomm: ...  # fmt: skip

    # Freeing

    def Free(self) -> None:
        """Complete the calls under way and free the communicator with its duplicate; collective."""
        self._end(super().Free, "Free")

    def Disconnect(self) -> None:
        """Complete all communication on the communicator and free it, as :meth:`Free` does; collective."""
        self._end(super().Disconnect, "Disconnect")

    def _end(self, end: Callable[[], None], method: str) -> None:
        """Free the library's side, and then the communicator by ``end``, which is MPI's ``method``."""
        self._refuse_if_freed()
        if self in _PREDEFINED.values():
            super().Free()  # raises MPI's error, which not every MPI's Disconnect does
        context = self._context
        if context is not None and context.broken is None:
            context.check()
            self._free_mover()
            context.take_turn()  # and never give it back
            with deaths.named(self, method):
                context.free()
        if context is not None:
            self._finalizer.detach()
            self._context = None
            if context.broken is not None:  # keep all: messages may be under way, other ranks may read its memory
                lifetime.keep(context)
                self._become_null()
                return
        with deaths.named(self, method):
            end()


def _as_the_core_asks(comm: Communicator) -> Caller:
    """For type checkers: that the class implements the protocol in :mod:`collectives.core.interfaces`."""
    return comm


def _predefined(name: str) -> Any:
    """The communicator of this name in mpi4py.MPI."""
    return getattr(MPI, name)


class Cartcomm(Neighbours, Communicator, MPI.Cartcomm):
    """mpi4py's Cartesian communicator with this library's collectives."""

    def Sub(self, remain_dims: Any) -> Cartcomm:
        """A :class:`Cartcomm` of the dimensions kept by ``remain_dims`` (MPI_Cart_sub); collective."""
        self._refuse_if_freed()  # Open MPI crashes if it is asked for the dimensions then
        rehearsal.sub(self, remain_dims)
        return self._make("Cartcomm", "Sub", remain_dims)


class Graphcomm(Neighbours, Communicator, MPI.Graphcomm):
    """mpi4py's graph communicator with this library's collectives."""


class Distgraphcomm(Neighbours, Communicator, MPI.Distgraphcomm):
    """mpi4py's distributed graph communicator with this library's collectives."""


for _part in (Objects, StartedObjects, Derived):  # errors of wrong arguments have this name
    for _method in filter(inspect.isfunction, vars(_part).values()):
        _method.__qualname__ = f"Communicator.{_method.__name__}"

Communicator._kinds.update({kind.__name__: kind for kind in (Communicator, Cartcomm, Graphcomm, Distgraphcomm)})

_core.install_communicator(Communicator)
_core.install_mpi(
    MPI,
    Request,
    checked_root,
    [(op, op_code(op)) for op in (
        MPI.SUM, MPI.MAX, MPI.MIN, MPI.PROD, MPI.LAND, MPI.LOR, MPI.LXOR, MPI.BAND, MPI.BOR, MPI.BXOR, AVG,
        REPRODUCIBLE_SUM,
    )],
    [(np.dtype(letter).num, letter, DTYPE_CODES[np.dtype(letter).name]) for letter in "?bhilqBHILQefdFD"],
    [(datatype, DTYPE_CODES[np.dtype(datatype.tocode()).name]) for datatype in (
        MPI.FLOAT, MPI.DOUBLE, MPI.INT, MPI.LONG, MPI.LONG_LONG, MPI.SHORT, MPI.SIGNED_CHAR, MPI.UNSIGNED,
        MPI.UNSIGNED_LONG, MPI.UNSIGNED_LONG_LONG, MPI.UNSIGNED_SHORT, MPI.UNSIGNED_CHAR, MPI.INT8_T, MPI.INT16_T,
        MPI.INT32_T, MPI.INT64_T, MPI.UINT8_T, MPI.UINT16_T, MPI.UINT32_T, MPI.UINT64_T, MPI.C_BOOL,
        MPI.C_FLOAT_COMPLEX, MPI.C_DOUBLE_COMPLEX,
    )],
)  # fmt: skip
