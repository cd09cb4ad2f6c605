"""The steps of one rank as the records that C reads, and two transformations of these records.

Algorithms read and write VECTOR only. :func:`from_input` redirects the first read of each block to INPUT, so that the
input need not be copied first. :func:`without_vector` uses a scratch vector where the caller's memory does not hold all
blocks. Both work on whole arrays, because a rank may have thousands of steps.
"""

from __future__ import annotations

import enum

import numpy as np

from .spec import ALL, NONE

__all__ = ["INPUT", "RECEIVED", "SCRATCH", "STEP", "VECTOR", "Kind", "from_input", "without_vector"]


class Kind(enum.IntEnum):
    """What a step does; csrc/schedule/schedule.h defines the same numbers."""

    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    REDUCE = 3
    COPY = 4


RECEIVED = -1  # as an operand of a RECV_REDUCE: the data that arrive
INPUT = 0  # the caller's send buffer, never written
VECTOR = 1  # the vector; algorithms read and write this buffer, from_input() redirects first reads to INPUT
SCRATCH = 2  # the first scratch vector of the schedule: SCRATCH, SCRATCH + 1, ...

#: One step as C reads it (csrc/schedule/schedule.h): 10 32-bit integers.
STEP = np.dtype(
    [(name, np.int32) for name in
     ("kind", "round", "peer", "block", "nblocks", "dst", "left", "right", "src_block", "reserved")]
)  # fmt: skip

_NEVER = np.iinfo(np.int64).max


def from_input(table: np.ndarray, nblocks: int, held: int, owned: int) -> np.ndarray:
    """The steps with first reads redirected to INPUT, copies added where needed, and rounds numbered anew from 0.

    ``held`` and ``owned`` are the blocks that INPUT holds and that VECTOR must hold at the end (see
    :class:`collectives.schedules.spec.Spec`). A step reads INPUT if nothing has written any of its blocks to VECTOR. If
    VECTOR has only some of the blocks, copies in a round before complete it. At the end, blocks that no step wrote are
    copied.
    """
    time = _times(table)
    first = np.zeros(nblocks, np.int64)  # when a block of VECTOR is first written; 0: INPUT does not hold the block
    if held != NONE:
        first[slice(None) if held == ALL else held] = _NEVER
    _note_writes(table, time, first)
    copies = _redirect(table, time, first)
    if owned != NONE:
        begin, end = (0, nblocks) if owned == ALL else (owned, owned + 1)
        copies.append(_copies(begin, first[begin:end] == _NEVER, _last_round(table) + 1))
    return _numbered(table, [made for made in copies if len(made)])


def _last_round(table: np.ndarray) -> int:
    return int(table["round"].max(initial=-1))


def _times(table: np.ndarray) -> np.ndarray:
    """The order in which steps of the table run: in each round sends, then receives, then local steps."""
    phase = np.minimum(table["kind"], Kind.RECV_REDUCE)
    time = np.empty(len(table), np.int64)
    time[np.lexsort((phase, table["round"]))] = np.arange(1, len(table) + 1)
    return time


def _note_writes(table: np.ndarray, time: np.ndarray, first: np.ndarray) -> None:
    writes = table["dst"] == VECTOR
    one = writes & (table["nblocks"] == 1)
    np.minimum.at(first, table["block"][one], time[one])
    for i in np.flatnonzero(writes & ~one):
        written = first[table["block"][i] : table["block"][i] + table["nblocks"][i]]
        np.minimum(written, time[i], out=written)


