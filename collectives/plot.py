"""``python -m collectives plot FILE...``: latency and bandwidth by size, as a picture.

Colours are those of Okabe and Ito, told apart with any kind of colour vision; markers and dashes say it a second time,
and every line is named at its end.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .cli import UsageError
from .curves import Curve, curves, groups, read, size_name, time_name

__all__ = ["add_arguments", "curves", "draw", "main", "require_matplotlib", "tty"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^DvPX"
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)))
KINDS = (".png", ".svg", ".pdf")
LABEL_GAP = 0.052  # of a panel's height, between the middles of two labels
BAR = 40  # characters of the longest bar

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
    parser.add_argument("--title", help="above the picture (default: what was measured)")


def main(args: argparse.Namespace) -> int:
    """Draw; 0."""
    output = args.output or Path(args.files[0]).with_suffix(".png")
    try:
        draw([read(file) for file in args.files], output, args.title)
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    print(f"wrote {output}")
    return 0


def require_matplotlib() -> None:
    """Raise ImportError, naming the extra to install, without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("drawing needs matplotlib, which is not installed: pip install 'collectives[plot]'")


def draw(contents: Sequence[Mapping[str, Any]], path: str | Path, title: str | None = None) -> None:
    """Draw the curves of results files to ``path``, a .png, .svg or .pdf.

    ValueError where the name ends in something else or there is nothing to draw; OSError where it cannot be written;
    ImportError without matplotlib.
    """
    if Path(path).suffix not in KINDS:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(KINDS)}")
    drawn = groups(curve for content in contents for curve in curves(content) if _sized(curve))
    if not drawn:
        raise ValueError("nothing to draw: there are no messages of several sizes")
    require_matplotlib()
    import matplotlib

    style: Any = {"svg.hashsalt": "collectives", "svg.fonttype": "path", "font.family": "sans-serif", "font.size": 10}
    with matplotlib.rc_context(style):
        figure = _one(*next(iter(drawn.items()))) if len(drawn) == 1 else _several(drawn)
        if title or len(drawn) > 1:
            figure.suptitle(title or "Latency by message size", fontsize=13, weight="bold")
        figure.text(0.995, 0.004, _conditions(contents), ha="right", va="bottom", fontsize=7, color="0.4")
        dated = {".svg": "Date", ".pdf": "CreationDate"}.get(Path(path).suffix)
        figure.savefig(path, metadata={dated: None} if dated else None)  # the same file each time


def _sized(curve: Curve) -> bool:
    """Whether there are two points on logarithmic axes."""
    curve.points = {n: us for n, us in sorted(curve.points.items()) if n > 0 and us > 0}
    return len(curve.points) > 1


def _conditions(contents: Iterable[Mapping[str, Any]]) -> str:
    """Where it was measured."""
    machines = {(c["machine"]["cpu"], c["machine"]["cores"]) for c in contents if "machine" in c}
    return "; ".join(f"{cpu}, {cores} cores" for cpu, cores in sorted(machines))


# --- pictures -----------------------------------------------------------------------------------------------------


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150)  # no pyplot: nothing global, no display
    FigureCanvasAgg(figure)
    return figure


def _one(group: str, lines: list[Curve]) -> Any:
    """Latency and bandwidth side by side."""
    figure = _figure(11.5, 4.8)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.065, right=0.865, bottom=0.13, top=0.89, wspace=0.62)
    styles = _styles(lines)
    for curve in lines:
        left.plot(list(curve.points), list(curve.points.values()), **styles[curve.label])
        speeds = curve.bandwidths()
        right.plot(list(speeds), list(speeds.values()), **styles[curve.label])
    left.set_title(f"{group}: latency", loc="left", fontsize=12, weight="bold")
    right.set_title("bandwidth", loc="left", fontsize=12, weight="bold")
    _dress(left, "time")
    _dress(right, "speed")
    _name_lines(left, styles)
    _name_lines(right, styles)
    return figure


def _several(drawn: dict[str, list[Curve]]) -> Any:
    """A panel of latency for each group; the lines are named once, below the title."""
    columns = min(4, math.ceil(math.sqrt(len(drawn))))
    rows = math.ceil(len(drawn) / columns)
    figure = _figure(3.1 * columns + 0.6, 2.35 * rows + 1.0)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    styles = _styles([curve for lines in drawn.values() for curve in lines])
    for axis, (group, lines) in zip(axes.flat, drawn.items(), strict=False):
        for curve in lines:
            axis.plot(list(curve.points), list(curve.points.values()), **styles[curve.label])
        axis.set_title(group, loc="left", fontsize=10, weight="bold")
        _dress(axis, "time")
    for axis in axes.flat[len(drawn) :]:
        axis.set_visible(False)
    for axis in axes.flat:
        axis.label_outer()
    handles = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
    height = figure.get_size_inches()[1]
    figure.legend(
        list(handles.values()), list(handles), loc="upper center", ncols=min(6, len(handles)), frameon=False,
        bbox_to_anchor=(0.5, 1 - 0.32 / height), fontsize=10,
    )  # fmt: skip
    figure.subplots_adjust(
        left=0.75 / (3.1 * columns + 0.6), right=0.99, bottom=0.55 / height, top=1 - 0.95 / height, hspace=0.3,
        wspace=0.08,
    )  # fmt: skip
    return figure


def _styles(lines: Iterable[Curve]) -> dict[str, dict[str, Any]]:
    """How each label is drawn: ours, where there are others, in front and thick."""
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
    """Logarithmic axes in units that people read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(LogLocator(base=16, numticks=20))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_name(value)))
    axis.yaxis.set_major_locator(LogLocator(base=10, numticks=12))
    name = time_name if what == "time" else lambda value: f"{value:g} GB/s"
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: name(value)))
    axis.yaxis.set_minor_locator(LogLocator(base=10, subs=(2, 5), numticks=30))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(True, which="major", color="0.86", linewidth=0.9)
    axis.grid(True, which="minor", color="0.94", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(length=0, which="both", labelsize=9)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.set_xlabel("message size", fontsize=9)


def _name_lines(axis: Any, styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Write each line's name to the right of its end, moved up or down where two would overlap."""
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
            arrowprops={"arrowstyle": "-", "color": style["color"], "linewidth": 0.6, "shrinkA": 1, "shrinkB": 4},
            annotation_clip=False,
        )  # fmt: skip


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places as near to the wanted ones, which ascend, as they can be with a gap between neighbours.

    Neighbours that are too close join a cluster, which is centred on the mean of what its members want.
    """
    clusters: list[list[float]] = []  # mean of the wanted middle, number of members
    for place in wanted:
        clusters.append([place, 1])
        while len(clusters) > 1:
            (low, n), (high, m) = clusters[-2:]
            if high - low >= gap * (n + m) / 2:
                break
            clusters[-2:] = [[(low * n + high * m) / (n + m), n + m]]
    return [middle + gap * (i - (n - 1) / 2) for middle, n in clusters for i in range(int(n))]


# --- as text ------------------------------------------------------------------------------------------------------


def tty(lines: Iterable[Curve]) -> list[str]:
    """Bars of the logarithm of the latencies, as comments, for a terminal."""
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
