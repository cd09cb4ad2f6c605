"""The learning curves of a log, as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...drawing import figure, log_ticks, save

# Okabe and Ito's palette, for any kind of colour vision; line styles and markers differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")
MOST_NUMBERS = 4  # runs whose last accuracies are written into the picture; those of more would cover each other
MARKERS = ("o", "s", "^", "D", "v", "*")
ROWS = [("loss", "training loss, own samples"), ("accuracy", "test accuracy")]
COLUMNS = [("seconds", "seconds"), ("samples", "samples seen by all ranks")]


def draw_curves(
    log: dict[str, Any], path: str | Path, title: str = "", *, columns: Sequence[tuple[str, str]] = COLUMNS
) -> None:
    """Draw loss and accuracy of every run in `log` (see ``read_log``) against time and against samples.

    `columns`: the keys of the records that they are drawn against, with texts for the axes. `path` is the picture's
    file: .png, .svg or .pdf. Raises ImportError if matplotlib is not installed, OSError if `path` cannot be written.
    """
    made = figure(5 * len(columns), 6.4, layout="constrained")
    axes = made.subplots(2, len(columns), sharex="col", sharey="row", squeeze=False)
    for number, (name, run) in enumerate(log["runs"].items()):
        style = _style(number)
        label = run["settings"].get("label", name)
        for i, (value, _) in enumerate(ROWS):
            for j, (along, _) in enumerate(columns):
                _line(axes[i, j], run["records"], along, value, label, style)
    if len(log["runs"]) <= MOST_NUMBERS:
        _finals(axes[1])
    _dress(axes, columns)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=len(columns), frameon=False, fontsize=11)
    if title:
        made.suptitle(title, fontsize=13)
    save(made, path)


def _style(number: int) -> dict[str, str]:
    """The look of a line; the first 84 differ."""
    colour, line, marker = (of[number % len(of)] for of in (COLOURS, LINES, MARKERS))
    return {"color": colour, "linestyle": line, "marker": marker}


def _line(axis: Any, records: list[dict[str, Any]], along: str, value: str, label: str, style: dict[str, Any]) -> None:
    points = [r for r in records if value in r]
    xs = [r[along] for r in points]
    every = max(1, len(points) // 12)
    axis.plot(xs, [r[value] for r in points], label=label, linewidth=2, markersize=5, markevery=every, **style)
    if points and f"{value}_min" in points[0]:  # from the worst to the best rank
        low, high = ([r[f"{value}_{end}"] for r in points] for end in ("min", "max"))
        axis.fill_between(xs, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _finals(axes: Any) -> None:
    """Write the last accuracy of each line to its end."""
    for axis in axes:
        for line in axis.lines:
            if len(line.get_xdata()):
                _final(axis, line.get_xdata()[-1], line.get_ydata()[-1], line.get_color())


def _final(axis: Any, x: float, y: float, color: str) -> None:
    """Write the last value at the end of its line, above or below it, where there is room."""
    offset, side = (-9, "top") if y > 0.5 else (9, "bottom")
    axis.annotate(
        f"{y:.1%}",
        (x, y),
        xytext=(0, offset),
        textcoords="offset points",
        color=color,
        ha="right",
        va=side,
        fontsize=11,
        weight="bold",
    )


def _dress(axes: Any, columns: Sequence[tuple[str, str]]) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, NullFormatter, PercentFormatter

    for i, (_, y_label) in enumerate(ROWS):
        axes[i, 0].set_ylabel(y_label, fontsize=11)
    for j, (_, x_label) in enumerate(columns):
        axes[1, j].set_xlabel(x_label, fontsize=11)
    for axis in axes.flat:
        axis.grid(True, color="0.88", linewidth=0.8)
        axis.set_axisbelow(True)
        last = axis.dataLim.xmax  # infinite without data
        axis.set_xlim(left=0, right=1.04 * last if 0 < last < math.inf else None)  # markers are whole
        axis.spines[["top", "right"]].set_visible(False)
    if any(len(line.get_xdata()) for axis in axes[0] for line in axis.lines):
        axes[0, 0].set_yscale("log")
        found = log_ticks(*axes[0, 0].get_ylim())
        axes[0, 0].set_yticks(found)
        axes[0, 0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes[0, 0].yaxis.set_minor_formatter(NullFormatter())
    axes[1, 0].set_ylim(0, 1.02)
    axes[1, 0].yaxis.set_major_formatter(PercentFormatter(1.0))
    for axis in axes[1, 1:]:
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
