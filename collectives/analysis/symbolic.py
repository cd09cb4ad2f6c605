"""The symbolic machine of :mod:`collectives.analysis.verify`: it matches, runs and evaluates all ranks' schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from ..schedules.schedule import INPUT, RECEIVED, SCRATCH, VECTOR, Kind, Schedule
from ..schedules.spec import ALL, NONE, SPECS, Spec
from .folds import FoldError, Folds

__all__ = ["Case", "MessageId", "Place", "Step", "VerificationError", "decode", "evaluate", "match", "run"]


class VerificationError(ValueError):
    """A schedule breaks a promise; the message names algorithm, p, rank, round and block."""


class Step(NamedTuple):
    """One record of :data:`~collectives.schedules.schedule.STEP`, as Python ints."""

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
        """The blocks of the step as text."""
        last = self.block + self.nblocks - 1
        return f"block {self.block}" if last == self.block else f"blocks {self.block}..{last}"

    def __str__(self) -> str:
        return f"{Kind(self.kind).name} of {self.blocks}"


class Round(NamedTuple):
    """Messages in the order posted; local steps in the order performed, among them the reduction of a RECV_REDUCE."""

    messages: list[Step]
    local: list[Step]


Place = tuple[int, int]  # a rank and one of its rounds
MessageId = tuple[int, int, int]  # a rank, one of its rounds, and the index of a message in the round


@dataclass
class Case:
    """All schedules of one algorithm and p, and what the checks have found out about them."""

    schedules: Sequence[Schedule]
    uneven: bool = True  # blocks may differ in length
    rounds: list[list[Round]] = field(default_factory=list)
    buffers: list[dict[int, int]] = field(default_factory=list)  # of each rank: what each buffer holds
    sender: dict[MessageId, MessageId] = field(default_factory=dict)  # from a receive to its send
    partners: dict[Place, list[Place]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of ranks, p."""
        return len(self.schedules)

    @property
    def nblocks(self) -> int:
        """The number of blocks of the vector."""
        return self.schedules[0].nblocks

    @property
    def root(self) -> int:
        """The root, 0 if the collective has none."""
        return self.schedules[0].root

    @property
    def spec(self) -> Spec:
        """What ranks hold before the collective and must hold at its end."""
        return SPECS[self.schedules[0].collective]

    def owned(self, rank: int) -> range:
        """The blocks that the VECTOR of ``rank`` must hold at the end."""
        return _blocks(self.spec.owned(rank, self.root), self.nblocks)

    def results(self) -> Iterator[tuple[int, int]]:
        """Pairs (rank, block) of all blocks that must be held at the end."""
        return ((rank, block) for rank in range(self.size) for block in self.owned(rank))

    def held(self, rank: int) -> range:
        """The blocks that the INPUT of ``rank`` holds."""
        return _blocks(self.spec.held(rank, self.root), self.nblocks)

    def fail(self, rank: int, number: int | None, block: int | None, what: str) -> NoReturn:
        """Raise VerificationError, with rank, round ``number`` and block in the message where they are not None."""
        at = f"rank {rank}"
        at += "" if number is None else f", round {number}"
        at += "" if block is None else f", block {block}"
        to = f", root = {self.root}" if self.spec.rooted else ""
        raise VerificationError(f"{self.schedules[0].name}, p = {self.size}{to}: {at}: {what}")

    def messages(self) -> Iterator[tuple[MessageId, Step]]:
        """All messages, in the order in which each rank posts them."""
        for rank, rounds in enumerate(self.rounds):
            for number, steps in enumerate(rounds):
                for index, step in enumerate(steps.messages):
                    yield (rank, number, index), step


def _blocks(part: int, nblocks: int) -> range:
    return range(nblocks) if part == ALL else range(0) if part == NONE else range(part, part + 1)


