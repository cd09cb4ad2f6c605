"""Expected time of a call: the alpha-beta-gamma model in pieces, with parameters fitted on a machine.

:mod:`collectives.analysis.cost` counts rounds and bytes; this module turns them into seconds. Segments form a pipeline:
the first segment passes all rounds, and each further segment ends later by the time the busiest rank needs for it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..analysis.cost import Machine, count, seconds
from ..schedules.registry import Algorithm, ScheduleAlgorithm

__all__ = ["Load", "Model", "Piece", "load", "pieces_cover"]


class Load(NamedTuple):
    """What the model charges for: rounds after each other, and bytes moved and folded until the call ends."""

    rounds: float
    moved: float
    folded: float


class _Way(NamedTuple):
    """For a vector of one byte: rounds; bytes moved and folded on the longest path; the same of the busiest rank."""

    rounds: int
    moved: float
    folded: float
    busiest_moved: float
    busiest_folded: float


@dataclass(frozen=True)
class Piece:
    """``rounds * alpha + moved * beta + folded * gamma`` seconds, for vectors of up to ``upto`` bytes (None: any)."""

    upto: int | None
    alpha: float
    beta: float
    gamma: float

    def seconds(self, load: Load) -> float:
        """Seconds that a call with ``load`` takes."""
        return load.rounds * self.alpha + load.moved * self.beta + load.folded * self.gamma


@dataclass(frozen=True)
class Model:
    """Pieces in order of length, and the median relative error on calls left out of the fit (None: unknown)."""

    pieces: tuple[Piece, ...]
    error: float | None = None

    def seconds(self, load: Load, nbytes: int) -> float:
        """Seconds that a call with ``load`` on a vector of ``nbytes`` bytes takes."""
        return next(p for p in self.pieces if p.upto is None or nbytes <= p.upto).seconds(load)


def load(algorithm: Algorithm, size: int, nbytes: int, segments: int = 1) -> Load:
    """The load of one call on ``size`` ranks with a vector of ``nbytes`` bytes in ``segments`` segments.

    For an algorithm that is not a schedule, the load is one round and the bytes of the vector.
    """
    if not isinstance(algorithm, ScheduleAlgorithm):
        return Load(1, nbytes, nbytes if algorithm.spec.reduces else 0)
    way = _way(algorithm, size)
    if algorithm.collective == "barrier":
        nbytes = 0
    return Load(
        way.rounds + segments - 1,
        nbytes * (way.busiest_moved + (way.moved - way.busiest_moved) / segments),
        nbytes * (way.busiest_folded + (way.folded - way.busiest_folded) / segments),
    )


@functools.lru_cache(maxsize=256)
def _way(algorithm: ScheduleAlgorithm, size: int) -> _Way:
    traffic = count(algorithm, size)
    busiest = [max(float(rank) for rank in bytes) / traffic.nblocks for bytes in (
        [max(pair) for pair in zip(traffic.sent, traffic.received, strict=True)], traffic.reduced,
    )]  # fmt: skip
    moved, folded = (seconds(algorithm, size, 1, Machine(0, *unit)) for unit in ((1, 0), (0, 1)))
    return _Way(traffic.rounds, max(moved, busiest[0]), max(folded, busiest[1]), *busiest)


def pieces_cover(pieces: Sequence[Piece]) -> bool:
    """Whether ``upto`` grows from piece to piece and is None for the last piece only."""
    ends = [math.inf if piece.upto is None else piece.upto for piece in pieces]
    return bool(ends) and ends[-1] == math.inf and all(a < b for a, b in itertools.pairwise(ends))
