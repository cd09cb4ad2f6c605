"""The symbolic machine of :mod:`collectives.verify`: schedules of all ranks, matched, run, and evaluated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from .folds import FoldError, Folds
from .schedule import RECEIVED, SCRATCH, VECTOR, Kind, Schedule

__all__ = ["Case", "MessageId", "Place", "Step", "VerificationError", "decode", "evaluate", "match", "run"]


class VerificationError(ValueError):
    """A schedule breaks a promise; the message names algorithm, p, rank, round and block."""


class Step(NamedTuple):
    """One record of :data:`~collectives.schedule.STEP`, as Python ints."""

    kind: int
    round: int
    peer: int
    block: int
    nblocks: int
    dst: int
    left: int
    right: int
    src_block: int
    reserved: int

    @property
    def blocks(self) -> str:
        """The step's blocks in words."""
        last = self.block + self.nblocks - 1
        return f"block {self.block}" if last == self.block else f"blocks {self.block}..{last}"

    def __str__(self) -> str:
        return f"{Kind(self.kind).name} of {self.blocks}"


class Round(NamedTuple):
    """Messages in the order posted; local steps in the order performed, where RECV_REDUCE stands for its reduction."""

    messages: list[Step]
    local: list[Step]


Place = tuple[int, int]  # a rank and one of its rounds
MessageId = tuple[int, int, int]  # a place and the index of a message there


