"""The rounds of a schedule on all ranks, as they are drawn: the steps, and what every block holds after each round.

The rounds are those that the algorithm writes. Steps that are added for execution (copies, and first reads redirected
to the send buffer) are left out.
"""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..schedules.build import all_ranks, expanded, spread
from ..schedules.registry import ScheduleAlgorithm
from ..schedules.schedule import INPUT, RECEIVED, VECTOR, Kind, Step
from ..schedules.spec import ALL

__all__ = ["Frame", "complete", "frames", "frames_without_values", "initial", "receives"]

Contents = list[list[int]]  # for each rank and each block of VECTOR: its contributions, as a bit mask of ranks


@dataclass(frozen=True, slots=True)
class Frame:
    """One round: the steps of each rank shown, and the contents of all blocks after the round, if they are shown."""

    steps: Mapping[int, list[Step]]
    values: Contents


def initial(algorithm: ScheduleAlgorithm, size: int, root: int = 0) -> Contents:
    """The contents of each rank's vector before the first round."""
    spec, nblocks = algorithm.spec, algorithm.blocks(size)
    found = [[0] * nblocks for _ in range(size)]
    for rank, vector in enumerate(found):
        part = ALL if algorithm.collective == "bcast" and rank == root else spec.held(rank, root)
        if spec.exchanges:
            continue
        for block in range(nblocks):
            vector[block] = (1 << rank) * (part in (ALL, block))
    return found


def complete(algorithm: ScheduleAlgorithm, rank: int, size: int, root: int = 0) -> list[int | None]:
    """The contributions that each block of ``rank`` must hold at the end; None if nothing is required of a block."""
    spec = algorithm.spec
    part = spec.owned(rank, root)
    return [
        spec.wanted(rank, block, size, root)[0] if part in (ALL, block) else None
        for block in range(algorithm.blocks(size))
    ]


def frames(algorithm: ScheduleAlgorithm, size: int, root: int = 0) -> Iterator[Frame]:
    """The rounds of an algorithm on ``size`` ranks, run on sets of contributions; empty rounds are left out."""
    nblocks = algorithm.blocks(size)
    memory: list[defaultdict[int, list[int]]] = []
    for rank, before in enumerate(initial(algorithm, size, root)):
        own = {VECTOR: before, INPUT: list(before)}
        if algorithm.spec.exchanges:  # sends from one vector and receives into another
            own = {VECTOR: [0] * nblocks, INPUT: [1 << rank] * nblocks}
        memory.append(defaultdict(lambda: [0] * nblocks, own))
    channels: defaultdict[tuple[int, int], deque[list[int]]] = defaultdict(deque)
    for together in map(list, all_ranks(algorithm, size, root)):
        steps = {rank: _steps_of(together, rank) for rank in range(size)}
        for rank in range(size):
            for step in steps[rank]:
                if step.kind is Kind.SEND:
                    channels[rank, step.peer].append(_get(memory[rank], step.left, step))
        for rank in range(size):
            _play(memory[rank], steps[rank], functools.partial(_arrival, channels, rank))
        if any(steps.values()):
            yield Frame(steps, [list(vectors[VECTOR]) for vectors in memory])


def frames_without_values(
    algorithm: ScheduleAlgorithm, size: int, root: int, ranks: Sequence[int]
) -> Iterator[Frame]:  # fmt: skip
    """As :func:`frames`, for the steps of some ranks only: needs little memory, however many ranks there are.

    Of all ranks no more steps are made than tell whether a round is empty.
    """
    nblocks = algorithm.blocks(size)
    alone = [expanded(algorithm.rounds_of(rank, size, root)) for rank in ranks]
    for together in all_ranks(algorithm, size, root):
        own = {rank: next(rounds, ()) for rank, rounds in zip(ranks, alone, strict=True)}
        if any(step.when.any() for step in together):
            yield Frame({rank: _steps_of(spread(steps, nblocks, 1), 0) for rank, steps in own.items()}, [])


def _arrival(channels: defaultdict[tuple[int, int], deque[list[int]]], rank: int, source: int) -> list[int]:
    return channels[source, rank].popleft()


def receives(step: Step) -> bool:
    """Whether a step takes a message."""
    return step.kind in (Kind.RECV, Kind.RECV_REDUCE)


def _steps_of(together: Iterable[Step], at: int) -> list[Step]:
    """The steps of the rank at one place of the arrays, with ints as fields, sends and receives first."""
    own = [
        Step(s.kind, *(int(f[at]) for f in (s.peer, s.block, s.nblocks, s.dst, s.left, s.right, s.src_block)))
        for s in together
        if s.when[at]
    ]
    return sorted(own, key=lambda step: step.kind >= Kind.RECV_REDUCE)


def _get(vectors: defaultdict[int, list[int]], buffer: int, step: Step) -> list[int]:
    first = step.src_block if step.kind is Kind.COPY else step.block
    return vectors[buffer][first : first + step.nblocks]


def _play(vectors: defaultdict[int, list[int]], steps: list[Step], arrival: Callable[[int], list[int]]) -> None:
    """Perform the receives and the local steps of one rank."""
    for step in steps:
        if step.kind is Kind.SEND:
            continue
        arrived = arrival(step.peer) if receives(step) else []
        if step.kind is Kind.RECV:
            result = arrived
        elif step.kind is Kind.COPY:
            result = _get(vectors, step.left, step)
        else:
            left, right = (arrived if b == RECEIVED else _get(vectors, b, step) for b in (step.left, step.right))
            result = [a | b for a, b in zip(left, right, strict=True)]
        vectors[step.dst][step.block : step.block + step.nblocks] = result
