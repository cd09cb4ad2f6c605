"""Finds the fastest of several candidates with as few measurements as their noise allows.

Successive elimination: in every round each remaining candidate is measured once, in random order, so that a
disturbance of the machine slows all of them. A candidate is eliminated as soon as the ratio of its times to those of
the best candidate in the same rounds is above 1 with confidence. The confidence interval of the median of these ratios
follows from their order (the sign test), so that nothing is assumed about the distribution of the noise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

__all__ = ["Result", "interval", "judged", "race", "shuffled"]

C = TypeVar("C", bound=Hashable)

DOUBT = 0.01  # probability, on either side, that the median is outside the interval
LEAST, MOST = 7, 25  # rounds
NOTICEABLE = 1.02  # smaller ratios are no reason for another choice
BADLY = 1.1  # a ratio that counts even if it occurs in one group of rounds only


@dataclass(frozen=True)
class Result(Generic[C]):
    """``times`` of each candidate by round, in seconds; ``left``: candidates not found slower than the best."""

    times: dict[C, list[float]]
    left: list[C]

    def median(self, candidate: C) -> float:
        """Median time of ``candidate`` in seconds."""
        return float(np.median(self.times[candidate]))

    @property
    def ended(self) -> bool:
        """Whether there was only one candidate, or enough rounds to compare those that are left."""
        return len(self.times) == 1 or min(len(self.times[c]) for c in self.left) >= LEAST

    def ratios(self, candidate: C, other: C) -> list[float]:
        """The times of ``candidate`` divided by those of ``other`` in the same rounds."""
        return _ratios(self.times[candidate], self.times[other])

    def steady(self, candidate: C, other: C, rounds: int) -> bool:
        """Whether ``candidate`` was faster than ``other`` in the median of nearly each group of ``rounds`` rounds.

        Fewer than a fifth of the groups may be slower, of five groups none: noise can slow down one group in ten of a
        candidate that is faster by a third in every group.
        """
        ratios = self.ratios(candidate, other)
        medians = [np.median(ratios[i : i + rounds]) for i in range(0, len(ratios), rounds)]
        return bool(5 * sum(median >= 1 for median in medians) < max(1, len(medians)))

    def steadiest(self, default: C, rounds: int) -> C:
        """The fastest of the candidates that beat ``default`` with confidence and are :meth:`steady`; else ``default``.

        Eliminated candidates are considered too.
        """
        found = [
            c for c in self.times
            if c != default and interval(self.ratios(c, default))[1] < 1 and self.steady(c, default, rounds)
        ]  # fmt: skip
        return min(found, key=lambda c: np.median(self.ratios(c, default)), default=default)

    def ever_slower(self, candidate: C, other: C, rounds: int) -> bool:
        """Whether ``candidate`` was slower than ``other``, by NOTICEABLE overall or by BADLY in a group of rounds."""
        ratios = self.ratios(candidate, other)
        worst = max((np.median(ratios[i : i + rounds]) for i in range(0, len(ratios), rounds)), default=1)
        return bool(worst > BADLY or np.median(ratios or [1]) > NOTICEABLE)

    def winner(self, default: C, preferred: C | None = None) -> C:
        """``default`` unless it was eliminated; else ``preferred`` unless that was eliminated too; else the fastest."""
        for candidate in (default, preferred):
            if candidate is not None and candidate in self.left:
                return candidate
        return _best(self.times, self.left)


def interval(values: Sequence[float], doubt: float = DOUBT) -> tuple[float, float]:
    """Bounds for the median of the distribution of ``values``, each wrong with at most the probability ``doubt``.

    Order statistics: the k-th smallest of n values is above the median with the probability that n tosses of a coin
    show heads fewer than k times. Infinite if there are too few values.
    """
    ordered, n, below, k = sorted(values), len(values), 0.0, 0
    while k < n and below + math.comb(n, k) / 2**n <= doubt:
        below += math.comb(n, k) / 2**n
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else (-math.inf, math.inf)


def race(
    candidates: Sequence[C], measure: Callable[[C], float], *, least: int = LEAST, most: int = MOST,
    enough: Callable[[], bool] = lambda: False, before: Result[C] | None = None, beside: C | None = None,
) -> Result[C]:  # fmt: skip
    """Measure candidates until one is left, or the differences are not noticeable, or for ``most`` rounds.

    No candidate is eliminated before round ``least``. ``measure`` returns the seconds of one call; ``enough`` is asked
    after each round whether to stop. ``before`` is the result of a race that is continued. ``beside`` is measured in
    all rounds, even if it is eliminated, so that others can be compared with it at all times. If ranks run a race
    together, both functions must return equal values on all of them.
    """
    found = Result({c: [] for c in candidates}, list(candidates)) if before is None else before
    times, left = found.times, found.left
    begin = len(times[left[0]])
    for number in range(begin, begin + most):
        lost = [beside] if beside is not None and beside not in left else []
        if number >= least and not lost and _decided(times, left):
            break
        for candidate in shuffled([*left, *lost], number):
            times[candidate].append(measure(candidate))
        if number + 1 >= least:
            left = _left(times, left)
        if enough():
            break
    return Result(times, left)


def judged(times: dict[C, list[float]]) -> Result[C]:
    """The result of a race whose rounds were measured elsewhere; ``times`` must be of equal lengths."""
    every = list(times)
    return Result(times, _left(times, every) if len(times[every[0]]) >= LEAST else every)


def _left(times: dict[C, list[float]], left: list[C]) -> list[C]:
    """``left`` without the candidates that are noticeably slower than the best."""
    best = _best(times, left)
    return [
        c for c in left
        if c == best or interval(_ratios(times[c], times[best]))[0] <= 1 or _ratio(times[c], times[best]) < NOTICEABLE
    ]  # fmt: skip


def _decided(times: dict[C, list[float]], left: list[C]) -> bool:
    """Whether no candidate in ``left`` can be noticeably slower than the best."""
    best = _best(times, left)
    return all(c == best or interval(_ratios(times[c], times[best]))[1] < NOTICEABLE for c in left)


def shuffled(items: Sequence[C], number: int) -> list[C]:
    """``items`` in an order that depends on ``number`` and is equal on all ranks; a call may affect the next one."""
    return random.Random(number).sample(list(items), len(items))


def _best(times: dict[C, list[float]], left: Sequence[C]) -> C:
    """The candidate with the least median of its times relative to the median of all in the same round."""
    rounds = np.array([times[candidate] for candidate in left])
    if rounds.size == 0:
        return left[0]
    return left[int(np.argmin(np.median(rounds / np.median(rounds, axis=0), axis=1)))]


def _ratios(times: Sequence[float], others: Sequence[float]) -> list[float]:
    """The ratios of the times in the rounds in which both were measured."""
    return [a / b for a, b in zip(times, others, strict=False)]


def _ratio(times: Sequence[float], others: Sequence[float]) -> float:
    return float(np.median(_ratios(times, others)))