@dataclass
class Case:
    """All schedules of one algorithm and p, and what has been found out about them."""

    schedules: Sequence[Schedule]
    rounds: list[list[Round]] = field(default_factory=list)
    sender: dict[MessageId, MessageId] = field(default_factory=dict)  # receive -> its send
    partners: dict[Place, list[Place]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """p."""
        return len(self.schedules)

    @property
    def nblocks(self) -> int:
        """Blocks of the vector."""
        return self.schedules[0].nblocks

    def fail(self, rank: int, number: int | None, block: int | None, what: str) -> NoReturn:
        """Raise for a place; ``number`` is the round."""
        at = f"rank {rank}"
        at += "" if number is None else f", round {number}"
        at += "" if block is None else f", block {block}"
        name = self.schedules[0].name if self.schedules else "no schedule"
        raise VerificationError(f"{name}, p = {self.size}: {at}: {what}")

    def messages(self) -> Iterator[tuple[MessageId, Step]]:
        """All messages, in the order in which each rank posts them."""
        for rank, rounds in enumerate(self.rounds):
            for number, steps in enumerate(rounds):
                for index, step in enumerate(steps.messages):
                    yield (rank, number, index), step


def decode(case: Case) -> None:
    """Ranks, blocks and round numbers fit each other; fills ``case.rounds``."""
    if not case.schedules:
        raise VerificationError("no schedule, p = 0: there is nothing to verify")
    for rank, schedule in enumerate(case.schedules):
        if (schedule.rank, schedule.size, schedule.nblocks) != (rank, case.size, case.nblocks):
            found = f"rank {schedule.rank} of {schedule.size} with {schedule.nblocks} blocks"
            case.fail(rank, None, None, f"its schedule is that of {found}; rank 0 has {case.nblocks} blocks")
        rounds: list[Round] = []
        for record in schedule.steps.tolist():
            step = Step(*record)
            if step.round not in (len(rounds) - 1, len(rounds)) or step.round < 0:
                case.fail(rank, step.round, None, f"follows round {len(rounds) - 1}; rounds must count up from 0")
            if step.round == len(rounds):
                rounds.append(Round([], []))
            if step.kind <= Kind.RECV_REDUCE:
                rounds[-1].messages.append(step)
            if step.kind >= Kind.RECV_REDUCE:
                rounds[-1].local.append(step)
        case.rounds.append(rounds)


def match(case: Case) -> None:
    """Pair the n-th send with the n-th receive of each channel; they must name the same blocks."""
    channels: dict[tuple[int, int], tuple[list[MessageId], list[MessageId]]] = defaultdict(lambda: ([], []))
    for message, step in case.messages():
        if step.kind == Kind.SEND:
            channels[message[0], step.peer][0].append(message)
        else:
            channels[step.peer, message[0]][1].append(message)
    partners: dict[Place, set[Place]] = defaultdict(set)
    for (source, target), (sends, receives) in channels.items():
        for sent, received in zip(sends, receives, strict=False):
            a, b = _step(case, sent), _step(case, received)
            if (a.block, a.nblocks) != (b.block, b.nblocks):
                what = f"{a} meets {b} on rank {target}, round {received[1]}"
                case.fail(source, sent[1], a.block, what)
            case.sender[received] = sent
            partners[sent[:2]].add(received[:2])
            partners[received[:2]].add(sent[:2])
        for rank, number, index in sends[len(receives) :]:
            step = _step(case, (rank, number, index))
            case.fail(rank, number, step.block, f"{step} to rank {target}, which does not receive it")
        for rank, number, index in receives[len(sends) :]:
            step = _step(case, (rank, number, index))
            case.fail(rank, number, step.block, f"{step} from rank {source}, which does not send it")
    case.partners = {place: sorted(others) for place, others in partners.items()}


def _step(case: Case, message: MessageId) -> Step:
    rank, number, index = message
    return case.rounds[rank][number].messages[index]


def run(case: Case, segments: int, in_flight: int) -> list[Place]:
    """Run ``segments`` segments with ``in_flight`` cursors, without data; the places in an order of completion.

    A round is posted when the rank's previous one is complete, and complete when it and all the rounds that its
    messages come from or go to are posted. Raises for a deadlock.
    """
    posted: set[tuple[int, int, int]] = set()
    missing: dict[tuple[int, int, int], int] = {}
    order: list[Place] = []
    # A segment's rounds follow the rounds of the one that used its cursor before.
    begin = [(segment, rank, 0) for segment in range(in_flight) for rank in range(case.size)]
    todo = begin[::-1]
    while todo:
        segment, rank, number = todo.pop()
        if number == len(case.rounds[rank]):
            if segment + in_flight < segments:
                todo.append((segment + in_flight, rank, 0))
            continue
        here = segment, rank, number
        posted.add(here)
        waits = 0
        for partner in case.partners.get((rank, number), ()):
            there = segment, *partner
            if there not in posted:
                waits += 1
            elif there in missing:
                missing[there] -= 1
                if not missing[there]:
                    del missing[there]
                    order.append(partner)
                    todo.append((segment, partner[0], partner[1] + 1))
        if waits:
            missing[here] = waits
        else:
            order.append((rank, number))
            todo.append((segment, rank, number + 1))
    if missing:
        _deadlock(case, missing, posted)
    return order


def _deadlock(case: Case, missing: dict[tuple[int, int, int], int], posted: set[tuple[int, int, int]]) -> None:
    """Name the ranks that wait for each other."""
    stuck = {(segment, rank): number for segment, rank, number in missing}
    segment, first = min(stuck)
    rank, chain, seen = first, [], set()
    while rank not in seen:
        seen.add(rank)
        number = stuck[segment, rank]
        peer, later = next(p for p in case.partners[rank, number] if (segment, *p) not in posted)
        chain.append(f"rank {rank} in round {number} waits for rank {peer} to begin round {later}")
        rank = peer
    case.fail(first, stuck[segment, first], None, "deadlock without buffering: " + ", ".join(chain))


Vectors = list[list[int | None]]  # of one rank: for each buffer, for each block, a fold or nothing


def evaluate(case: Case, order: list[Place], folds: Folds, in_place: bool) -> list[list[int | None]]:
    """What VECTOR holds at the end on each rank: a fold for each block, None where nothing was written."""
    memory: list[Vectors] = []
    for rank, schedule in enumerate(case.schedules):
        own: list[int | None] = [folds.leaf(rank, block) for block in range(case.nblocks)]
        empty: Vectors = [[None] * case.nblocks for _ in range(1 + schedule.scratch)]
        memory.append([own, own, *empty[1:]] if in_place else [own, *empty])
    on_the_way: dict[MessageId, list[int]] = {}

    def post(rank: int, number: int) -> None:
        if number < len(case.rounds[rank]):
            for index, step in enumerate(case.rounds[rank][number].messages):
                if step.kind == Kind.SEND:
                    on_the_way[rank, number, index] = _read(case, memory[rank], rank, step, step.left)

    for rank in range(case.size):
        post(rank, 0)
    for rank, number in order:
        messages, local = case.rounds[rank][number]
        staged = []
        for index, step in enumerate(messages):
            if step.kind != Kind.SEND:
                arrived = on_the_way.pop(case.sender[rank, number, index])
                if step.kind == Kind.RECV:
                    _write(memory[rank], step, arrived)
                else:
                    staged.append(arrived)
        arrivals = iter(staged)
        for step in local:
            _perform(case, memory[rank], folds, rank, step, next(arrivals) if step.kind == Kind.RECV_REDUCE else [])
        post(rank, number + 1)
    return [vectors[VECTOR] for vectors in memory]


def _perform(case: Case, vectors: Vectors, folds: Folds, rank: int, step: Step, arrived: list[int]) -> None:
    """A reduction or copy; operands RECEIVED are what arrived."""
    left = arrived if step.left == RECEIVED else _read(case, vectors, rank, step, step.left)
    if step.kind == Kind.COPY:
        _write(vectors, step, left)
        return
    right = arrived if step.right == RECEIVED else _read(case, vectors, rank, step, step.right)
    result = []
    for a, b in zip(left, right, strict=True):
        try:
            result.append(folds.join(a, b, (rank, step.round)))
        except FoldError as error:
            case.fail(rank, step.round, step.block + len(result), f"{step} {error}")
    _write(vectors, step, result)


def _read(case: Case, vectors: Vectors, rank: int, step: Step, buffer: int) -> list[int]:
    found = vectors[buffer][step.block : step.block + step.nblocks]
    if None in found:
        name = "VECTOR" if buffer == VECTOR else f"SCRATCH + {buffer - SCRATCH}"
        case.fail(rank, step.round, step.block + found.index(None), f"{step} reads {name}, which nothing has written")
    return found  # type: ignore[return-value]  # no None in it


def _write(vectors: Vectors, step: Step, values: list[int]) -> None:
    vectors[step.dst][step.block : step.block + step.nblocks] = values
