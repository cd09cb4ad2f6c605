"""The attributes and methods of Python objects that the compiled core uses: the complete list.

A change of a name here needs the same change in the .pxi files; mypy checks the Python implementations against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Caller", "Choice", "Exchange", "Shape"]


class Shape(Protocol):
    """The shape of a call, for which a plan is made."""

    @property
    def name(self) -> str:
        """Name of the collective that is called."""

    @property
    def collective(self) -> str:
        """Name of the collective whose algorithms serve the call."""

    @property
    def root(self) -> int:
        """Rank of the root, 0 if there is none."""

    @property
    def elements(self) -> int:
        """Number of elements of all blocks together."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""

    @property
    def nbytes(self) -> int:
        """Bytes of the vector."""

    @property
    def dtype(self) -> int:
        """The kernels' code of the element type, or -1."""

    @property
    def op(self) -> Any:
        """The kernels' code of the op; (library, op handle, datatype handle) for an op of MPI's; or None."""

    @property
    def cuts(self) -> tuple[int, ...] | None:
        """Boundaries of the blocks in elements; None if they are those of ``_core.partition``."""

    @property
    def input_cuts(self) -> tuple[int, ...] | None:
        """Boundaries of the input's blocks in elements, if they differ from ``cuts``; else None."""

    @property
    def variant(self) -> str:
        """The name of an exchange; "" for other calls."""

    @property
    def starts(self) -> tuple[int, ...] | None:
        """Where blocks begin in elements, if not at the boundaries; else None."""

    @property
    def input_starts(self) -> tuple[int, ...] | None:
        """Where the input's blocks begin in elements; None if ``starts`` is."""

    def call(self, algorithm: str) -> Any:
        """The description of a call of this shape by ``algorithm``."""


class Choice(Protocol):
    """The choice of an algorithm for a call."""

    @property
    def algorithm(self) -> Any:
        """The algorithm; it has a ``name``."""


class Caller(Protocol):
    """A communicator, as the fast path and the calls with objects use it."""

    _context: Any

    @property
    def Bcast(self) -> Callable[..., None]:
        """mpi4py's method of this name."""

    @property
    def Allgather(self) -> Callable[..., None]:
        """mpi4py's method of this name."""

    @property
    def Alltoall(self) -> Callable[..., None]:
        """mpi4py's method of this name."""

    @property
    def Scatter(self) -> Callable[..., None]:
        """mpi4py's method of this name."""

    @property
    def Allgatherv(self) -> Callable[..., None]:
        """mpi4py's method of this name."""

    @property
    def Gatherv(self) -> Callable[..., None]:
        """mpi4py's method of this name."""


class Exchange(Protocol):
    """What a call with objects needs of its communicator; ``install_objects`` hands the core the class."""

    def enter(self) -> Any:
        """The library's side of the communicator, which is set up by the first call."""

    def part(self) -> Any:
        """The communicator; its next call counts as a part of the call under way."""

    def bcast(self, buffers: list[Any], root: int) -> list[Any]:
        """Broadcast an object's buffers."""

    def gather(
        self, streams: list[Any] | None, counts: list[int], mine: list[Any], most: int, root: int | None
    ) -> list[Any]:
        """The buffers of all ranks' objects, on the root, or on all ranks if ``root`` is None."""

    def scatter(self, stream: Any, count: int, parts: list[Any] | None, most: int, root: int) -> list[Any]:
        """The buffers of this rank's object."""

    def alltoall(self, streams: list[Any], counts: list[int], parts: list[Any], most: int) -> list[Any]:
        """The buffers of the objects received from all ranks."""

    def deal(self, parts: list[Any] | None, size: int, root: int) -> Any:
        """Scatter the root's parts."""

    def swap(self, parts: list[Any], sizes: list[int]) -> list[Any]:
        """All-to-all of parts."""
