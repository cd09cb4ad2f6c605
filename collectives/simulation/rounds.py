"""The messages of a schedule, round by round, as arrays over all ranks.

Rounds that are written as a series and have the same messages, such as those of a ring, are given once, with their
number: a ring of 100,000 ranks has 200,000 of them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..schedules.build import spread
from ..schedules.registry import ScheduleAlgorithm
from ..schedules.schedule import INPUT, Kind, Series, Step

__all__ = ["MOST_MESSAGES", "Messages", "TooMany", "bytes_of_block", "rounds"]

#: Messages that are held in memory at once: of one round here, of all segments in :mod:`collectives.simulation.events`.
MOST_MESSAGES = 20_000_000
_SAMPLES = 16  # rounds of a series, and ranks, that are compared before its rounds count as equal


class TooMany(ValueError):
    """A schedule has more messages than fit in memory."""


@dataclass(frozen=True, eq=False)
class Messages:
    """One round: messages from ``source`` to ``target`` of ``blocks`` blocks, in the order in which ranks send them.

    ``folds``: whether the target folds what arrives from the source. ``ahead``: whether no message of the source needs
    what it received or folded in its round before: then they are sent when that round begins. ``reduced``: blocks that
    each rank folds besides.
    """

    source: np.ndarray
    target: np.ndarray
    blocks: np.ndarray
    folds: np.ndarray
    ahead: np.ndarray
    reduced: np.ndarray

    def same(self, other: Messages | None) -> bool:
        """Whether the other round has the same messages."""
        if other is None:
            return False
        names = ("source", "target", "blocks", "folds", "ahead", "reduced")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)


def bytes_of_block(algorithm: ScheduleAlgorithm, size: int, nbytes: int) -> float:
    """Bytes of a block of a vector of ``nbytes`` bytes, which may be a fraction; messages of a barrier are empty."""
    return 0.0 if algorithm.collective == "barrier" else nbytes / algorithm.blocks(size)


def rounds(algorithm: ScheduleAlgorithm, size: int, root: int = 0) -> Iterator[tuple[Messages, int]]:
    """The rounds of all ranks in turn, each with the number of times that it is repeated; empty rounds are left out.

    TooMany if a round has more than MOST_MESSAGES messages; ValueError if there is no such root.
    """
    if not 0 <= root < (size if algorithm.spec.rooted else 1):
        raise ValueError(f"root {root}: {algorithm.collective} on {size} ranks has no such root")
    total = algorithm.blocks(size)
    samples = sorted({*range(min(size, 2)), *np.linspace(0, size - 1, _SAMPLES).astype(int).tolist()})
    few = [algorithm.rounds_of(rank, size, root) for rank in samples]
    written = _Written(np.zeros(size, np.int64), np.full(size, total))  # before its first round a rank waits for all
    for steps in algorithm.rounds_of(np.arange(size), size, root):
        alike = [next(one) for one in few]
        if isinstance(steps, Series):
            written = yield from _of_series(steps, alike, total, written)
        else:
            found, written = _round(spread(steps, total, size), written)
            if found is not None:
                yield found, 1


@dataclass(frozen=True, eq=False)
class _Written:
    """For each rank the blocks, from ``low`` to ``high``, among which are all that its latest round has written."""

    low: np.ndarray
    high: np.ndarray


def _of_series(
    series: Series, few: list, total: int, written: _Written
) -> Generator[tuple[Messages, int], None, _Written]:
    """Rounds of a series: one with its number if all have the same messages, otherwise one by one."""
    numbers, size = series.numbers.tolist(), len(written.low)

    def made(index: int, before: _Written) -> tuple[Messages | None, _Written]:
        return _round(spread(series.steps(numbers[index]), total, size), before)

    if len(numbers) > 1 and all(_constant(one) for one in few):
        some = np.unique(np.linspace(0, len(numbers) - 1, _SAMPLES).astype(int)).tolist()
        first, *others = (made(i, made(i - 1, written)[1] if i else written) for i in some)
        if first[0] is not None and all(first[0].same(other[0]) for other in others):
            yield first[0], len(numbers)
            return others[-1][1]
    for i in range(len(numbers)):
        found, written = made(i, written)
        if found is not None:
            yield found, 1
    return written


def _constant(series: Series) -> bool:
    """Whether a rank's steps have the same peers and numbers of blocks in all rounds of the series."""
    fields = ((step.peer, step.nblocks, step.when) for step in series.steps(series.numbers))
    return all(np.ptp(np.asarray(field, np.int64)) == 0 for step in fields for field in step)


class _Round:
    """The steps of one round, as they are gathered."""

    def __init__(self, before: _Written):
        none, size = np.zeros(0, np.int64), len(before.low)
        self.before, self.size, self.count = before, size, 0
        self.sent, self.folds = [(none, none, none)], [none]
        self.reduced, self.ahead = np.zeros(size, np.int64), np.ones(size, bool)
        self.low, self.high = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)

    def add(self, step: Step) -> None:
        """Add a step of all ranks; TooMany if there are too many messages."""
        here = np.flatnonzero(step.when)
        first, count, peer = step.block[here], step.nblocks[here], step.peer[here]
        if step.kind is Kind.SEND:
            self.count += len(here)
            if self.count > MOST_MESSAGES:
                raise TooMany(f"one round has over {MOST_MESSAGES:,} messages, which do not fit in memory")
            self.sent.append((here, peer, count))
            apart = (first + count <= self.before.low[here]) | (first >= self.before.high[here])
            self.ahead[here] &= apart | (step.left[here] == INPUT)
            return
        self.low[here] = np.minimum(self.low[here], first)
        self.high[here] = np.maximum(self.high[here], first + count)
        if step.kind is Kind.RECV_REDUCE:
            self.folds.append(peer * self.size + here)
        elif step.kind is Kind.REDUCE:
            self.reduced[here] += count

    def messages(self) -> Messages | None:
        """The messages; None if there are neither messages nor reductions."""
        source, target, blocks = map(np.concatenate, zip(*self.sent, strict=True))
        if not len(source) and not self.reduced.any():
            return None
        folded = np.isin(source * self.size + target, np.concatenate(self.folds))
        return Messages(source, target, blocks, folded, self.ahead[source], self.reduced)

    def written(self, found: Messages | None) -> _Written:
        """What each rank's latest round has written: this one, or one before if the rank had no part in it."""
        part = self.reduced > 0
        if found is not None:
            part[found.source] = part[found.target] = True
        low, high = np.minimum(self.low, self.before.low), np.maximum(self.high, self.before.high)
        return _Written(np.where(part, self.low, low), np.where(part, self.high, high))


def _round(steps: Iterable[Step], before: _Written) -> tuple[Messages | None, _Written]:
    """The messages of one round, if there are any, and what the ranks have written after it."""
    made = _Round(before)
    for step in steps:
        made.add(step)
    found = made.messages()
    return found, made.written(found)
