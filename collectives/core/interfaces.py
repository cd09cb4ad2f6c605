"""What the compiled core asks of the Python objects that it is handed: all of it, and nothing else.

Whoever changes a name here changes it in the .pxi files, too; mypy holds the implementations to it.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Caller", "Choice", "Shape"]


class Shape(Protocol):
    """What a plan is made for."""

    @property
    def name(self) -> str:
        """Of the collective that is called."""

    @property
    def collective(self) -> str:
        """Whose algorithms serve it."""

    @property
    def root(self) -> int:
        """The root's rank, 0 where there is none."""

    @property
    def elements(self) -> int:
        """Of all blocks together."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""

    @property
    def nbytes(self) -> int:
        """Of the vector."""

    @property
    def dtype(self) -> int:
        """The kernels' code, or -1."""

    @property
    def op(self) -> Any:
        """A kernel's code, an op of MPI's as integers behind the library, or None."""

    @property
    def cuts(self) -> tuple[int, ...] | None:
        """Boundaries of the blocks where they are not as equal as can be."""

    @property
    def input_cuts(self) -> tuple[int, ...] | None:
        """Those of the input where they differ."""

    def call(self, algorithm: str) -> Any:
        """A call of this shape, in words."""


class Choice(Protocol):
    """An algorithm for a call."""

    @property
    def algorithm(self) -> Any:
        """With a name."""


class Caller(Protocol):
    """A communicator."""

    _context: Any
    Bcast: Any
    Allgather: Any
    Alltoall: Any
    Scatter: Any
    Allgatherv: Any
    Gatherv: Any

    def _enter_with_objects(self) -> Any: ...
    def _part(self) -> Any: ...
    def _bcast_buffers(self, buffers: list[Any], root: int) -> list[Any]: ...
    def _gather_buffers(
        self, streams: list[Any] | None, counts: list[int], mine: list[Any], most: int, root: int | None
    ) -> list[Any]: ...
    def _scatter_buffers(self, stream: Any, count: int, parts: list[Any] | None, most: int, root: int) -> list[Any]: ...
    def _swap_buffers(self, streams: list[Any], counts: list[int], parts: list[Any], most: int) -> list[Any]: ...
    def _deal(self, parts: list[Any] | None, size: int, root: int) -> Any: ...
    def _swap(self, parts: list[Any], sizes: list[int]) -> list[Any]: ...
