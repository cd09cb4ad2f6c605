"""Proofs about schedules, for a given number of ranks: every promise of an algorithm, checked symbolically.

The model. Each rank runs its rounds strictly one after the other. All messages of a round are posted together, in the
order written. When all are complete, its local steps follow in the order written (for a receive-and-reduce, its
reduction), and then the next round begins. Sends are synchronous: none completes before its receive is posted. Matching
is in order per (source, destination, tag). What is proved of this model holds for the executors:

* An executor may post messages before their round begins, but it keeps the order per channel and the dependencies
  between blocks. Take all actions in an order in which the model completes them. In an executor each action waits only
  for actions that are earlier in this order, so by induction all complete, with the same data. Posting early, or
  buffering sends in the executor or in MPI, removes waits and adds none.
* A rank's next action never depends on which message came first, so all interleavings reach the same final state (a
  Kahn network). Running one interleaving to the end therefore proves that none deadlocks.
* Segments in flight are cursors over the same schedule, each with its own tag and slice of the vectors. A cursor that
  has finished a segment begins the next one with the same tag, whether or not its peers have finished. As every channel
  has as many sends as receives in one segment, the n-th send of a later segment still meets its n-th receive.
* Blocks can be of unequal length, or empty (executors omit empty messages on both sides, which only removes waits). So
  both sides of a message must name the same blocks, and a copy must not move a block. In an exchange, where block j of
  rank i becomes block i of rank j, a block must arrive at its final place. Algorithms for blocks of equal length
  (``uneven=False``) are free of these conditions.

:mod:`collectives.schedules.spec` says what each rank begins with, and whose contributions it must end with. Values are
fold trees over the contributions (:mod:`collectives.analysis.folds`). Everything is proved out of place and, where a
call can be, in place (INPUT and VECTOR are the same memory). Rooted collectives are proved for every root on up to 8
ranks, and for roots 0, 1 and p - 1 on more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..schedules.build import all_ranks, build, expanded
from ..schedules.registry import ScheduleAlgorithm
from ..schedules.schedule import INPUT, RECEIVED, VECTOR, Kind, Schedule
from ..schedules.schedule import Step as ArrayStep
from ..schedules.spec import ALL, NONE
from .folds import Folds, rank_set
from .symbolic import Case, Place, Step, VerificationError, decode, evaluate, match, run

__all__ = ["Proof", "VerificationError", "verify", "verify_schedules"]

SEGMENTS_IN_FLIGHT = 3  # cursors have their own tags and slices, so that 3 in flight cover 1 and 2
IDEMPOTENT = frozenset({"barrier"})  # collectives whose op may meet a contribution twice
WINDOW = 2  # rounds that one rank has under way at once: COLL_WINDOW in csrc/schedule/schedule.h
EVERY_ROOT = 8  # the largest number of ranks for which every root is proved


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proved of an algorithm on ``size`` ranks, and what was counted.

    ``rounds``: length of the longest chain of rounds with messages that follow each other. ``sent``: blocks sent by the
    busiest rank. ``messages``: number of messages of all ranks. ``ordered`` and ``linear``: properties of the folds,
    whether promised or not.
    """

    name: str
    size: int
    rounds: int
    sent: int
    messages: int
    ordered: bool
    linear: bool


def verify(algorithm: ScheduleAlgorithm, size: int) -> Proof:
    """Prove every promise of an algorithm on ``size`` ranks; raises :class:`VerificationError` if one is broken.

    Returns the proof for root 0.
    """
    roots = [0]
    if algorithm.spec.rooted:
        roots = list(range(size)) if size <= EVERY_ROOT else [0, 1, size - 1]
    proofs = []
    for root in roots:
        schedules = [build(algorithm, rank, size, root) for rank in range(size)]
        proofs.append(verify_schedules(schedules, algorithm))
        _check_arrays(algorithm, size, root)
    return proofs[0]


def verify_schedules(schedules: Sequence[Schedule], algorithm: ScheduleAlgorithm | None = None) -> Proof:
    """Prove that ``schedules``, those of all ranks in rank order, are correct together; raises VerificationError.

    With an ``algorithm``, its promises are proved too; without one, blocks may be of any length.
    """
    if not schedules:
        raise VerificationError("no schedule, p = 0: there is nothing to verify")
    case = Case(schedules, uneven=algorithm is None or algorithm.uneven)
    decode(case)
    for rank in range(case.size):
        for number in range(len(case.rounds[rank])):
            _check_round(case, rank, number)
    match(case)
    order = run(case, segments=1, in_flight=1)
    run(case, segments=SEGMENTS_IN_FLIGHT + 1, in_flight=SEGMENTS_IN_FLIGHT)
    folds = Folds(idempotent=case.schedules[0].collective in IDEMPOTENT)
    results = [evaluate(case, order, folds, in_place) for in_place in (False, True)[: 1 + case.spec.aliases]]
    for result in results:
        _check_result(case, folds, result)
        for rank, block in case.results():
            if result[rank][block] != results[0][rank][block]:
                what = "in place, the fold is not that of out of place"
                case.fail(rank, _last_write(case, rank, block), block, what)
    proof = _proof(case, order, folds, results[0])
    if algorithm:
        _check_promises(case, proof, algorithm, folds, results[0])
    return proof


