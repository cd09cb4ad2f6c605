"""Crossover maps: which algorithm wins for which number of ranks and which length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import drawing
from .winner import winner

__all__ = ["check", "draw"]

KINDS = (".png", ".svg", ".pdf")
HATCHES = ("", "///", "...")  # of the first eight winners, the next eight, and so on
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
    won = {kind: _winners([row for row in rows if row["collective"] == kind]) for kind in kinds}
    winners = {name for fields in won.values() for name, _ in fields.values()}
    names = [name for name in dict.fromkeys(row["algorithm"] for row in rows) if name in winners]
    styles = {name: _style(number) for number, name in enumerate(names)}
    for axis, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        _panel(axis, won[kind], sizes, lengths, styles)
        axis.set_title(kind, loc="left", weight="bold")
    handles = [Patch(label=name, **style) for name, style in styles.items()]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=max(1, min(len(handles), int(width // 1.9))), frameon=False
    )
    drawing.save(figure, path)


def _winners(rows: list[Mapping[str, Any]]) -> dict[tuple[int, int], tuple[str, float | None]]:
    """By ranks and length the winner, and how many times as long the next one takes; None if there is no next one."""
    fields: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        fields.setdefault((row["ranks"], row["bytes"]), []).append(row)
    won: dict[tuple[int, int], tuple[str, float | None]] = {}
    for place, here in fields.items():
        seconds = [row["seconds"] for row in here]
        best = winner(seconds, [row["changes"] for row in here])
        taken = seconds.pop(best)
        ratio = max(1.0, min(seconds) / taken) if seconds and taken > 0 else None
        won[place] = here[best]["algorithm"], ratio
    return won


def _style(number: int) -> dict[str, Any]:
    """The look of winner ``number``, which no other one has."""
    turn, colour = divmod(number, len(COLOURS))
    return {"facecolor": COLOURS[colour], "hatch": HATCHES[turn % len(HATCHES)], "edgecolor": "white"}


def _panel(
    axis: Any, won: Mapping[tuple[int, int], tuple[str, float | None]], sizes: list[int], lengths: list[int],
    styles: Mapping[str, Mapping[str, Any]],
) -> None:  # fmt: skip
    """Draw one collective."""
    from matplotlib.patches import Rectangle

    from ..bench.curves import size_name

    for (size, length), (name, ratio) in won.items():
        x, y, ground = sizes.index(size), lengths.index(length), styles[name]["facecolor"]
        axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **styles[name]))
        if ratio is not None:
            box = {"facecolor": ground, "edgecolor": "none", "pad": 1}  # no hatch behind the figures
            axis.text(x, y, f"{ratio:.2g}", ha="center", va="center", color=_ink(ground), fontsize=8, bbox=box)
    axis.set_xlim(-0.5, len(sizes) - 0.5)
    axis.set_ylim(-0.5, len(lengths) - 0.5)
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes], rotation=45)
    axis.set_yticks(range(len(lengths)), [size_name(length) for length in lengths])
    axis.set_xlabel("ranks")
    axis.set_ylabel("length of the vector")


def _ink(ground: str) -> str:
    """Black or white, whichever is easier to read on a colour."""
    red, green, blue = (int(ground[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"
