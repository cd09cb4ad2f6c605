"""Fits the alpha-beta-gamma model of one algorithm to a few measurements, by least squares of relative errors.

MPI's protocols and the cache levels change alpha and beta with the length, so a model has pieces. Their number and ends
are found by dynamic programming over the lengths, with a penalty for each piece. Measurements of one algorithm cannot
separate beta from gamma, since it folds what it moves; measured times of folding alone are added as points for that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..selection.model import Load, Model, Piece

__all__ = ["Point", "errors", "fit"]

MOST_PIECES, FEWEST_SIZES = 5, 2
#: Penalty of a further piece, in squared relative errors: two sizes with errors of a tenth each.
PIECE = 0.02
TINY = 1e-9


class Point(NamedTuple):
    """One measurement: ``seconds`` of a call with ``load`` on a vector of ``nbytes`` bytes."""

    nbytes: int
    load: Load
    seconds: float


def fit(points: Sequence[Point], folds: Sequence[Point] = ()) -> Model:
    """The model with the least errors at ``points``; ``folds`` are times of folding alone, which determine gamma.

    All coefficients are at least 0. Two pieces meet at the geometric mean of the lengths on both sides. ValueError
    without points, or if a time is not positive.
    """
    if not points or min(p.seconds for p in points) <= 0:
        raise ValueError("points: expected at least one, all of positive time")
    lengths = sorted({p.nbytes for p in points})
    least = min(FEWEST_SIZES, len(lengths))
    best: dict[int, tuple[float, list[tuple[int, int]]]] = {0: (0.0, [])}
    cost = {
        (i, j): _solve(*_rows(points, folds, lengths[i], lengths[j - 1]))[1]
        for i in range(len(lengths)) for j in range(i + least, len(lengths) + 1)
    }  # fmt: skip
    for end in range(least, len(lengths) + 1):
        ways = [
            (best[i][0] + cost[i, end] + PIECE * (i > 0), [*best[i][1], (i, end)])
            for i in range(end - least + 1) if i in best and len(best[i][1]) < MOST_PIECES
        ]  # fmt: skip
        best[end] = min(ways)
    pieces = []
    for i, j in best[len(lengths)][1]:
        upto = None if j == len(lengths) else math.isqrt(lengths[j - 1] * lengths[j])
        alpha, beta, gamma = _solve(*_rows(points, folds, lengths[i], lengths[j - 1]))[0]
        pieces.append(Piece(upto, alpha, beta, gamma))
    return Model(tuple(pieces))


def errors(model: Model, points: Sequence[Point]) -> list[float]:
    """The relative error of the model at each point."""
    return [abs(model.seconds(p.load, p.nbytes) / p.seconds - 1) for p in points]


def _rows(points: Sequence[Point], folds: Sequence[Point], low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Loads divided by times, so that the model's value of each row should be 1, and the weights of the rows.

    Includes the folds between ``low`` and ``high``, else the nearest one; all folds together weigh as much as a point.
    """
    chosen = [p for p in points if low <= p.nbytes <= high]
    beside = [p for p in folds if low <= p.nbytes <= high]
    if not beside and folds:
        beside = [min(folds, key=lambda p: abs(math.log((p.nbytes + 1) / (math.sqrt(low * high) + 1))))]
    if not any(p.load.folded for p in chosen):
        beside = []
    rows = np.array([[x / p.seconds for x in p.load] for p in (*chosen, *beside)])
    weights = np.array([1.0] * len(chosen) + [1 / max(1, len(beside))] * len(beside))
    return rows, weights


def _solve(rows: np.ndarray, weights: np.ndarray) -> tuple[tuple[float, float, float], float]:
    """The non-negative coefficients with the least weighted sum of squared errors, and that sum.

    With three unknowns, all sets of non-zero ones are tried; of equally good sets the smallest is taken.
    """
    scale = np.where(rows.max(axis=0) > 0, rows.max(axis=0), 1)
    root = np.sqrt(weights)
    best, least = np.zeros(3), float(weights.sum())
    for number in (1, 2, 3):
        for used in map(list, itertools.combinations(range(3), number)):
            found = np.linalg.lstsq((rows / scale)[:, used] * root[:, None], root, rcond=None)[0]
            if found.min() < 0:
                continue
            wrong = float((weights * ((rows / scale)[:, used] @ found - 1) ** 2).sum())
            if wrong < least - TINY:
                best, least = np.zeros(3), wrong
                best[used] = found
    alpha, beta, gamma = (best / scale).tolist()
    return (alpha, beta, gamma), least
