"""Work on all ranks that succeeds on all or raises on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

KINDS: dict[str, type[Exception]] = {"OSError": OSError, "TypeError": TypeError, "ValueError": ValueError}
Failure = tuple[str, int | None, str]  # a key of KINDS, the error's number if it has one, its text


def failure_of(error: Exception) -> Failure:
    """What other ranks are to know of an error of this rank."""
    kind = next(name for name, known in KINDS.items() if isinstance(error, known))
    number = error.errno if isinstance(error, OSError) else None
    text = str(error)
    if isinstance(error, OSError) and error.strerror is not None:
        text = error.strerror + ("" if error.filename is None else f": {error.filename}")
    return kind, number, text


def error_of(rank: int, failure: Failure) -> Exception:
    """The error that other ranks raise for the failure of `rank`."""
    kind, number, text = failure
    said = f"rank {rank}: {text}"
    return KINDS[kind](said) if number is None else OSError(number, said)


def raise_alike(comm: Any, mine: Exception | None) -> None:
    """Raise on all ranks if any rank has an error: its own, or else that of the lowest rank that has one. Collective.

    `mine` is an OSError, a TypeError or a ValueError. The text of another rank's error names that rank.
    """
    failures: list[Failure | None] = comm.allgather(None if mine is None else failure_of(mine))
    if mine is not None:
        raise mine
    for rank, failure in enumerate(failures):
        if failure is not None:
            raise error_of(rank, failure)


def together(comm: Any, work: Callable[[], T]) -> T:
    """The result of ``work()`` on this rank. If it raises OSError, TypeError or ValueError anywhere, all ranks raise.

    Collective; see `raise_alike`. What one rank has changed in its memory before another one failed stays changed.
    """
    mine: Exception | None = None
    try:
        result = work()
    except tuple(KINDS.values()) as error:
        mine = error
    raise_alike(comm, mine)
    return result