def _redirect(table: np.ndarray, time: np.ndarray, first: np.ndarray) -> list[np.ndarray]:
    """Let steps read INPUT if only INPUT holds their blocks; returns copies for ranges that are partly in VECTOR."""
    start = np.where(table["kind"] == Kind.COPY, table["src_block"], table["block"])
    reads = (table["left"] == VECTOR) | (table["right"] == VECTOR)
    several = np.flatnonzero(reads & (table["nblocks"] > 1))
    fresh, copies = np.zeros(len(table), bool), []
    for i in several[np.argsort(time[several])]:
        span = first[start[i] : start[i] + table["nblocks"][i]]
        absent = span >= time[i]
        fresh[i] = absent.all()
        if absent.any() and not fresh[i]:
            copies.append(_copies(int(start[i]), absent, int(table["round"][i])))
            np.minimum(span, time[i], out=span)  # from this step on, VECTOR holds these blocks
    one = np.flatnonzero(reads & (table["nblocks"] == 1))
    fresh[one] = first[start[one]] >= time[one]
    for name in ("left", "right"):
        table[name][fresh & (table[name] == VECTOR)] = INPUT
    return copies


def _copies(begin: int, absent: np.ndarray, number: int) -> np.ndarray:
    """Copies from INPUT of the blocks marked ``absent``, counted from ``begin``; they run before round ``number``."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], absent.astype(np.int8), [0]))))
    made = np.zeros(len(edges) // 2, STEP)
    made["kind"], made["round"], made["peer"], made["right"] = Kind.COPY, number, NONE, NONE
    made["block"] = made["src_block"] = begin + edges[::2]
    made["nblocks"] = edges[1::2] - edges[::2]
    made["dst"], made["left"] = VECTOR, INPUT
    return made


def _numbered(table: np.ndarray, copies: list[np.ndarray]) -> np.ndarray:
    """One table with all copies, each array of copies in a round of its own; rounds are counted from 0."""
    room = len(copies) + 1
    keys = [made["round"].astype(np.int64) * room + i for i, made in enumerate(copies)]
    key = np.concatenate([*keys, table["round"].astype(np.int64) * room + len(copies)])
    order = np.argsort(key, kind="stable")
    table = np.concatenate([*copies, table])[order]
    table["round"] = np.cumsum(np.diff(key[order], prepend=key[order][:1]) != 0)
    return table


def without_vector(table: np.ndarray, owned: int) -> np.ndarray:
    """The steps with VECTOR replaced by a scratch vector, except for the last write of the block ``owned``.

    If that write has other blocks too, or if a step reads the block afterwards, a copy is added instead. If no step
    uses any other block, nothing changes.
    """
    old = table.copy()
    first = np.where(old["kind"] == Kind.COPY, old["src_block"], old["block"])
    names = {"dst": old["block"], "left": first, "right": first}
    touched = {name: old[name] == VECTOR for name in names}
    if all((names[name][t] == owned).all() and (old["nblocks"][t] == 1).all() for name, t in touched.items()):
        return table
    stand_in = max(int(old[name].max(initial=VECTOR)) for name in names) + 1
    for name, t in touched.items():
        table[name][t] = stand_in
    if owned == NONE:
        return table
    meets = (old["block"] <= owned) & (owned < old["block"] + old["nblocks"])
    writes = np.flatnonzero(meets & touched["dst"])
    if not len(writes):
        return table
    last = int(writes[-1])
    reads = (first <= owned) & (owned < first + old["nblocks"]) & (touched["left"] | touched["right"])
    if old["kind"][last] == Kind.RECV:  # all local steps of its round run after the receive
        later = (old["round"] > old["round"][last]) | (
            (old["round"] == old["round"][last]) & (old["kind"] >= Kind.RECV_REDUCE)
        )
    else:  # the sends of its round run before the step
        later = (np.arange(len(old)) > last) & ((old["round"] > old["round"][last]) | (old["kind"] != Kind.SEND))
    if old["nblocks"][last] == 1 and not (reads & later).any():
        table["dst"][last] = VECTOR
        return table
    end = (Kind.COPY, old["round"][-1] + 1, NONE, owned, 1, VECTOR, stand_in, NONE, owned, 0)
    return np.append(table, np.array([end], dtype=STEP))
