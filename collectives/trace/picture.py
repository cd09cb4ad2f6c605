"""Draws a timeline: for each rank its spans above and its collectives below; hatched parts are waits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from .. import drawing

__all__ = ["draw"]

Event = dict[str, Any]
Bar = tuple[float, float, float, str, str]  # start and end in ms, upper edge, colour, hatch

# The palette of Okabe and Ito, distinguishable with any colour vision; rows and labels carry the information too.
SPANS = ("#56B4E9", "#E69F00", "#CC79A7", "#F0E442", "#999999")
BLOCKING, UNDER_WAY, WAITING = "#0072B2", "#009E73", "#D55E00"
SPAN_HEIGHT, CALL_HEIGHT, GAP = 0.34, 0.16, 0.12
ROWS = 5  # rows for calls that are under way at the same time; further calls share the last row


def draw(
    events: list[Event], about: dict[str, Any], path: str | os.PathLike[str],
    window: tuple[float, float] | None = None, title: str = "",
) -> None:  # fmt: skip
    """Draw the events of a file (see ``perfetto.read``) to ``path``; ``window`` in ms, default the whole timeline.

    ImportError without matplotlib; ValueError if the window, or the timeline, has no events; OSError if ``path``
    cannot be written.
    """
    drawing.require_matplotlib()
    begin, end = window or (0.0, about["seconds"] * 1e3)
    shown = [e for e in _with_ends(events) if e["end"] > begin and e["ts"] < end]
    if not shown:
        if window is None:
            raise ValueError("nothing to draw: no call and no span was recorded")
        raise ValueError(f"--window: nothing was recorded between {begin:g} and {end:g} ms")
    ranks = sorted({e["pid"] for e in shown})
    rows = _rows(shown)
    heights = {rank: _height(shown, rows, rank) for rank in ranks}
    figure = drawing.figure(11, 1.6 + 1.1 * sum(heights.values()), layout="constrained")
    axis = figure.subplots()
    names = list(dict.fromkeys(e["name"] for e in events if e.get("cat") == "span"))
    colors = {name: SPANS[min(i, len(SPANS) - 1)] for i, name in enumerate(names)}
    top, ticks = 0.0, []
    for rank in ranks:
        mine = [e for e in shown if e["pid"] == rank]
        bars = _bars(mine, rows, top, colors)
        _paint(axis, bars)
        _write_names(axis, mine, top, begin, end)
        ticks.append(top + heights[rank] / 2)
        top += heights[rank] + GAP
        axis.axhline(top - GAP / 2, color="0.85", linewidth=0.8)
    axis.set_yticks(ticks, [f"rank {rank}" for rank in ranks], fontsize=11)
    _dress(axis, begin, end, top - GAP)
    _explain(figure, shown, colors, title)
    drawing.save(figure, path, **{"svg.fonttype": "none"})  # text stays text


def _with_ends(events: Iterable[Event]) -> list[Event]:
    """Slices and calls under way, with start and end in ms; spans also get their depth of nesting."""
    found, open_calls = [], {}
    for e in events:
        if e["ph"] == "X":
            found.append({**e, "ts": e["ts"] / 1e3, "end": (e["ts"] + e["dur"]) / 1e3})
        elif e["ph"] == "b":
            open_calls[e["pid"], e["id2"]["local"]] = {**e, "ts": e["ts"] / 1e3}
        elif e["ph"] == "e":
            call = open_calls.pop((e["pid"], e["id2"]["local"]), None)
            if call is not None:
                found.append({**call, "end": e["ts"] / 1e3})
    stacks: dict[Any, list[float]] = {}
    for e in sorted((e for e in found if e.get("cat") == "span"), key=lambda e: (e["ts"], -e["end"])):
        stack = stacks.setdefault((e["pid"], e["tid"]), [])
        while stack and stack[-1] <= e["ts"]:
            stack.pop()
        e["depth"] = len(stack)
        stack.append(e["end"])
    return found


def _rows(events: list[Event]) -> dict[int, int]:
    """A row for each call under way, so that calls at the same time do not cover each other."""
    rows: dict[int, int] = {}
    busy: dict[int, list[float]] = {}
    for e in sorted((e for e in events if e.get("cat") == "under way"), key=lambda e: e["ts"]):
        ends = busy.setdefault(e["pid"], [])
        row = next((i for i, end in enumerate(ends) if end <= e["ts"]), len(ends))
        row = min(row, ROWS - 1)
        ends[row : row + 1] = [e["end"]]
        rows[id(e)] = row
    return rows


def _height(events: list[Event], rows: dict[int, int], rank: int) -> float:
    used = [rows[id(e)] + 1 for e in events if e["pid"] == rank and id(e) in rows]
    return SPAN_HEIGHT + CALL_HEIGHT * (1 + max(used, default=0))


def _bars(events: list[Event], rows: dict[int, int], top: float, colors: dict[str, str]) -> list[tuple[Bar, float]]:
    """The bars of one rank, each with its height."""
    bars: list[tuple[Bar, float]] = []
    calls = top + SPAN_HEIGHT
    for e in sorted(events, key=lambda e: e["ts"]):
        kind = e.get("cat")
        if kind == "span":
            inset = 0.25 * min(e["depth"], 2) * SPAN_HEIGHT
            bars.append(((e["ts"], e["end"], top + inset, colors[e["name"]], ""), SPAN_HEIGHT - inset - 0.02))
        elif kind in ("collective", "wait"):
            color, hatch = (BLOCKING, "") if kind == "collective" else (WAITING, "//////")
            bars.append(((e["ts"], e["end"], calls, color, hatch), CALL_HEIGHT - 0.02))
        elif kind == "under way":
            y = calls + CALL_HEIGHT * (1 + rows[id(e)])
            middle = e["ts"] + e["args"]["wait_us"] / 1e3
            bars.append(((e["ts"], e["end"], y, UNDER_WAY, ""), CALL_HEIGHT - 0.02))
            bars.append(((e["ts"], middle, y, UNDER_WAY, "//////"), CALL_HEIGHT - 0.02))
    return bars


def _paint(axis: Any, bars: list[tuple[Bar, float]]) -> None:
    for (begin, end, y, color, hatch), height in bars:
        face = "white" if hatch else color
        axis.broken_barh(
            [(begin, end - begin)], (y, height), facecolor=face, edgecolor=color, hatch=hatch, linewidth=0.4
        )


def _write_names(axis: Any, events: list[Event], top: float, begin: float, end: float) -> None:
    """Write the names of spans that are wide enough for them."""
    for e in events:
        left, right = max(e["ts"], begin), min(e["end"], end)
        if e.get("cat") == "span" and (right - left) > 0.011 * len(e["name"]) * (end - begin) and e["depth"] == 0:
            middle = top + (SPAN_HEIGHT - 0.02) / 2
            axis.text((left + right) / 2, middle, e["name"], ha="center", va="center", fontsize=9, clip_on=True)


def _dress(axis: Any, begin: float, end: float, bottom: float) -> None:
    axis.set_xlim(begin, end)
    axis.set_ylim(bottom + 0.04, -0.04)
    axis.set_xlabel("ms", fontsize=11)
    axis.tick_params(axis="y", length=0)
    axis.grid(True, axis="x", color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)


def _explain(figure: Any, events: list[Event], colors: dict[str, str], title: str) -> None:
    from matplotlib.patches import Patch

    kinds = {e.get("cat") for e in events}
    handles = [Patch(facecolor=color, label=name) for name, color in colors.items()]
    if "collective" in kinds:
        handles.append(Patch(facecolor=BLOCKING, label="blocking collective"))
    if "wait" in kinds:
        handles.append(Patch(facecolor="white", edgecolor=WAITING, hatch="//////", label="the program waits"))
    if "under way" in kinds:
        handles.append(Patch(facecolor=UNDER_WAY, label="collective under way"))
        handles.append(
            Patch(facecolor="white", edgecolor=UNDER_WAY, hatch="//////", label="under way, not all ranks came yet")
        )
    columns = len(handles) if len(handles) < 5 else 3
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=10)
    if title:
        figure.suptitle(title, fontsize=12)
