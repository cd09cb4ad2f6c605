"""Which of several candidates is fastest, found with as few measurements as their noise allows.

Successive elimination: in every round each candidate that is left is measured once, in any order, so that what
slows the machine down for a while slows all of them. A candidate leaves as soon as the ratio of its times to those of
the best one in the same rounds is above 1 with confidence. The interval of the median of those ratios comes from their
order (the sign test), so nothing is assumed of how the noise is distributed.
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

DOUBT = 0.01  # chance on either side of the interval that the median lies outside
LEAST, MOST = 7, 25  # rounds
NOTICEABLE = 1.02  # what is less far apart is no reason for another choice
BADLY = 1.1  # slower by this for a while is


@dataclass(frozen=True)
class Result(Generic[C]):
    """The times of each candidate, round by round, seconds; those that were not found to be slower than the best."""

    times: dict[C, list[float]]
    left: list[C]

    def median(self, candidate: C) -> float:
        """Median time of a candidate, seconds."""
        return float(np.median(self.times[candidate]))

    @property
    def ended(self) -> bool:
        """Whether there was one candidate to begin with, or time to tell them apart."""
        return len(self.times) == 1 or min(len(self.times[c]) for c in self.left) >= LEAST

    def ratios(self, candidate: C, other: C) -> list[float]:
        """The times of a candidate over those of another one in the same rounds."""
        return _ratios(self.times[candidate], self.times[other])

    def steady(self, candidate: C, other: C, rounds: int) -> bool:
        """Whether a candidate was faster than another one in the median of every so many rounds, but for a few times.

        Of five times that is none: noise makes one of ten slower that is faster by a third in all of them.
        """
        ratios = self.ratios(candidate, other)
        medians = [np.median(ratios[i : i + rounds]) for i in range(0, len(ratios), rounds)]
        return bool(5 * sum(median >= 1 for median in medians) < max(1, len(medians)))

    def steadiest(self, default: C, rounds: int) -> C:
        """The fastest of all that were faster than the default with confidence, and :meth:`steady`; else the default.

        One that left the race because another was faster at times may be.
        """
        found = [
            c for c in self.times
            if c != default and interval(self.ratios(c, default))[1] < 1 and self.steady(c, default, rounds)
        ]  # fmt: skip
        return min(found, key=lambda c: np.median(self.ratios(c, default)), default=default)

    def ever_slower(self, candidate: C, other: C, rounds: int) -> bool:
        """Whether a candidate was noticeably slower than another one, or by a tenth in any so many rounds: medians."""
        ratios = self.ratios(candidate, other)
        worst = max((np.median(ratios[i : i + rounds]) for i in range(0, len(ratios), rounds)), default=1)
        return bool(worst > BADLY or np.median(ratios or [1]) > NOTICEABLE)

    def winner(self, default: C, preferred: C | None = None) -> C:
        """The default unless it was found to be slower; else the preferred one or, if that was too, the fastest."""
        for candidate in (default, preferred):
            if candidate is not None and candidate in self.left:
                return candidate
        return _best(self.times, self.left)


def interval(values: Sequence[float], doubt: float = DOUBT) -> tuple[float, float]:
    """Bounds of the median of what the values are samples of, each wrong with at most the chance ``doubt``.

    Order statistics: the k-th smallest of n is above the median with the chance that a coin shows heads less than k
    times in n. Infinite where there are too few values.
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
    """Measure candidates until one is left, or nothing noticeable is left to find out, or for ``most`` rounds.

    Nobody leaves before the ``least``-th round. ``measure`` gives the seconds of one; ``enough`` is asked after each
    round whether time is up. ``before`` is the result so far of a race that goes on. ``beside`` is measured in all
    rounds, and the race goes on after it has left, as whatever replaces it is to be faster at all times. Where ranks
    run this together, both functions must tell all of them the same.
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
    """A race whose rounds were run elsewhere: as many of each candidate, the first ones together, and so on."""
    every = list(times)
    return Result(times, _left(times, every) if len(times[every[0]]) >= LEAST else every)


def _left(times: dict[C, list[float]], left: list[C]) -> list[C]:
    """Without those that were found to be noticeably slower than the best."""
    best = _best(times, left)
    return [
        c for c in left
        if c == best or interval(_ratios(times[c], times[best]))[0] <= 1 or _ratio(times[c], times[best]) < NOTICEABLE
    ]  # fmt: skip


def _decided(times: dict[C, list[float]], left: list[C]) -> bool:
    """Whether nothing noticeable can be between those that are left."""
    best = _best(times, left)
    return all(c == best or interval(_ratios(times[c], times[best]))[1] < NOTICEABLE for c in left)


def shuffled(items: Sequence[C], number: int) -> list[C]:
    """The items in an order of round ``number``, the same on all ranks: what came before a call leaves its traces."""
    return random.Random(number).sample(list(items), len(items))


def _best(times: dict[C, list[float]], left: Sequence[C]) -> C:
    """The one with the least median of its times in relation to those of all that are left, in the same rounds."""
    rounds = np.array([times[candidate] for candidate in left])
    if rounds.size == 0:
        return left[0]
    return left[int(np.argmin(np.median(rounds / np.median(rounds, axis=0), axis=1)))]


def _ratios(times: Sequence[float], others: Sequence[float]) -> list[float]:
    """Of the rounds in which both were measured."""
    return [a / b for a, b in zip(times, others, strict=False)]


def _ratio(times: Sequence[float], others: Sequence[float]) -> float:
    return float(np.median(_ratios(times, others)))
