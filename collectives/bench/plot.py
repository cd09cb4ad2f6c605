"""``python -m collectives plot FILE...``: draws latency and bandwidth by message size.

Colours are the palette of Okabe and Ito, distinguishable with any colour vision. Markers and dashes differ too, and
every line has its name at its end.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import drawing
from ..files import say_where
from ..launch.usage import refused
from ..system import machine
from .curves import Curve, curves, groups, of_files, read, size_name, size_ticks, speed_unit, time_name

__all__ = ["add_arguments", "curves", "draw", "main", "picture", "spread", "tty"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^DvPX"
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)))
KINDS = (".png", ".svg", ".pdf")
LABEL_GAP = 0.052  # least distance between the middles of two labels, as a share of the panel's height
BAR = 40  # length of the longest bar, in characters

EPILOG = """\
  mpiexec -n 4 python -m collectives bench allreduce --algorithm all --json allreduce.json
  python -m collectives plot allreduce.json -o allreduce.svg

One collective is drawn as latency and bandwidth, several as a panel of latency each."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``plot``."""
    parser.epilog = EPILOG
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON of bench --json or benchmarks/peers.py --json")
    parser.add_argument(
        "-o", "--output", metavar="PICTURE", help=".png, .svg or .pdf (default: the first FILE's name with .png)"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only panels whose title has it: Bcast, 4 ranks, ..."
    )
    parser.add_argument("--title", help="above the picture (default: what was measured)")


def main(args: argparse.Namespace) -> int:
    """Draw the picture; returns 0."""
    output = args.output or Path(args.files[0]).with_suffix(".png")
    with refused():
        draw([read(file) for file in args.files], output, args.title, args.only)
    say_where(output)
    return 0


def draw(
    contents: Sequence[Mapping[str, Any]], path: str | Path, title: str | None = None, only: str = ""
) -> None:  # fmt: skip
    """Draw the curves of results files to ``path``; ``only`` selects the panels whose title contains it.

    Times are medians; bandwidth is bytes of the whole vector divided by time. ValueError if ``path`` does not end in
    .png, .svg or .pdf, or if there is nothing to draw; OSError if it cannot be written; ImportError without matplotlib.
    """
    kind = Path(path).suffix
    if kind not in KINDS:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(KINDS)}")
    drawing.require_matplotlib()
    import matplotlib

    style: Any = {"svg.fonttype": "path", "font.family": "sans-serif", "font.size": 10}
    with matplotlib.rc_context(style):
        drawing.save(picture(contents, title, only), path)


def picture(contents: Sequence[Mapping[str, Any]], title: str | None = None, only: str = "") -> Any:
    """The matplotlib figure that :func:`draw` writes; ValueError if there is nothing to draw."""
    every = [curve for curve in of_files(contents) if _sized(curve)]
    if not every:
        raise ValueError("nothing to draw: there are no messages of several sizes")
    drawn = groups(curve for curve in every if only in curve.group)
    if not drawn:
        raise ValueError(f"--only {only!r}: the panels are {'; '.join(groups(every))}")
    figure = _one(next(iter(drawn.values()))) if len(drawn) == 1 else _several(drawn)
    heading = f"Latency: {_in_common(drawn)[1]}".removesuffix(": ") if len(drawn) > 1 else next(iter(drawn))
    figure.suptitle(title or heading, fontsize=13, weight="bold")
    figure.text(0.995, 0.004, _conditions(contents), ha="right", va="bottom", fontsize=7, color="0.4")
    return figure


def _sized(curve: Curve) -> bool:
    """Whether the curve has two points or more on logarithmic axes; sorts the points and drops others."""
    curve.points = {n: us for n, us in sorted(curve.points.items()) if n > 0 and us > 0}
    return len(curve.points) > 1


def _conditions(contents: Iterable[Mapping[str, Any]]) -> str:
    """The machines of the measurements, and whether their cores were busy, as text."""
    every = list(contents)
    machines = {(c["machine"]["cpu"], c["machine"]["cores"]) for c in every if "machine" in c}
    crowded = machine.busy(max((row.get("core_waits", 0.0) for c in every for row in c["results"]), default=0.0))
    return "; ".join([machine.processor(*each) for each in sorted(machines)] + ([crowded] if crowded else []))


