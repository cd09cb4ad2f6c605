"""Crossover maps: which algorithm wins for which number of ranks and which length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import drawing
from .winner import winner

__all__ = ["check", "draw"]

KINDS = (".png", ".svg", ".pdf")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999", "#F0E442")  # Okabe and Ito


def check(path: str | Path) -> None:
    """ValueError if ``path`` does not end in .png, .svg or .pdf; ImportError without matplotlib."""
    if Path(path).suffix not in KINDS:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(KINDS)}")
    drawing.require_matplotlib()


def draw(rows: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Draw a panel for each collective: a field for each number of ranks and length, in the colour of the winner.

    ``rows`` has a mapping for each algorithm, number of ranks and length, with the keys of ``simulate --json``. Of
    equal times :func:`collectives.simulation.winner.winner` names the winner. The number in a field is how many times
    as long the next one takes. OSError if ``path`` cannot be written; further errors as of :func:`check`.
    """
    check(path)
    from matplotlib.patches import Patch

    kinds = list(dict.fromkeys(row["collective"] for row in rows))
    sizes, lengths = (sorted({row[name] for row in rows}) for name in ("ranks", "bytes"))
    width = max(4.0, 2.6 + 0.75 * len(sizes) * len(kinds))
    figure = drawing.figure(width, 2.6 + 0.42 * len(lengths), layout="constrained")
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    won: set[str] = set()
    for axis, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        won |= _panel(axis, [row for row in rows if row["collective"] == kind], sizes, lengths, colours)
        axis.set_title(kind, loc="left", weight="bold")
    handles = [Patch(color=colours[name], label=name) for name in names if name in won]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=max(1, min(len(handles), int(width // 1.9))), frameon=False
    )
    drawing.save(figure, path)


def _panel(
    axis: Any, rows: list[Mapping[str, Any]], sizes: list[int], lengths: list[int], colours: Mapping[str, str]
) -> set[str]:
    """Draw one collective; returns the algorithms that win somewhere."""
    from ..bench.curves import size_name

    won = set()
    for x, size in enumerate(sizes):
        for y, length in enumerate(lengths):
            here = [row for row in rows if (row["ranks"], row["bytes"]) == (size, length)]
            if not here:
                continue
            seconds = [row["seconds"] for row in here]
            best = winner(seconds, [row["changes"] for row in here])
            name, taken = here[best]["algorithm"], seconds.pop(best)
            won.add(name)
            axis.add_patch(_field(x, y, colours[name]))
            if seconds and taken > 0:
                text = f"{max(1.0, min(seconds) / taken):.2g}"
                axis.text(x, y, text, ha="center", va="center", color=_ink(colours[name]), fontsize=8)
    axis.set_xlim(-0.5, len(sizes) - 0.5)
    axis.set_ylim(-0.5, len(lengths) - 0.5)
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes], rotation=45)
    axis.set_yticks(range(len(lengths)), [size_name(length) for length in lengths])
    axis.set_xlabel("ranks")
    axis.set_ylabel("length of the vector")
    return won


def _ink(ground: str) -> str:
    """Black or white, whichever is easier to read on a colour."""
    red, green, blue = (int(ground[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"


def _field(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white")
