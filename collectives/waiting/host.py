"""What waits for a communicator's calls, as the modules below :mod:`collectives.waiting.waiting` know it."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from ..core import _core
from ..diagnostics.diagnosis import Answer
from ..errors import CollectiveError

__all__ = ["Host"]


class Host(Protocol):
    """The library's side of a communicator: who its ranks are, what it knows of them, and how it waits and fails."""

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
        """This process's."""

    @property
    def size(self) -> int:
        """How many there are."""

    def behind(self, run: Any) -> list[int]:
        """Ranks that a run waits for."""

    def others(self) -> list[int]:
        """All ranks but this one."""

    def has_ended(self, rank: int) -> bool:
        """Whether the process of a rank is known to have ended."""

    def seems_ended(self, rank: int) -> bool:
        """Whether the machine of a rank says that its process has ended."""

    def end_of(self, rank: int) -> str:
        """Words for a rank whose process is known to have ended."""

    def lateness(self, timeout: float) -> str:
        """Words for a call that has taken too many seconds."""

    def place_of(self, run: Any) -> str:
        """Words for a run of this rank."""

    def parties(self, run: Any, behind: list[int], again: bool = False) -> list[Answer]:
        """What this rank and the others do."""

    def judged(self, run: Any, answer: Answer) -> tuple[type[CollectiveError], str, str | None] | None:
        """Why a run will never end, told from what another rank says, or None while it may."""

    def error_of(
        self, run: Any, kind: type[CollectiveError], why: str, origin: str | None, behind: list[int]
    ) -> CollectiveError:  # fmt: skip
        """The error of a run, with what all ranks do."""

    def fail(self, run: Any, error: BaseException) -> NoReturn:
        """Note that a run ended early, and raise what it means."""