# --- pictures -----------------------------------------------------------------------------------------------------


def _one(lines: list[Curve]) -> Any:
    """A figure of two panels: latency on logarithmic axes, which shows short messages, and bandwidth for long ones."""
    margin = 0.25 + 0.085 * max(len(curve.label) for curve in lines)  # inches, for the labels of the lines
    width, height, panel = 1.75 + 2 * (4.3 + margin), 4.9, 4.3
    figure = drawing.figure(width, height)
    styles = _styles(lines)
    for left, what in ((0.85, "time"), (0.85 + panel + margin + 0.75, "speed")):
        axis = figure.add_axes((left / width, 0.13, panel / width, 0.73))
        for curve in lines:
            axis.plot(*_columns(curve.points if what == "time" else curve.bandwidths()), **styles[curve.label])
        axis.set_title("latency" if what == "time" else "bandwidth", loc="left", fontsize=11)
        _dress(axis, what)
        _set_ticks(axis, what, [nbytes for curve in lines for nbytes in curve.points])
        _name_lines(axis, styles)
    return figure


def _several(drawn: dict[str, list[Curve]]) -> Any:
    """A figure with a panel of latency for each group; the legend is below the title."""
    columns = min(4, math.ceil(math.sqrt(len(drawn))))
    rows = math.ceil(len(drawn) / columns)
    width, height = (3.1, 2.35) if len(drawn) > 4 else (4.6, 3.2)
    width, height = width * columns + 0.8, height * rows + 1.2
    figure = drawing.figure(width, height)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    styles = _styles([curve for lines in drawn.values() for curve in lines])
    names, _ = _in_common(drawn)
    handles = {}
    for axis, name, lines in zip(axes.flat, names, drawn.values(), strict=False):
        for curve in lines:
            handles[curve.label] = axis.plot(*_columns(curve.points), **styles[curve.label])[0]
        axis.set_title(name, loc="left", fontsize=10.5, weight="bold")
        _dress(axis, "time")
    for number, axis in enumerate(axes.flat):
        _set_ticks(axis, "time", [nbytes for lines in drawn.values() for curve in lines for nbytes in curve.points])
        axis.set_visible(number < len(drawn))
        axis.tick_params(labelbottom=number + columns >= len(drawn))
        axis.set_xlabel("message size" if number + columns >= len(drawn) else "")
    named = [label for label in styles if label in handles]
    figure.legend(
        [handles[label] for label in named], named, loc="upper center", ncols=min(len(named), 2 * columns),
        frameon=False, bbox_to_anchor=(0.5, 1 - 0.34 / height), fontsize=10,
    )  # fmt: skip
    legend_lines = math.ceil(len(named) / (2 * columns))
    figure.subplots_adjust(
        left=0.75 / width, right=1 - 0.15 / width, bottom=0.62 / height, top=1 - (0.78 + 0.22 * legend_lines) / height,
        hspace=0.36 if rows > 1 else 0, wspace=0.08,
    )  # fmt: skip
    return figure


def _columns(points: Mapping[int, float]) -> tuple[list[int], list[float]]:
    return list(points), list(points.values())


def _in_common(drawn: Iterable[str]) -> tuple[list[str], str]:
    """Names of the groups without the words that all names have, and those words."""
    split = [name.split(", ") for name in drawn]
    common = [word for word in split[0] if all(word in words for words in split)]
    return [", ".join(word for word in words if word not in common) for words in split], ", ".join(common)


def _styles(lines: Iterable[Curve]) -> dict[str, dict[str, Any]]:
    """The style of each label; this library's lines are thick and in front if there are others."""
    labels = {curve.label: curve.emphasis for curve in lines}
    among_others = len(set(labels.values())) > 1
    made = {}
    for number, (label, ours) in enumerate(sorted(labels.items(), key=lambda item: not item[1])):
        colour, dashes = number % len(COLOURS), number // len(COLOURS)
        heavy = ours or not among_others
        made[label] = {
            "label": label, "color": COLOURS[colour], "marker": MARKERS[(colour + dashes) % len(MARKERS)],
            "linestyle": DASHES[dashes % len(DASHES)] if heavy or dashes else DASHES[1],
            "linewidth": 2.6 if ours else 1.7 if heavy else 1.3, "markersize": 5.5 if ours else 4.5,
            "zorder": 4 if ours else 3, "markeredgecolor": "white", "markeredgewidth": 0.5,
        }  # fmt: skip
    return made


