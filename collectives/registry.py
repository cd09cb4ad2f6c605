"""The algorithms by name, each with what it promises."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .schedule import Round, Rounds

__all__ = ["Algorithm", "NativeAlgorithm", "ScheduleAlgorithm", "algorithms", "find", "register", "register_native"]


@dataclass(frozen=True)
class Algorithm:
    """What every algorithm says of itself.

    ``ordered``: operands are folded in rank order, so that ops that do not commute are served.
    ``linear``: every element is folded ``((x0 op x1) op x2) ...``, whatever its position (deterministic mode).
    """

    collective: str
    name: str
    summary: str
    ordered: bool
    linear: bool


@dataclass(frozen=True)
class ScheduleAlgorithm(Algorithm):
    """A generator of rounds (see :mod:`collectives.schedule`), proved by :mod:`collectives.verify`.

    ``blocks(p)`` is the number of blocks of the vector; ``rounds(p)`` the rounds with messages that must follow each
    other (the longest chain over all ranks); ``sent(p)`` the most blocks that one rank sends in all. The last two are
    promises: verification counts them again.
    """

    generator: Rounds
    blocks: Callable[[int], int]
    rounds: Callable[[int], int]
    sent: Callable[[int], int]


@dataclass(frozen=True)
class NativeAlgorithm(Algorithm):
    """Not a schedule: the MPI library's own collective, the node-local engine, a CUDA kernel."""


_table: dict[tuple[str, str], Algorithm] = {}


def _add(algorithm: Algorithm) -> None:
    key = algorithm.collective, algorithm.name
    if key in _table:
        raise ValueError(f"{algorithm.collective} has an algorithm named {algorithm.name!r} already")
    _table[key] = algorithm


def register(
    collective: str,
    name: str,
    generator: Rounds | Callable[..., Iterator[Round]],
    *,
    blocks: Callable[[int], int],
    rounds: Callable[[int], int],
    sent: Callable[[int], int],
    ordered: bool = False,
    linear: bool = False,
    doc: str | None = None,
) -> ScheduleAlgorithm:
    """Enter a schedule algorithm; its summary is the first line of ``doc`` (default: the generator's docstring)."""
    generator = generator if isinstance(generator, Rounds) else Rounds(generator)
    summary = (doc or generator.__doc__ or "").strip().split("\n")[0]
    algorithm = ScheduleAlgorithm(collective, name, summary, ordered, linear, generator, blocks, rounds, sent)
    _add(algorithm)
    return algorithm


def register_native(collective: str, name: str, summary: str, *, ordered: bool, linear: bool) -> NativeAlgorithm:
    """Enter an algorithm that is not a schedule."""
    algorithm = NativeAlgorithm(collective, name, summary, ordered, linear)
    _add(algorithm)
    return algorithm


def algorithms(collective: str) -> list[str]:
    """Names of the algorithms of a collective, e.g. ``"allreduce"``; ValueError for an unknown collective."""
    _load()
    names = [name for kind, name in _table if kind == collective]
    if not names:
        known = ", ".join(sorted({kind for kind, _ in _table}))
        raise ValueError(f"unknown collective {collective!r}; known: {known}")
    return names


def find(collective: str, name: str) -> Algorithm:
    """The algorithm of that name; ValueError with the known names otherwise."""
    known = algorithms(collective)
    if name not in known:
        raise ValueError(f"{collective} has no algorithm {name!r}; known: {', '.join(known)}")
    return _table[collective, name]


def collectives() -> list[str]:
    """Names of the collectives that have algorithms."""
    _load()
    return sorted({kind for kind, _ in _table})


def _load() -> None:
    importlib.import_module(".algorithms", __package__)  # registers all; `from . import` would find the function