def _check_round(case: Case, rank: int, number: int) -> None:
    """Fail if a step is malformed, or if another message of the round reads or writes what a receive writes."""
    messages, local = case.rounds[rank][number]
    for step in messages + local:
        wrong = _malformed(case, step, rank)
        if wrong:
            case.fail(rank, number, step.block, f"malformed step: {wrong}")
    aliases = case.spec.aliases
    for a in messages:
        if a.kind != Kind.RECV:
            continue
        end, vector = a.block + a.nblocks, aliases and a.dst == VECTOR
        for b in messages:
            if b is a or a.block >= b.block + b.nblocks or b.block >= end or b.kind == Kind.RECV_REDUCE:
                continue  # a reduction runs after the messages
            touched = (b.left, b.dst)
            if a.dst in touched or (vector and INPUT in touched):  # in place, INPUT is VECTOR
                what = f"{a} from rank {a.peer} may write while {b} of the same round reads or writes there"
                case.fail(rank, number, max(a.block, b.block), what)


def _malformed(case: Case, step: Step, rank: int) -> str:
    """What is wrong with ``step``, or an empty string."""
    if step.kind not in _OPERANDS:
        return f"unknown kind {step.kind}"
    if step.block < 0 or step.nblocks < 1 or step.block + step.nblocks > case.nblocks:
        return f"{step} in a vector of {case.nblocks} blocks"
    if step.kind <= Kind.RECV_REDUCE and (not 0 <= step.peer < case.size or step.peer == rank):
        return f"{step} has peer {step.peer}"
    if step.kind != Kind.SEND and (step.dst == INPUT or not _within(case, rank, step.dst, step.block, step.nblocks)):
        return f"{step} writes to buffer {step.dst}"
    operands = [getattr(step, name) for name in _OPERANDS[step.kind]]
    own = [operand for operand in operands if operand != RECEIVED]
    first = step.src_block if step.kind == Kind.COPY else step.block
    known = all(_within(case, rank, operand, first, step.nblocks) for operand in own)
    if not known or len(operands) - len(own) != (step.kind == Kind.RECV_REDUCE):
        return f"{step} has operands {tuple(operands)}"
    if case.uneven and step.kind == Kind.COPY and step.src_block != step.block and not case.spec.exchanges:
        return f"{step} comes from block {step.src_block}, which may have another length"
    if case.uneven and case.spec.blockwise and case.spec.rooted and rank != case.root:
        if (step.block, step.nblocks) != (rank, 1):
            return f"{step}, which only the root knows the length of"
    return ""


_OPERANDS: dict[int, tuple[str, ...]] = {
    Kind.SEND: ("left",), Kind.RECV: (), Kind.RECV_REDUCE: ("left", "right"), Kind.REDUCE: ("left", "right"),
    Kind.COPY: ("left",),
}  # fmt: skip


def _within(case: Case, rank: int, buffer: int, first: int, count: int) -> bool:
    """Whether the blocks lie in ``buffer`` of ``rank``; a buffer of the caller may hold one block, or none."""
    part = case.buffers[rank].get(buffer, NONE)
    return first >= 0 and first + count <= case.nblocks and (part == ALL or (part, 1) == (first, count))


def _check_result(case: Case, folds: Folds, result: list[list[int | None]]) -> None:
    """Fail unless every block of the result has the required contributions, and the same fold on all ranks.

    In a barrier the folds may differ.
    """
    known: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, block in case.results():
        fold = result[rank][block]
        ranks, index = case.spec.wanted(rank, block, case.size, case.root)
        what = "nothing is ever written to it"
        if fold is not None:
            other, first = known.setdefault((ranks, index), (rank, fold))
            missing, surplus = ranks & ~folds.ranks[fold], folds.ranks[fold] & ~ranks
            if folds.block[fold] != index:
                what = f"ends with the contents of block {folds.block[fold]}, not {index}"
            elif missing or surplus:
                what = f"ends with{'out' if missing else ''} the contribution of rank {rank_set(missing or surplus)}"
            elif fold != first and not folds.idempotent:
                what = f"ends with the fold {folds.text(fold)}, rank {other} with {folds.text(first)}"
            else:
                continue
        case.fail(rank, _last_write(case, rank, block), block, what)


def _last_write(case: Case, rank: int, block: int) -> int:
    """The last round in which ``rank`` writes ``block`` of its result; its last round if it never does."""
    for number in range(len(case.rounds[rank]) - 1, -1, -1):
        messages, local = case.rounds[rank][number]
        if any(s.dst == VECTOR and s.block <= block < s.block + s.nblocks for s in messages + local):
            return number
    return len(case.rounds[rank]) - 1


