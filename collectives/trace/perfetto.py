"""Writes a timeline as a file of trace events, which ui.perfetto.dev and chrome://tracing open.

The format is Chrome's "Trace Event Format", as a JSON object: a process for each rank, a slice for each call, and an
asynchronous slice for each non-blocking or persistent call, from its start to its end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..files import replacing
from ..schedules import registry
from .fields import lacks
from .timeline import COLLECTIVES, FORMS, NONBLOCKING, SPAN, WAIT, Calls, Part, calls, seconds_of

__all__ = ["read", "write"]

FORMAT = "collectives timeline"
SHOWN = 500.0  # ns: shorter waits get no slice
_METHODS = ("", "I", "")


def write(path: str | os.PathLike[str], parts: list[Part]) -> None:
    """Write the timeline of ``parts`` by replacing the file, so that no reader sees half of it; raises OSError."""
    parts = sorted(parts, key=lambda part: part.about["rank"])
    found = calls(parts)
    with replacing(path) as file:
        file.write('{"displayTimeUnit":"ns",\n"traceEvents":[\n')
        file.write(",\n".join(line for part in parts for line in _names(part)))
        for part in parts:
            _write_part(file, part, found)
        file.write(f'\n],\n"otherData":{json.dumps(_about(parts))}}}\n')


def read(path: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Events and ``otherData`` of a file that :func:`write` wrote; ValueError for any other file."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{path} is not a timeline of this library ({type(e).__name__}: {e})") from None
    why = lacks(found, {"traceEvents": list, "otherData": dict})
    if why is not None:
        raise ValueError(f"{path} is not a timeline of this library: {why}")
    events, about = found["traceEvents"], found["otherData"]
    if about.get("format") != FORMAT:
        raise ValueError(f"{path} holds trace events of another program")
    why = _wrong_about(about)
    if why is not None:
        raise ValueError(f"{path} is a damaged timeline: otherData: {why}")
    for number, event in enumerate(events, 1):
        why = _wrong_event(event)
        if why is not None:
            raise ValueError(f"{path} is a damaged timeline: event {number}: {why}")
    return events, about


def _wrong_about(about: dict[str, Any]) -> str | None:
    """Which field of ``otherData`` is missing or wrong; None if there is none."""
    why = lacks(about, {"ranks": int, "missing_ranks": list, "seconds": float, "rank": list})
    for rank in about["rank"] if why is None else []:
        why = why or lacks(rank, {"rank": int, "host": str, "clock": str, "dropped": int})
        if why is None and "clock_error_ns" in rank:
            why = lacks(rank, {"clock_error_ns": float})
    return why


_OF_KIND: dict[str, dict[str, Any]] = {
    "X": {"ts": float, "dur": float},
    "b": {"ts": float, "id2": dict},
    "e": {"ts": float, "id2": dict},
}
_OF_CALL = {
    "collective": str, "form": str, "algorithm": str, "communicator": str, "caller": str, "bytes": float, "call": int,
    "wait_us": float, "work_us": float, "late_us": float, "request": int,
}  # fmt: skip


def _wrong_event(event: Any) -> str | None:
    """Which field of an event, needed to show it, is missing or wrong; None if there is none."""
    why = lacks(event, {"ph": str, "name": str, "pid": int, "tid": int})
    if why is not None:
        return why
    given = {"cat": "", "args": {}, **event}
    why = lacks(given, {"cat": str, "args": dict, **_OF_KIND.get(event["ph"], {})})
    if why is None and "id2" in event:
        why = lacks(event["id2"], {"local": str})
    if why is None and (event["ph"] == "b" or "work_us" in given["args"]):
        why = lacks({"request": 0, "late_us": 0, **given["args"]}, _OF_CALL)
        why = why and f"args: {why}"
    return why


def _about(parts: list[Part]) -> dict[str, Any]:
    """The description of the run for the file: format, ranks, clocks."""
    ranks = []
    for part in parts:
        about = part.about
        estimates = about["estimates"]
        told = {key: about[key] for key in ("rank", "world_rank", "host", "pid", "dropped")}
        told["clock"] = "rank 0's CLOCK_MONOTONIC" if not estimates else "own CLOCK_MONOTONIC, compared by messages"
        if not about["aligned"]:
            told["clock"] = "own CLOCK_MONOTONIC, not compared"
        if estimates:
            (first, begin, _), (last, end, _) = estimates[0], estimates[-1]
            told["clock_offset_ns"] = [begin, end]
            told["clock_error_ns"] = max(error for *_, error in estimates)
            told["clock_drift_ppm"] = (end - begin) / (last - first) * 1e6 if last > first else None
        ranks.append(told)
    ranks_of_all, aligned = parts[0].about["ranks"], parts[0].about["aligned"]
    together = set(range(ranks_of_all)) if aligned else set()  # a rank that began alone has a file of its own
    return {
        "format": FORMAT,
        "version": 1,
        "ranks": ranks_of_all,
        "missing_ranks": sorted(together - {r["rank"] for r in ranks}),
        "seconds": seconds_of(parts),
        "rank": ranks,
    }


def _names(part: Part) -> Iterator[str]:
    """The events that name the rows of a rank, in order."""
    about = part.about
    rank = about["rank"]
    world = f"world rank {about['world_rank']}, " if about["world_rank"] != rank else ""
    yield _meta("process_name", rank, 0, name=f"rank {rank} ({world}{about['host']})")
    yield _meta("process_sort_index", rank, 0, sort_index=rank)
    for thread in np.unique(part.events["thread"]).tolist() or [0]:
        yield _meta("thread_name", rank, thread, name="program" if thread == 0 else f"thread {thread}")
        yield _meta("thread_sort_index", rank, thread, sort_index=thread)


def _meta(what: str, rank: int, thread: int, **args: Any) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": rank, "tid": thread, "args": args}, separators=(",", ":"))


class _Row:
    """Texts that many events of one rank share, made once."""

    def __init__(self, part: Part, labels: list[str], comms: dict[int, int]):
        self.about, self.labels, self.comms = part.about, labels, comms
        self.rank = part.about["rank"]
        self.failures = {index: text for index, text in part.about["failures"]}
        self.places = [f"{file}:{line} {name}" if file else "" for file, line, name in part.about["places"]]
        self._known: dict[Any, str] = {}

    def common(self, form: int, collective: int, name: int, comm: int, site: int, root: int) -> str:
        """The arguments of a call that are equal for all calls with these numbers, as JSON without braces."""
        key = form, collective, name, comm, site, root
        text = self._known.get(key)
        if text is None:
            what = COLLECTIVES[collective]
            args: dict[str, Any] = {
                "collective": what, "form": FORMS[form], "algorithm": self.about["names"][name],
                "communicator": self.labels[self.comms[comm]], "caller": self.places[site],
            }  # fmt: skip
            if registry.spec(what).rooted:
                args["root"] = root
            text = self._known[key] = json.dumps(args, separators=(",", ":"))[1:-1]
        return text


def _write_part(file: IO[str], part: Part, found: Calls) -> None:
    """Write the events of one rank in order of time."""
    events = part.events
    begin, returned, end = (part.times(events[field]) for field in ("begin", "returned", "end"))
    wait, source, late = np.zeros(len(events)), np.full(len(events), -1), np.zeros(len(events))
    mine = found.rank == part.about["rank"]
    at = found.index[mine]
    wait[at], source[at], late[at] = found.wait[mine], found.source[mine], found.late[mine]
    open_end = events["end"] == 0
    end[open_end] = part.times(np.array([part.about["moments"][-1][0]], np.uint64))[0]
    comms = dict(zip(events["comm"][at].tolist(), found.comm[mine].tolist(), strict=True))
    row = _Row(part, found.labels, comms)
    order = np.lexsort((-end, begin))
    fields = [events[name][order].tolist() for name in EVENT_FIELDS]
    numbers = [(column[order] / 1000).tolist() for column in (begin, returned, end, wait, late)]
    waited_for = source[order].tolist()
    for i, index in enumerate(order.tolist()):
        values = [column[i] for column in fields]
        times = [column[i] for column in numbers]
        for line in _lines(row, index, values, times, waited_for[i], bool(open_end[index])):
            file.write(",\n")
            file.write(line)


EVENT_FIELDS = ("form", "collective", "name", "comm", "site", "root", "bytes", "number", "thread", "failed")


def _lines(
    row: _Row, index: int, values: list[int], times: list[float], source: int, is_open: bool
) -> Iterator[str]:  # fmt: skip
    """The trace events of one record, as JSON; times are in us."""
    form, collective, name, comm, site, root, nbytes, number, thread, failed = values
    begin, returned, end, wait, late = times
    where = f'"pid":{row.rank},"tid":{thread}'
    if form == SPAN:
        title = json.dumps(row.about["names"][name])
        ended = {"failed": row.failures[index]} if index in row.failures else {}
        args = json.dumps({"caller": row.places[site], **ended})
        yield f'{{"ph":"X","cat":"span","name":{title},{where},{_slice(begin, end)},"args":{args}}}'
        return
    what = COLLECTIVES[collective]
    args = f'{row.common(form, collective, name, comm, site, root)},"bytes":{nbytes},{_number(form, number)}'
    if form == WAIT:
        yield f'{{"ph":"X","cat":"wait","name":"Wait {what}",{where},{_slice(begin, end)},"args":{{{args}}}}}'
        return
    work = max(0.0, end - begin - wait)
    args += f',"wait_us":{wait:.3f},"work_us":{work:.3f}' + (f',"waited_for":{source}' if source >= 0 else "")
    args += f',"late_us":{late:.3f}' if late > 0 else ""
    args += f',"failed":{json.dumps(row.failures.get(index, "an error"))}' if failed else ""
    args += ',"unfinished":true' if is_open else ""
    if form < NONBLOCKING:
        yield f'{{"ph":"X","cat":"collective","name":"{what}",{where},{_slice(begin, end)},"args":{{{args}}}}}'
        if wait * 1000 >= SHOWN:
            yield f'{{"ph":"X","cat":"wait","name":"wait for rank {source}",{where},{_slice(begin, begin + wait)}}}'
        return
    title = f"I{what}" if form == NONBLOCKING else f"Start {what}"
    scope = f'"cat":"under way","id2":{{"local":"{index}"}},"name":"{what}",{where}'
    yield f'{{"ph":"X","cat":"start","name":"{title}",{where},{_slice(begin, returned)}}}'
    yield f'{{"ph":"b",{scope},"ts":{begin:.3f},"args":{{{args}}}}}'
    yield f'{{"ph":"e",{scope},"ts":{end:.3f}}}'


def _slice(begin: float, end: float) -> str:
    return f'"ts":{begin:.3f},"dur":{max(0.0, end - begin):.3f}'


def _number(form: int, number: int) -> str:
    """The number of a call; for a persistent request, the number of the request and of the start."""
    if number >> 32:
        return f'"request":{(number >> 32) - 1},"call":{number & 0xFFFFFFFF}'
    return f'"call":{number}'