def _dress(axis: Any, what: str) -> None:
    """Set the scales and the look of the axes, on which all lines are."""
    axis.set_xscale("log", base=2)
    if what == "time":
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.grid(True, which="major", color="0.86", linewidth=0.9)
    axis.grid(True, which="minor", color="0.94", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(length=0, which="both", labelsize=9)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.set_xlabel("message size", fontsize=9)


def _set_ticks(axis: Any, what: str, measured: Iterable[int]) -> None:
    """Set ticks and units of the axes, once their limits are known."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    low, high = axis.get_xlim()
    found = size_ticks(low, high, measured)
    axis.set_xticks(found, [size_name(nbytes) for nbytes in found])
    axis.xaxis.set_minor_locator(NullLocator())
    if what == "time":
        us = drawing.log_ticks(*axis.get_ylim())
        axis.set_yticks(us, [time_name(each) for each in us])
        axis.yaxis.set_minor_locator(LogLocator(base=10, subs=(2, 5), numticks=30))
        axis.yaxis.set_minor_formatter(NullFormatter())
    else:
        unit, factor = speed_unit(axis.get_ylim()[1])
        speeds = drawing.even_ticks(0.0, axis.get_ylim()[1])
        axis.set_yticks(speeds, [f"{speed / factor:g} {unit}" for speed in speeds])


def _name_lines(axis: Any, styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Write each line's label to the right of its end, moved up or down so that labels do not overlap."""
    ends = []
    for line in axis.get_lines():
        x, y = line.get_xdata()[-1], line.get_ydata()[-1]
        at = axis.transAxes.inverted().transform(axis.transData.transform((x, y)))
        ends.append((at[1], at[0], line.get_label()))
    ends.sort()
    for height, (y, x, label) in zip(spread([end[0] for end in ends], LABEL_GAP), ends, strict=True):
        style = styles[label]
        axis.annotate(
            label, xy=(x, y), xytext=(1.045, height), xycoords="axes fraction", textcoords="axes fraction",
            color=style["color"], va="center", fontsize=9.5, weight="bold" if style["linewidth"] > 2 else "normal",
            arrowprops={"arrowstyle": "-", "color": style["color"], "linewidth": 0.6, "shrinkA": 1, "shrinkB": 4,
                        "relpos": (0, 0.5)},
            annotation_clip=False,
        )  # fmt: skip


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places between 0 and 1, at least ``gap`` apart, near those in ``wanted``, which must ascend.

    Places that are too close join a cluster, which is centred on the mean of the wanted places of its members.
    """
    clusters: list[list[float]] = []  # wanted middle, number of members
    for place in wanted:
        clusters.append([place, 1])
        while len(clusters) > 1:
            (low, n), (high, m) = clusters[-2:]
            if high - low >= gap * (n + m) / 2:
                break
            clusters[-2:] = [[(low * n + high * m) / (n + m), n + m]]
    places = [middle + gap * (i - (n - 1) / 2) for middle, n in clusters for i in range(int(n))]
    for i in range(len(places)):
        places[i] = max(places[i], gap * i)
    for i in range(1, len(places) + 1):
        places[-i] = min(places[-i], 1 - gap * (i - 1))
    return places


# --- as text ------------------------------------------------------------------------------------------------------


def tty(lines: Iterable[Curve]) -> list[str]:
    """The latencies as bars of asterisks of logarithmic length, for a terminal; one comment per line."""
    shown = list(lines)
    times = [us for curve in shown for us in curve.points.values() if us > 0]
    if not times:
        return []
    low, high = math.log(min(times)), math.log(max(times))
    made = []
    for curve in shown:
        made += ["#", f"# {curve.group}, {curve.label}: us"]
        for nbytes, us in curve.points.items():
            length = 1 + round((BAR - 1) * (math.log(us) - low) / (high - low)) if us > 0 and high > low else 1
            made.append(f"# {size_name(nbytes):>8} {'*' * length} {us:.2f}")
    return made
