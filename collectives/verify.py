"""Proofs about schedules, for a given number of ranks: every promise of an algorithm, checked symbolically.

The model. Each rank goes through its rounds strictly: all messages of a round are posted together, in the order
written; when all are complete, its local steps follow in the order written (a receive-and-reduce stands
for its reduction), and then the next round begins. Sends are synchronous: none completes before its receive is posted.
Matching is in order per (source, destination, tag). What is proved of this model holds for the executors:

* They may look ahead and post messages before their round begins, but keep the order per channel and the dependencies
  between blocks. Take all actions in an order in which the model completes them: in an executor, each waits only for
  ones that come before it there, so by induction all complete, with the same data. Looking ahead removes waits and
  adds none; so does an executor or MPI that buffers sends.
* A rank's next action never depends on which message came first, so all interleavings reach the same final
  state (a Kahn network), and running one of them to the end proves that none deadlocks.
* Segments in flight are cursors over the same schedule, each with a tag and a slice of the vectors of its own; a cursor
  that has finished a segment begins the next with the same tag, whether or not its peers have. As every channel has
  as many sends as receives in one segment, the n-th send of a later segment still meets its n-th receive.
* Blocks can be of unequal length (and empty: executors leave empty messages out on both sides, which only removes
  waits). So the two sides of a message must name the same blocks, and a copy may not move a block.

Values are fold trees over the contributions (:mod:`collectives.folds`). Everything is proved out of place and in
place (INPUT and VECTOR the same memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .folds import Folds, rank_set
from .registry import ScheduleAlgorithm
from .schedule import INPUT, NONE, RECEIVED, SCRATCH, VECTOR, Kind, Schedule, build
from .symbolic import Case, Place, Step, VerificationError, decode, evaluate, match, run

__all__ = ["Proof", "VerificationError", "verify", "verify_schedules"]

SEGMENTS_IN_FLIGHT = (1, 2, 3)
IDEMPOTENT = frozenset({"barrier"})  # collectives whose op may meet a contribution twice


@dataclass(frozen=True, slots=True)
class Proof:
    """What was shown of an algorithm on ``size`` ranks, and counted on the way.

    ``rounds``: length of the longest chain of rounds with messages that must follow each other; ``sent``: blocks
    sent by the busiest rank; ``messages``: of all ranks. ``ordered`` and ``linear`` say what the folds are, promised
    or not.
    """

    name: str
    size: int
    rounds: int
    sent: int
    messages: int
    ordered: bool
    linear: bool


def verify(algorithm: ScheduleAlgorithm, size: int) -> Proof:
    """Prove every promise of an algorithm on ``size`` ranks; raises :class:`VerificationError` if one is broken."""
    return verify_schedules([build(algorithm, rank, size) for rank in range(size)], algorithm)


def verify_schedules(
    schedules: Sequence[Schedule], algorithm: ScheduleAlgorithm | None = None, *, collective: str = "allreduce"
) -> Proof:
    """Prove that the schedules of all ranks, in rank order, work together.

    Without an ``algorithm``, ``collective`` says what they must achieve, and nothing is promised beyond that.
    """
    collective = algorithm.collective if algorithm else collective
    case = Case(schedules)
    decode(case)
    for rank in range(case.size):
        for number in range(len(case.rounds[rank])):
            _check_round(case, rank, number)
    match(case)
    order = run(case, segments=1, in_flight=1)
    for in_flight in SEGMENTS_IN_FLIGHT:
        run(case, segments=2 * in_flight, in_flight=in_flight)
    folds = Folds(idempotent=collective in IDEMPOTENT)
    results = [evaluate(case, order, folds, in_place) for in_place in (False, True)]
    for result in results:
        _check_result(case, folds, result)
    for rank, block in ((r, b) for r in range(case.size) for b in range(case.nblocks)):
        if results[0][rank][block] != results[1][rank][block]:
            case.fail(rank, _last_write(case, rank, block), block, "in place, the fold is not that of out of place")
    proof = _proof(case, order, folds, results[0])
    if algorithm:
        _check_promises(case, proof, algorithm, folds, results[0])
    return proof


def _check_round(case: Case, rank: int, number: int) -> None:
    """Every step is well formed, and no message reads or writes what a receive of the round writes."""
    messages, local = case.rounds[rank][number]
    for step in messages + local:
        wrong = _malformed(step, case.size, case.nblocks, case.schedules[rank].scratch, rank)
        if wrong:
            case.fail(rank, number, step.block, f"malformed step: {wrong}")
    for a in messages:
        if a.kind != Kind.RECV:
            continue
        for b in messages:
            touched = {b.left, b.right, b.dst} - {NONE, RECEIVED}
            meet = a.block < b.block + b.nblocks and b.block < a.block + a.nblocks
            clash = a.dst in touched or (a.dst == VECTOR and INPUT in touched)  # in place, INPUT is VECTOR
            if a is not b and meet and clash:
                what = f"{a} from rank {a.peer} may write while {b} of the same round reads or writes there"
                case.fail(rank, number, max(a.block, b.block), what)


def _malformed(step: Step, size: int, nblocks: int, scratch: int, rank: int) -> str:
    """What is wrong with one step, or an empty string."""
    buffers = range(INPUT, SCRATCH + scratch)
    if step.kind not in list(Kind):
        return f"unknown kind {step.kind}"
    if step.block < 0 or step.nblocks < 1 or step.block + step.nblocks > nblocks:
        return f"{step} in a vector of {nblocks} blocks"
    if step.kind <= Kind.RECV_REDUCE and (not 0 <= step.peer < size or step.peer == rank):
        return f"{step} has peer {step.peer}"
    if step.kind != Kind.SEND and (step.dst not in buffers or step.dst == INPUT):
        return f"{step} writes to buffer {step.dst}"
    operands = {Kind.SEND: (step.left,), Kind.COPY: (step.left,), Kind.RECV: ()}.get(
        Kind(step.kind), (step.left, step.right)
    )
    own = [operand for operand in operands if operand != RECEIVED]
    if any(operand not in buffers for operand in own) or len(operands) - len(own) != (step.kind == Kind.RECV_REDUCE):
        return f"{step} has operands {operands}"
    if step.kind == Kind.COPY and step.src_block != step.block:
        return f"{step} comes from block {step.src_block}, which may have another length"
    return ""


def _check_result(case: Case, folds: Folds, result: list[list[int | None]]) -> None:
    """Every block, on every rank, has all contributions, and the same fold of them as on rank 0 (barrier: any fold)."""
    everybody = (1 << case.size) - 1
    for rank, vector in enumerate(result):
        for block, fold in enumerate(vector):
            if fold is None:
                what = "nothing is ever written to it"
            elif folds.block[fold] != block:
                what = f"ends with the contents of block {folds.block[fold]}"
            elif folds.ranks[fold] != everybody:
                what = f"ends without the contribution of rank {rank_set(everybody & ~folds.ranks[fold])}"
            elif fold != result[0][block] and not folds.idempotent:
                what = f"ends with the fold {folds.text(fold)}, rank 0 with {folds.text(result[0][block] or 0)}"
            else:
                continue
            case.fail(rank, _last_write(case, rank, block), block, what)


def _last_write(case: Case, rank: int, block: int) -> int:
    """The last round in which a rank writes a block of its result, or its last round."""
    for number in range(len(case.rounds[rank]) - 1, -1, -1):
        messages, local = case.rounds[rank][number]
        if any(s.dst == VECTOR and s.block <= block < s.block + s.nblocks for s in messages + local):
            return number
    return len(case.rounds[rank]) - 1


def _proof(case: Case, order: list[Place], folds: Folds, result: list[list[int | None]]) -> Proof:
    """Count rounds, blocks and messages, and look at the folds."""
    level: dict[Place, int] = {}
    for rank, number in order:
        posted = [(rank, number), *case.partners.get((rank, number), ())]
        before = max(level.get((r, n - 1), 0) for r, n in posted)
        level[rank, number] = before + bool(case.rounds[rank][number].messages)
    final = {fold for vector in result for fold in vector if fold is not None}
    return Proof(
        name=case.schedules[0].name,
        size=case.size,
        rounds=max(level.values(), default=0),
        sent=max(_blocks_sent(case)),
        messages=len(case.sender),
        ordered=all(folds.ordered[fold] for fold in final),
        linear=all(folds.linear[fold] for fold in final),
    )


def _blocks_sent(case: Case) -> list[int]:
    sent = [0] * case.size
    for (rank, _, _), step in case.messages():
        sent[rank] += step.nblocks * (step.kind == Kind.SEND)
    return sent


def _check_promises(
    case: Case, proof: Proof, algorithm: ScheduleAlgorithm, folds: Folds, result: list[list[int | None]]
) -> None:
    """What the algorithm says of itself is what was counted."""
    final = [fold for fold in result[0] if fold is not None]
    for block, fold in enumerate(final):
        if algorithm.ordered and not folds.ordered[fold]:
            rank, number = folds.culprit(fold)
            case.fail(rank, number, block, f"breaks the rank order that is promised: {folds.text(fold)}")
        if algorithm.linear and not folds.linear[fold]:
            case.fail(0, _last_write(case, 0, block), block, f"is not folded from left to right: {folds.text(fold)}")
    sent = _blocks_sent(case)
    busiest = sent.index(max(sent))
    last = len(case.rounds[busiest]) - 1
    for what, promised, counted in (
        ("blocks in the vector", algorithm.blocks(case.size), case.nblocks),
        ("rounds", algorithm.rounds(case.size), proof.rounds),
        ("blocks sent by the busiest rank", algorithm.sent(case.size), proof.sent),
    ):
        if promised != counted:
            case.fail(busiest, last, None, f"promises {promised} {what}, but has {counted}")
