"""Turns the rounds that algorithms write into records of one rank, or into steps of all ranks as arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .schedule import Ints, Round, Schedule, Series, Step
from .spec import ALL, SPECS
from .steps import STEP, VECTOR, Kind, from_input, without_vector

if TYPE_CHECKING:
    from .registry import ScheduleAlgorithm

__all__ = ["all_ranks", "assemble", "build", "expanded", "spread"]


def build(algorithm: ScheduleAlgorithm, rank: int, size: int, root: int = 0) -> Schedule:
    """The schedule of one rank; ValueError for a ``rank`` or ``root`` outside ``range(size)``."""
    for what, number in (("rank", rank), ("root", root)):
        if not 0 <= number < size:
            raise ValueError(f"{what} {number} is not in a communicator of size {size}")
    rounds = algorithm.rounds_of(rank, size, root)
    return assemble(algorithm.name, rank, size, algorithm.blocks(size), rounds, algorithm.collective, root)


def all_ranks(algorithm: ScheduleAlgorithm, size: int, root: int = 0) -> Iterator[Iterator[Step]]:
    """The rounds of all ranks, before :func:`assemble`: each field of a step is an array with one entry per rank.

    ``when`` is False for ranks without the step and for empty steps; ``nblocks`` is never ALL. A step is made when it
    is asked for: a round of a linear algorithm has as many steps as there are ranks.
    """
    total = algorithm.blocks(size)
    for steps in expanded(algorithm.rounds_of(np.arange(size), size, root)):
        yield spread(steps, total, size)


def spread(steps: Iterable[Step | Series], nblocks: int, size: int) -> Iterator[Step]:
    """The steps of one round of all ranks, one after the other: each field an array with one entry per rank.

    ``when`` is False for ranks without the step and for empty steps; ``nblocks`` is never ALL, for which the number of
    blocks of the vector stands.
    """
    for step in _flat(steps):
        count = np.where(np.asarray(step.nblocks) == ALL, nblocks, step.nblocks)
        fields = (step.peer, step.block, count, step.dst, step.left, step.right, step.src_block)
        full = [np.broadcast_to(field, size) for field in (*fields, step.when)]
        full[-1] = full[-1] & (count > 0)
        yield Step(step.kind, *full)


def expanded(rounds: Iterable[Round]) -> Iterator[Iterable[Step]]:
    """The rounds with every series replaced by its steps or rounds; a step is made when it is asked for."""
    for steps in rounds:
        if isinstance(steps, Series):
            yield from map(steps.steps, steps.numbers.tolist())
        else:
            yield _flat(steps)


def _flat(steps: Iterable[Step | Series]) -> Iterator[Step]:
    """The steps of one round with every series replaced by its steps."""
    many = (map(s.steps, s.numbers.tolist()) if isinstance(s, Series) else [[s]] for s in steps)
    return itertools.chain.from_iterable(itertools.chain.from_iterable(many))


def assemble(
    name: str,
    rank: int,
    size: int,
    nblocks: int,
    rounds: Iterable[Round],
    collective: str = "allreduce",
    root: int = 0,
) -> Schedule:
    """The schedule of one rank: masks applied, first reads taken from INPUT, results placed in the caller's memory.

    VECTOR in ``rounds`` holds all blocks. Where the caller's memory does not, a scratch vector replaces it.
    """
    spec = SPECS[collective]
    owned = spec.owned(rank, root)
    table = from_input(_table(rounds, nblocks), nblocks, spec.held(rank, root), owned)
    if owned != ALL:
        table = without_vector(table, owned)
    table.flags.writeable = False
    used = [int(table[name].max(initial=VECTOR)) for name in ("dst", "left", "right")]
    return Schedule(name, rank, size, nblocks, max(used) - VECTOR, table, collective, root)


def _table(rounds: Iterable[Round], nblocks: int) -> np.ndarray:
    """The steps that a rank takes part in, as records; round numbers skip the rounds in which it has no step."""
    parts, number = [np.zeros(0, STEP)], 0
    for steps in rounds:
        if isinstance(steps, Series):
            parts.append(_records(steps, number + np.arange(len(steps.numbers)), nblocks))
            number += len(steps.numbers)
        else:
            parts += _parts(steps, number, nblocks)
            number += 1
    table = np.concatenate(parts)
    wrong = (table["block"] < 0) | (table["nblocks"] < 0) | (table["block"] + table["nblocks"] > nblocks)
    for kind, block, count in table[["kind", "block", "nblocks"]][wrong].tolist()[:1]:
        blocks = f"blocks {block}..{block + count - 1}, but the vector has {nblocks} blocks"
        raise ValueError(f"{Kind(kind).name} of {blocks}")
    return table


def _parts(steps: Sequence[Step | Series], number: int, nblocks: int) -> Iterator[np.ndarray]:
    """The records of one round, in order: one array for the steps between two series, one for each series."""
    rows: list[tuple[int, ...]] = []
    for step in steps:
        if isinstance(step, Series):
            yield np.array(rows, STEP)
            yield _records(step, number, nblocks)
            rows = []
        elif step.when and step.nblocks != 0:
            rows.append(_row(step, number, nblocks))
    yield np.array(rows, STEP)


def _row(s: Step, number: int, nblocks: int) -> tuple[int, ...]:
    count = int(s.nblocks)
    return (
        int(s.kind), number, int(s.peer), int(s.block), nblocks if count == ALL else count, int(s.dst), int(s.left),
        int(s.right), int(s.src_block), 0,
    )  # fmt: skip


def _records(series: Series, number: Ints, nblocks: int) -> np.ndarray:
    """The records of a series, from one call of its function; ``number`` is its round, or one round per number."""
    if not len(series.numbers):
        return np.zeros(0, STEP)
    steps = series.steps(series.numbers)
    made = np.zeros((len(series.numbers), len(steps)), STEP)
    taken = np.empty(made.shape, bool)
    for i, step in enumerate(steps):
        for name in _FIELDS:
            made[name][:, i] = getattr(step, name)
        made["round"][:, i] = number
        taken[:, i] = step.when
    made["nblocks"][made["nblocks"] == ALL] = nblocks
    return made[taken & (made["nblocks"] != 0)]


_FIELDS = ("kind", "peer", "block", "nblocks", "dst", "left", "right", "src_block")