def _proof(case: Case, order: list[Place], folds: Folds, result: list[list[int | None]]) -> Proof:
    """Count rounds, blocks and messages, and check whether the folds are ordered and linear."""
    level: dict[Place, int] = {}
    for rank, number in order:
        posted = [(rank, number), *case.partners.get((rank, number), ())]
        before = max(level.get((r, n - 1), 0) for r, n in posted)
        level[rank, number] = before + bool(case.rounds[rank][number].messages)
    final = {result[rank][block] or 0 for rank, block in case.results()}
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
    """Fail unless what the algorithm promises is what was counted."""
    for rank, block in case.results() if case.spec.reduces else ():
        fold = result[rank][block] or 0
        if algorithm.ordered and not folds.ordered[fold]:
            place = folds.culprit(fold)
            case.fail(*place, block, f"breaks the rank order that is promised: {folds.text(fold)}")
        if algorithm.linear and not folds.linear[fold]:
            what = f"is not folded from left to right: {folds.text(fold)}"
            case.fail(rank, _last_write(case, rank, block), block, what)
    sent = _blocks_sent(case)
    busiest = sent.index(max(sent))
    last = len(case.rounds[busiest]) - 1
    rounds, most = algorithm.promise(case.size, case.root)
    for what, promised, counted in (
        ("blocks in the vector", algorithm.blocks(case.size), case.nblocks),
        ("rounds", rounds, proof.rounds),
        ("blocks sent by the busiest rank", most, proof.sent),
    ):
        if promised != counted:
            case.fail(busiest, last, None, f"promises {promised} {what}, but has {counted}")
    _check_memory(case, algorithm)


def _check_memory(case: Case, algorithm: ScheduleAlgorithm) -> None:
    """Fail unless the promised memory is what the schedules need, and segments can cut them where that is promised."""
    needs = [_blocks_needed(schedule) for schedule in case.schedules]
    greediest = needs.index(max(needs))
    last = len(case.rounds[greediest]) - 1
    promised = algorithm.promised_memory(case.size, case.root)
    if promised is not None and promised != needs[greediest]:
        case.fail(greediest, last, None, f"promises {promised} blocks of memory, but needs {needs[greediest]}")
    if not (algorithm.divisible(case.size) and case.spec.blockwise):
        return
    for rank, schedule in enumerate(case.schedules):
        for step in schedule.steps[schedule.steps["nblocks"] > 1]:
            case.fail(rank, int(step["round"]), int(step["block"]), "is of several blocks, which segments cannot cut")


def _blocks_needed(schedule: Schedule) -> int:
    """Scratch memory, and staging for arrivals that are reduced, of one rank in the executor; in blocks."""

    staged = schedule.steps[schedule.steps["kind"] == Kind.RECV_REDUCE]
    slots = int(np.bincount(staged["round"]).max(initial=0))
    longest = int(staged["nblocks"].max(initial=0))
    return WINDOW * slots * longest + schedule.scratch * schedule.nblocks


def _check_arrays(algorithm: ScheduleAlgorithm, size: int, root: int) -> None:
    """Fail unless the generator gives the same steps for an array of all ranks as for each rank by itself.

    Drawings and the cost model call it with an array: one call then serves thousands of ranks.
    """
    where = f"{algorithm.name}, p = {size}{f', root = {root}' * algorithm.spec.rooted}"
    try:
        together = _rows(all_ranks(algorithm, size, root), size)
    except (TypeError, ValueError) as error:
        raise VerificationError(
            f"{where}: the generator fails if `rank` is an array of all ranks ({error}). It must yield the same steps "
            "for every rank, and say by `when` who takes part: send(0, when=rank != 0), not `if rank != 0:`"
        ) from error
    for rank in range(size):
        if together[rank] != _rows_alone(algorithm, rank, size, root):
            raise VerificationError(
                f"{where}: rank {rank}: the generator gives other steps if `rank` is an array of all ranks"
            )


def _rows(rounds: Iterable[Iterable[ArrayStep]], size: int) -> list[list[tuple[int, ...]]]:
    """For each rank its steps, each with the number of its round."""
    rows: list[list[tuple[int, ...]]] = [[] for _ in range(size)]
    for number, steps in enumerate(rounds):
        for step in steps:
            fields = (step.peer, step.block, step.nblocks, step.dst, step.left, step.right, step.src_block)
            values = np.stack(fields, axis=-1).tolist()
            for rank in np.flatnonzero(step.when).tolist():
                rows[rank].append((number, int(step.kind), *values[rank]))
    return rows


def _rows_alone(algorithm: ScheduleAlgorithm, rank: int, size: int, root: int) -> list[tuple[int, ...]]:
    """The steps of one rank, each with the number of its round."""
    total, rows = algorithm.blocks(size), []
    for number, steps in enumerate(expanded(algorithm.rounds_of(rank, size, root))):
        for step in steps:
            count = total if step.nblocks == ALL else step.nblocks
            if step.when and count:
                where = (step.peer, step.block, count, step.dst, step.left, step.right, step.src_block)
                rows.append((number, int(step.kind), *map(int, where)))
    return rows