def decode(case: Case) -> None:
    """Fill ``case.rounds``; fails if the schedules differ in size, or if round numbers do not count up from 0."""
    for rank, schedule in enumerate(case.schedules):
        what = f"{schedule.collective} of {schedule.nblocks} blocks with root {schedule.root}"
        first = f"{case.schedules[0].collective} of {case.nblocks} blocks with root {case.root}"
        if (schedule.rank, schedule.size, what) != (rank, case.size, first):
            found = f"rank {schedule.rank} of {schedule.size}, {what}"
            case.fail(rank, None, None, f"its schedule is that of {found}; rank 0 has {first}")
        case.buffers.append({INPUT: schedule.input_block, VECTOR: schedule.vector_block})
        case.buffers[rank].update({SCRATCH + i: ALL for i in range(schedule.scratch)})
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
    """Pair the n-th send with the n-th receive of each channel.

    Both must name the same number of blocks, and the same blocks where blocks may differ in length. In an exchange,
    either side names a block by the number of the other rank, so that only the number of blocks must be equal.
    """
    named = case.uneven and not case.spec.exchanges
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
            if a.nblocks != b.nblocks or (named and a.block != b.block):
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
    """Run ``segments`` segments with ``in_flight`` cursors, without data; returns the places in order of completion.

    A round is posted when the rank's previous round is complete. It is complete when it and all the rounds that its
    messages come from or go to are posted. Fails on a deadlock.
    """
    posted: set[tuple[int, int, int]] = set()
    missing: dict[tuple[int, int, int], int] = {}
    order: list[Place] = []
    # The first round of a segment follows the last round of the segment that used the cursor before.
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
    """Fail with a message that names the ranks that wait for each other."""
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


Vectors = list[list[int | None]]  # of one rank: for each buffer and each block, a fold, or None if nothing is there


def _initial(case: Case, folds: Folds, rank: int, in_place: bool) -> Vectors:
    """A rank's INPUT, VECTOR and scratch vectors before the first round."""
    own: list[int | None] = [None] * case.nblocks
    for block in case.held(rank):
        own[block] = folds.leaf(rank, block)
    vector: list[int | None] = own if in_place else [None] * case.nblocks
    if not case.held(rank) and case.spec.owned(case.root, case.root) == ALL and rank == case.root:
        vector = [folds.leaf(rank, block) for block in range(case.nblocks)]  # the data of a broadcast
    empty: Vectors = [[None] * case.nblocks for _ in range(case.schedules[rank].scratch)]
    return [own, vector, *empty]


def evaluate(case: Case, order: list[Place], folds: Folds, in_place: bool) -> list[list[int | None]]:
    """The contents of VECTOR at the end: for each rank and block a fold, or None if nothing was written."""
    memory = [_initial(case, folds, rank, in_place) for rank in range(case.size)]
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
                    _write(case, memory[rank], folds, rank, step, arrived)
                else:
                    staged.append(arrived)
        arrivals = iter(staged)
        for step in local:
            _perform(case, memory[rank], folds, rank, step, next(arrivals) if step.kind == Kind.RECV_REDUCE else [])
        post(rank, number + 1)
    return [vectors[VECTOR] for vectors in memory]


def _perform(case: Case, vectors: Vectors, folds: Folds, rank: int, step: Step, arrived: list[int]) -> None:
    """Perform a reduction or a copy; ``arrived`` replaces operands that are RECEIVED."""
    left = arrived if step.left == RECEIVED else _read(case, vectors, rank, step, step.left)
    if step.kind == Kind.COPY:
        _write(case, vectors, folds, rank, step, left)
        return
    right = arrived if step.right == RECEIVED else _read(case, vectors, rank, step, step.right)
    result = []
    for a, b in zip(left, right, strict=True):
        try:
            result.append(folds.join(a, b, (rank, step.round)))
        except FoldError as error:
            case.fail(rank, step.round, step.block + len(result), f"{step} {error}")
    _write(case, vectors, folds, rank, step, result)


def _read(case: Case, vectors: Vectors, rank: int, step: Step, buffer: int) -> list[int]:
    first = step.src_block if step.kind == Kind.COPY else step.block
    found = vectors[buffer][first : first + step.nblocks]
    if None in found:
        name = {INPUT: "INPUT", VECTOR: "VECTOR"}.get(buffer, f"SCRATCH + {buffer - SCRATCH}")
        case.fail(rank, step.round, first + found.index(None), f"{step} reads {name}, which nothing has written")
    return found  # type: ignore[return-value]  # no None in it


def _write(case: Case, vectors: Vectors, folds: Folds, rank: int, step: Step, values: list[int]) -> None:
    if case.uneven and case.spec.exchanges:
        for block, value in enumerate(values, step.block):
            wanted, index = case.spec.wanted(rank, block, case.size, case.root)
            if step.dst != VECTOR or folds.ranks[value] != wanted or folds.block[value] != index:
                what = f"{step} puts a block where one of another length belongs"
                case.fail(rank, step.round, block, what)
    vectors[step.dst][step.block : step.block + step.nblocks] = values
