"""The messages of a schedule, round by round, as arrays over all ranks.

Rounds that are written as a series and have the same messages, such as those of a ring, are given once, with their
number: a ring of 100,000 ranks has 200,000 of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..schedules.build import spread
from ..schedules.registry import ScheduleAlgorithm
from ..schedules.schedule import Kind, Series, Step

__all__ = ["Messages", "rounds"]

_SAMPLES = 16  # rounds of a series, and ranks, that are compared before its rounds count as equal


@dataclass(frozen=True, eq=False)
class Messages:
    """One round: messages from ``source`` to ``target`` of ``blocks`` blocks, in the order in which ranks send them.

    ``folds``: whether the target folds what arrives from the source. ``reduced``: blocks that each rank folds besides.
    """

    source: np.ndarray
    target: np.ndarray
    blocks: np.ndarray
    folds: np.ndarray
    reduced: np.ndarray

    def same(self, other: Messages | None) -> bool:
        """Whether the other round has the same messages."""
        if other is None:
            return False
        names = ("source", "target", "blocks", "folds", "reduced")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)


def rounds(algorithm: ScheduleAlgorithm, size: int, root: int = 0) -> Iterator[tuple[Messages, int]]:
    """The rounds of all ranks in turn, each with the number of times that it is repeated; empty rounds are left out."""
    total = algorithm.blocks(size)
    samples = sorted({*range(min(size, 2)), *np.linspace(0, size - 1, _SAMPLES).astype(int).tolist()})
    few = [algorithm.rounds_of(rank, size, root) for rank in samples]
    for steps in algorithm.rounds_of(np.arange(size), size, root):
        alike = [next(one) for one in few]
        if isinstance(steps, Series):
            yield from _of_series(steps, alike, total, size)
        else:
            found = _messages(spread(steps, total, size), size)
            if found is not None:
                yield found, 1


def _of_series(series: Series, few: list, total: int, size: int) -> Iterator[tuple[Messages, int]]:
    """Rounds of a series: one with its number if all have the same messages, otherwise one by one."""
    numbers = series.numbers
    if len(numbers) > 1 and all(_constant(one) for one in few):
        some = numbers[np.unique(np.linspace(0, len(numbers) - 1, _SAMPLES).astype(int))]
        first, *others = (_messages(spread(series.steps(i), total, size), size) for i in some.tolist())
        if first is not None and all(map(first.same, others)):
            yield first, len(numbers)
            return
    for i in numbers.tolist():
        found = _messages(spread(series.steps(i), total, size), size)
        if found is not None:
            yield found, 1


def _constant(series: Series) -> bool:
    """Whether a rank's steps have the same peers and numbers of blocks in all rounds of the series."""
    fields = ((step.peer, step.nblocks, step.when) for step in series.steps(series.numbers))
    return all(np.ptp(np.asarray(field, np.int64)) == 0 for step in fields for field in step)


def _messages(steps: list[Step], size: int) -> Messages | None:
    """The messages of one round; None if it has neither messages nor reductions."""
    none = np.zeros(0, np.int64)
    sent, folds, reduced = [(none, none, none)], [none], np.zeros(size, np.int64)
    for step in steps:
        here = np.flatnonzero(step.when)
        if step.kind is Kind.SEND:
            sent.append((here, step.peer[here], step.nblocks[here]))
        elif step.kind is Kind.RECV_REDUCE:
            folds.append(step.peer[here] * size + here)
        elif step.kind is Kind.REDUCE:
            reduced[here] += step.nblocks[here]
    source, target, blocks = map(np.concatenate, zip(*sent, strict=True))
    if not len(source) and not reduced.any():
        return None
    folded = np.isin(source * size + target, np.concatenate(folds))
    return Messages(source, target, blocks, folded, reduced)
