"""The interface of a communicator's context that the modules below :mod:`collectives.waiting.waiting` use."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from ..core import _core
from ..diagnostics.diagnosis import Answer
from ..errors import CollectiveError

__all__ = ["Host"]


class Host(Protocol):
    """The library's side of a communicator: its ranks, what it knows of them, and how its calls wait and fail.

    A ``run`` is one call that is executed: an object with ``plan``, ``call()`` and ``wait()``.
    """

    identity: str
    timeout: float | None
    stall: float | None
    broken: str | None
    mpi_queries: Any
    neighbours: dict[int, Any]
    heard: dict[int, Answer]
    left: dict[int, Answer]
    waits: list[Any]
    tested: dict[Any, Any]
    log: _core.Log | None

    @property
    def rank(self) -> int:
        """Rank of this process in the communicator."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def meanwhile(self) -> None:
        """See :meth:`collectives.waiting.waiting.Waiting.meanwhile`."""

    def behind(self, run: Any) -> list[int]:
        """Ranks that ``run`` waits for; empty if that is not known."""

    def others(self) -> list[int]:
        """All ranks but this one."""

    def has_ended(self, rank: int) -> bool:
        """Whether the process of ``rank`` is known to have ended."""

    def seems_ended(self, rank: int) -> bool:
        """Whether the machine of ``rank`` says that the rank's process has ended."""

    def end_of(self, rank: int) -> str:
        """Text for an error message: how it is known that the process of ``rank`` has ended."""

    def lateness(self, timeout: float) -> str:
        """Text for an error message: a call is not complete after ``timeout`` seconds."""

    def place_of(self, run: Any) -> str:
        """Text for an error message: ``run`` and this rank."""

    def parties(self, run: Any, behind: list[int], again: bool = False) -> list[Answer]:
        """What this rank and the others are doing; see :meth:`collectives.waiting.waiting.Waiting.parties`."""

    def judged(self, run: Any, answer: Answer) -> tuple[type[CollectiveError], str, str | None] | None:
        """Why ``run`` will never end, according to another rank's ``answer``; None as long as it may."""

    def error_of(
        self, run: Any, kind: type[CollectiveError], why: str, origin: str | None, behind: list[int]
    ) -> CollectiveError:  # fmt: skip
        """The error of ``run``, whose message says what all ranks are doing."""

    def fail(self, run: Any, error: BaseException) -> NoReturn:
        """Record that ``run`` has ended early by ``error``, and raise the error that the program is to see."""
