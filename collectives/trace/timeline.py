"""Merges the records of the ranks: puts them on one time axis, and divides each call into waiting and work.

A :class:`Part` has the records of one rank. A rank in a call depends on other ranks: all of them, the root, or the
ranks before it. The time until all these have begun the call is *wait*, the rest *work*. Such wait states are those of
Scalasca (Geimer et al., Concurrency and Computation 22, 2010).
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..files import replacing
from .fields import lacks

__all__ = ["COLLECTIVES", "EVENT", "FORMS", "Calls", "Part", "calls", "part_file", "part_files", "seconds_of"]

#: One record, laid out as ``coll_trace_event`` in csrc/base/trace.h.
EVENT = np.dtype(
    {
        "names": [
            "begin", "returned", "end", "bytes", "number", "site", "root", "comm", "name", "collective", "form",
            "thread", "failed",
        ],
        "formats": ["u8"] * 5 + ["i4", "i4", "u4", "u2"] + ["u1"] * 4,
        "offsets": [0, 8, 16, 24, 32, 40, 44, 48, 52, 54, 55, 56, 57],
        "itemsize": 64,
    }
)  # fmt: skip
FORMS = ("blocking", "non-blocking", "persistent", "wait", "span")
BLOCKING, NONBLOCKING, PERSISTENT, WAIT, SPAN = range(5)

#: Collectives by number, as in ``kind_of`` in node.pxi.
COLLECTIVES = {
    0: "allreduce", 1: "reduce", 2: "bcast", 3: "allgather", 4: "gather", 5: "reduce_scatter_block", 6: "scatter",
    7: "alltoall", 8: "scan", 9: "exscan", 15: "barrier", 19: "allgatherv", 20: "gatherv", 21: "reduce_scatter",
    22: "scatterv", 23: "alltoallv", 32: "alltoallw", 33: "neighbor_allgather", 34: "neighbor_allgatherv",
    35: "neighbor_alltoall", 36: "neighbor_alltoallv", 37: "neighbor_alltoallw",
}  # fmt: skip
_FROM_ROOT = [number for number, name in COLLECTIVES.items() if name in ("bcast", "scatter", "scatterv")]
_TO_ROOT = [number for number, name in COLLECTIVES.items() if name in ("reduce", "gather", "gatherv")]
_IN_ORDER = [number for number, name in COLLECTIVES.items() if name in ("scan", "exscan")]

VERSION = 1
_OF_PART = {
    "rank": int, "ranks": int, "world_rank": int, "host": str, "pid": int, "comms": list, "names": list, "places": list,
    "moments": list, "estimates": list, "aligned": bool, "zero": int, "dropped": int, "failures": list,
}  # fmt: skip


@dataclass
class Part:
    """The records of one rank, and in ``about`` what the numbers in them mean.

    ``about``: rank and ranks of the timeline, world_rank, host, pid; comms (identity, rank and size of each
    communicator); names; places (file, line, function); moments (pairs of time counter and ns of this rank's clock);
    estimates (ns of this clock, ns to add for rank 0's clock, error in ns), empty if the clock is rank 0's; aligned
    (whether clocks were compared); zero (start of the time axis, ns of rank 0's clock); dropped; failures.
    """

    about: dict[str, Any]
    events: np.ndarray

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the part by replacing the file ``path``, so that no reader sees half of it."""
        with replacing(path, "wb") as file:
            np.savez(file, about=json.dumps({"version": VERSION, **self.about}), events=self.events)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Part:
        """Read a part from ``path``; ValueError if the file is not one, or is of another version."""
        try:
            with np.load(path, allow_pickle=False) as found:
                about, events = json.loads(str(found["about"])), found["events"]
        except (ValueError, KeyError, EOFError, TypeError, RecursionError, zipfile.BadZipFile) as e:
            raise ValueError(f"{path} is not a rank's part of a timeline: {e}") from e
        why = lacks(about, {"version": int})
        if why is not None or about["version"] != VERSION or events.dtype != EVENT:
            raise ValueError(f"{path} is a part of a timeline of another version")
        why = lacks(about, _OF_PART)
        if why is not None:
            raise ValueError(f"{path} is a damaged part of a timeline: {why}")
        return cls(about, events)

    def times(self, ticks: np.ndarray) -> np.ndarray:
        """Readings of this rank's time counter as float ns on the common time axis."""
        moments = self.about["moments"]
        (tick, ns), zero = moments[0], self.about["zero"]
        xs = np.array([float(t - tick) for t, _ in moments])
        ys = np.array([float(n - ns) for _, n in moments])
        local = np.interp((ticks - np.uint64(tick)).view(np.int64).astype(np.float64), xs, ys)
        return local + (ns - zero) + self.offsets(local, ns)

    def offsets(self, local: np.ndarray, base: int) -> np.ndarray | float:
        """The ns to add to this rank's clock ``local`` ns after ``base``: on a line through first and last estimate."""
        estimates = self.about["estimates"]
        if not estimates:
            return 0.0
        (first, offset, _), (last, final, _) = estimates[0], estimates[-1]
        slope = (final - offset) / (last - first) if last > first else 0.0
        return offset + slope * (local - float(first - base))


def part_file(path: str | os.PathLike[str], rank: int) -> Path:
    """The file to which ``rank`` writes its part if the ranks cannot write ``path`` together."""
    return Path(f"{os.fspath(path)}.rank{rank}.part")


def part_files(path: str | os.PathLike[str]) -> list[Path]:
    """The parts that ranks have left beside ``path``, in this run or in an older one."""
    target = Path(path)
    name = re.compile(re.escape(target.name) + r"\.rank\d+\.part")
    return [file for file in target.parent.glob("*.part") if name.fullmatch(file.name)]


@dataclass
class Calls:
    """The collectives of all ranks, as arrays with one element for each call on each rank; times in ns.

    ``wait`` is the time spent waiting, and ``source`` the rank of the timeline that was waited for, or -1. ``late`` is
    the longest time that others waited for this rank in this call; it is 0 for all ranks but the one they waited for
    longest.
    """

    rank: np.ndarray
    index: np.ndarray  # of the record in the rank's part
    comm: np.ndarray  # number of the communicator, equal on all ranks
    comm_rank: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    wait: np.ndarray
    source: np.ndarray
    late: np.ndarray
    labels: list[str]  # of the communicators, by number


def calls(parts: list[Part]) -> Calls:
    """Match the calls of all ranks by communicator, number, collective and form, and divide wait from work."""
    identities: dict[str, int] = {}
    labels: list[str] = []
    columns = [_columns(part, identities, labels) for part in parts]
    rank, index, comm, comm_rank, begin, end = (np.concatenate(c) for c in zip(*columns, strict=True))
    made = Calls(
        rank, index, comm, comm_rank, begin, end, np.zeros(len(rank)), np.full(len(rank), -1), np.zeros(len(rank)),
        labels,
    )  # fmt: skip
    if len(rank):
        events = np.concatenate([part.events[column[1]] for part, column in zip(parts, columns, strict=True)])
        _tell_waits(made, events)
    return made


def _columns(part: Part, identities: dict[str, int], labels: list[str]) -> tuple[np.ndarray, ...]:
    """Columns for one rank's calls: rank, index, communicator, rank in the communicator, begin, end."""
    about, events = part.about, part.events
    ours = np.zeros(len(about["comms"]), np.int64)
    for i, found in enumerate(about["comms"]):
        number = identities.setdefault(found["identity"], len(identities))
        if number == len(labels):
            labels.append(f"{number} ({found['size']} ranks)")
        ours[i] = number
    ranks = np.array([found["rank"] for found in about["comms"]], np.int64)
    index = np.flatnonzero(events["form"] <= PERSISTENT)
    mine = events[index]
    begin = part.times(mine["begin"])
    last = part.times(np.array([about["moments"][-1][0]], np.uint64))[0]
    end = np.where(mine["end"] == 0, last, part.times(mine["end"]))
    comm = mine["comm"].astype(np.int64)
    return np.full(len(index), about["rank"]), index, ours[comm], ranks[comm], begin, np.maximum(begin, end)


def _tell_waits(made: Calls, events: np.ndarray) -> None:
    keys = (made.comm_rank, events["number"], events["collective"], events["form"], made.comm)
    order = np.lexsort(keys)
    changes = np.zeros(len(order), bool)
    for key in keys[1:]:
        ordered = key[order]
        changes[1:] |= ordered[1:] != ordered[:-1]
    changes[0] = True
    starts = np.flatnonzero(changes)
    group = np.cumsum(changes) - 1
    begin, kind = made.begin[order], events["collective"][order]
    latest, source = _latest(begin, group, starts, made.rank[order])
    needed, whom = latest[group], source[group]
    root = made.comm_rank[order] == events["root"][order]
    roots = np.full(len(starts), np.nan), np.full(len(starts), -1)
    roots[0][group[root]], roots[1][group[root]] = begin[root], made.rank[order][root]
    from_root, to_root = np.isin(kind, _FROM_ROOT), np.isin(kind, _TO_ROOT)
    needed = np.where(from_root, roots[0][group], needed)
    whom = np.where(from_root, roots[1][group], whom)
    needed = np.where(to_root & ~root, begin, needed)
    _in_order(needed, whom, kind, begin, made.rank[order], starts)
    excess = np.nan_to_num(needed - begin, nan=0.0)
    wait = np.clip(excess, 0, made.end[order] - begin)
    made.wait[order] = wait
    made.source[order] = np.where(excess > 0, whom, -1)
    _blame(made, order, group, starts, excess, whom)


def _latest(
    begin: np.ndarray, group: np.ndarray, starts: np.ndarray, rank: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each call the time at which the last rank began it, and that rank."""
    latest = np.maximum.reduceat(begin, starts)
    source = np.full(len(starts), -1)
    is_last = begin == latest[group]
    source[group[is_last]] = rank[is_last]
    return latest, source


def _in_order(
    needed: np.ndarray, whom: np.ndarray, kind: np.ndarray, begin: np.ndarray, rank: np.ndarray, starts: np.ndarray
) -> None:
    """For scans: a rank needs the ranks before it; ranks are in order within a call."""
    ends = np.append(starts[1:], len(begin))
    for first, last in zip(starts, ends, strict=True):
        if kind[first] in _IN_ORDER:
            for i in range(first, last):
                j = first + int(np.argmax(begin[first : i + 1]))
                needed[i], whom[i] = begin[j], rank[j]


def _blame(
    made: Calls, order: np.ndarray, group: np.ndarray, starts: np.ndarray, excess: np.ndarray, whom: np.ndarray
) -> None:
    """Set ``late`` of the rank that others waited for longest in each call."""
    longest = np.maximum.reduceat(excess, starts)
    at = np.flatnonzero((excess == longest[group]) & (excess > 0))
    worst = np.full(len(starts), -1)
    worst[group[at]] = whom[at]
    guilty = made.rank[order] == worst[group]
    made.late[order] = np.where(guilty, longest[group], 0.0)


def seconds_of(parts: list[Part]) -> float:
    """Seconds from the start of the time axis to the last moment that any rank noted."""
    return max(float(p.times(np.array([p.about["moments"][-1][0]], np.uint64))[0]) for p in parts) * 1e-9
