"""Schedules as pictures: a text grid, optionally with the contents of every block, and SVG.

Both show the rounds as the algorithm writes them, with all ranks side by side. Steps that are added for execution
(copies, and first reads redirected to the send buffer) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ..schedules.registry import ScheduleAlgorithm
from ..schedules.schedule import INPUT, RECEIVED, SCRATCH, VECTOR, Kind, Step
from .folds import rank_set
from .rounds import Frame, complete, frames, frames_without_values, initial, receives

__all__ = ["svg", "text"]

# --- text ---------------------------------------------------------------------------------------------------------

LEGEND = {
    ">": ">q   send to rank q",
    "<": "<q   receive from rank q",
    "+q": "+q   receive from rank q and reduce, own data on the left",
    "q+": "q+   receive from rank q and reduce, own data on the right",
    "=": "V=S0+V   reduce or copy on the rank itself (V: the vector, I: the input, S0, S1, ...: scratch)",
    "[": "[2] block 2, [2-4] blocks 2 to 4, [2<-0] from block 0 on; without brackets: the whole vector",
}


def text(
    algorithm: ScheduleAlgorithm,
    size: int,
    *,
    ranks: Sequence[int] | None = None,
    values: bool = False,
    root: int = 0,
) -> str:
    """A grid with a row for each round and a column for each rank (of ``ranks``, default all), and a legend.

    With ``values``, each round is followed by the contents of the blocks: the ranks whose contributions a block holds,
    with ``*`` if the round wrote the block.
    """
    ranks = range(size) if ranks is None else ranks
    nblocks = algorithm.blocks(size)
    shown = frames(algorithm, size, root) if values else frames_without_values(algorithm, size, root, ranks)
    cells: list[tuple[str, list[list[str]]]] = []
    rounds = 0
    for number, frame in enumerate(shown):
        rounds += 1
        row = [_cell(frame.steps[rank], nblocks) for rank in ranks]
        if any(row):
            cells.append((str(number), row))
            if values:
                cells.append(("", [_contents(frame, rank, size) for rank in ranks]))
    columns = [f"rank {rank}" for rank in ranks]
    width = max((len(line) for _, row in cells for cell in row for line in cell), default=0)
    width = max(width, max(map(len, columns))) + 2
    lines = [_title(algorithm, size, root, rounds), "", _line("round", columns, width)]
    for label, row in cells:
        lines.append("")
        for i in range(max(map(len, row))):
            lines.append(_line(label if i == 0 else "", [cell[i] if i < len(cell) else "" for cell in row], width))
    return "\n".join(lines + ["", *_legend(cells, values)]) + "\n"


def _title(algorithm: ScheduleAlgorithm, size: int, root: int, rounds: int) -> str:
    nblocks = algorithm.blocks(size)
    to = f"root {root}, " if algorithm.spec.rooted else ""
    head = f"{algorithm.collective} {algorithm.name}, p = {size}, {to}{nblocks} block{'s' * (nblocks != 1)}, "
    return head + (f"{rounds} round{'s' * (rounds != 1)}" if rounds else "no messages: the result is the input")


def _line(label: str, cells: Sequence[str], width: int) -> str:
    return (f"{label:>5}   " + "".join(f"{cell:<{width}}" for cell in cells)).rstrip()


def _legend(cells: list[tuple[str, list[list[str]]]], values: bool) -> list[str]:
    steps = [line for label, row in cells if label for cell in row for line in cell]
    signs = {
        ">": any(line.startswith(">") for line in steps),
        "<": any(line.startswith("<") for line in steps),
        "+q": any(line.startswith("+") for line in steps),
        "q+": any(line[0].isdigit() for line in steps),
        "=": any("=" in line for line in steps),
        "[": any("[" in line for line in steps),
    }
    shown = [LEGEND[sign] for sign, occurs in signs.items() if occurs]
    if values and steps:
        shown.append(
            "2: 0,3-5   block 2 holds the contributions of ranks 0, 3, 4, 5 (-: none); * written in this round"
        )
    return [f"  {line}" for line in shown]


def _cell(steps: list[Step], nblocks: int) -> list[str]:
    """The lines for the steps of one rank in one round; steps of the same kind and peer share a line."""
    merged: list[tuple[str, list[int], str, list[str]]] = []  # sign before, peers, sign after, blocks
    for step in steps:
        before, after = _signs(step)
        peers = [step.peer] if step.kind <= Kind.RECV_REDUCE else []
        blocks = [] if step.nblocks == nblocks else [_run(step.block, step.nblocks)]
        if step.kind is Kind.COPY and step.src_block != step.block:
            blocks = [f"{_run(step.block, step.nblocks)}<-{step.src_block}"]
        last = merged[-1] if merged else None
        if last and peers and (last[0], last[2]) == (before, after) and last[1] == peers:
            last[3].extend(blocks)
        elif last and peers and (last[0], last[2]) == (before, after) and last[3] == blocks:
            last[1].extend(peers)
        else:
            merged.append((before, peers, after, blocks))
    return [
        before + _peers(peers) + after + (f" [{','.join(blocks)}]" if blocks else "")
        for before, peers, after, blocks in merged
    ]


def _signs(step: Step) -> tuple[str, str]:
    """The text before and after the peer in the line of a step."""
    if step.kind is Kind.SEND:
        return ">", "" if step.left == VECTOR else f" {_buffer(step.left)}"
    if step.kind is Kind.RECV:
        return "<", "" if step.dst == VECTOR else f" {_buffer(step.dst)}"
    if step.kind is Kind.RECV_REDUCE:
        return ("", "+") if step.left == RECEIVED else ("+", "")
    right = f"+{_buffer(step.right)}" if step.kind is Kind.REDUCE else ""
    return f"{_buffer(step.dst)}={_buffer(step.left)}{right}", ""


def _buffer(buffer: int) -> str:
    return {INPUT: "I", VECTOR: "V"}.get(buffer, f"S{buffer - SCRATCH}")


def _peers(peers: list[int]) -> str:
    """The peers, in order; an ascending run as "first-last"."""
    if len(peers) > 2 and peers == list(range(peers[0], peers[-1] + 1)):
        return f"{peers[0]}-{peers[-1]}"
    return ",".join(map(str, peers))


def _run(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _contents(frame: Frame, rank: int, size: int) -> list[str]:
    everybody = (1 << size) - 1
    lines = []
    for block, ranks in enumerate(frame.values[rank]):
        written = any(_writes(step, block) for step in frame.steps[rank])
        whose = "all" if ranks == everybody else rank_set(ranks) or "-"
        lines.append(f"{block}: {whose}{'*' if written else ''}")
    return lines


def _writes(step: Step, block: int) -> bool:
    return step.dst == VECTOR and step.block <= block < step.block + step.nblocks


# --- SVG ----------------------------------------------------------------------------------------------------------

COLUMN, BAND, LEFT, TOP = 112, 92, 74, 74  # pixels between ranks, between rounds, and of the margins
STRIP = 80  # width in pixels of the strip of blocks of a rank
REDUCED, STORED, INK, FAINT = "#D55E00", "#0072B2", "#1a1a1a", "#8a8a8a"  # palette of Okabe and Ito; greys
SHADES = ("#e9eef2", "#26547c")  # a block with no contributions, and one with all
DONE = "#009E73"

STYLE = f"""
text {{ font: 13px 'DejaVu Sans', Verdana, Arial, Helvetica, sans-serif; fill: {INK}; }}
.title {{ font-size: 17px; font-weight: 600; }}
.head {{ font-weight: 600; text-anchor: middle; }}
.faint {{ fill: {FAINT}; font-size: 12px; }}
.label {{ font-size: 11.5px; text-anchor: middle; }}
.column {{ stroke: #c9ced3; stroke-width: 1.5; }}
.band {{ fill: #f5f7f9; }}
.reduced, .stored {{ fill: none; stroke-width: 2; }}
.reduced {{ stroke: {REDUCED}; marker-end: url(#head-reduced); }}
.stored {{ stroke: {STORED}; stroke-dasharray: 6 3; marker-end: url(#head-stored); }}
"""
MARKER = (
    '<marker id="head-{0}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 1L10 5L0 9z" fill="{1}"/></marker>'
)


def svg(algorithm: ScheduleAlgorithm, size: int, root: int = 0) -> str:
    """The rounds as an SVG picture: a vertical line for each rank, a band for each round, an arrow for each message.

    The strip on a rank's line is its vector. A block is the darker the more contributions it holds, and green when it
    holds all that it must hold at the end.
    """
    pictures = list(frames(algorithm, size, root))
    title, heads = _title(algorithm, size, root, len(pictures)), [f"rank {rank}" for rank in range(size)]
    parts = canvas(title, [f"round {number}" for number in range(len(pictures))], heads, below=92)
    bottom = TOP + BAND * len(pictures)
    nblocks = algorithm.blocks(size)
    for number, frame in enumerate(pictures):
        parts += _arrows(frame, TOP + BAND * number, nblocks)
    for number, values in enumerate([initial(algorithm, size, root), *(frame.values for frame in pictures)]):
        for rank in range(size):
            wanted = complete(algorithm, rank, size, root)
            parts.append(_strip(values[rank], wanted, column(rank), TOP + BAND * number, size))
    return "\n".join([*parts, *_svg_legend(bottom + 40), "</svg>"]) + "\n"


def canvas(title: str, bands: Sequence[str], heads: Sequence[str], *, below: int, indent: int = 20) -> list[str]:
    """The parts of an SVG picture behind its arrows: a band for each row, with its name, and a line for each column.

    ``below`` are the pixels for a legend, ``indent`` those before the names of bands. The last part, ``</svg>``, is the
    caller's.
    """
    width, bottom = max(LEFT + COLUMN * len(heads) + 20, 640), TOP + BAND * len(bands)
    height = bottom + below
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{STYLE}</style>",
        f"<defs>{MARKER.format('reduced', REDUCED)}{MARKER.format('stored', STORED)}</defs>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text class="title" x="20" y="30">{escape(title)}</text>',
    ]
    for number, name in enumerate(bands):
        y = TOP + BAND * number
        if number % 2 == 0:
            parts.append(f'<rect class="band" x="0" y="{y}" width="{width}" height="{BAND}"/>')
        parts.append(f'<text class="faint" x="{indent}" y="{y + BAND // 2 + 4}">{name}</text>')
    for number, head in enumerate(heads):
        x = column(number)
        parts.append(f'<text class="head" x="{x}" y="{TOP - 16}">{head}</text>')
        parts.append(f'<line class="column" x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}"/>')
    return parts


def column(rank: int) -> int:
    """The x of a rank's line."""
    return LEFT + COLUMN // 2 + COLUMN * rank


def _arrows(frame: Frame, y: int, nblocks: int) -> list[str]:
    """The messages of a round: one arrow for all messages between a pair of ranks, labelled with the blocks."""
    blocks: dict[tuple[int, int, str], list[str]] = {}
    for rank, steps in frame.steps.items():
        for step in steps:
            if receives(step):
                how = "reduced" if step.kind is Kind.RECV_REDUCE else "stored"
                runs = blocks.setdefault((step.peer, rank, how), [])
                runs += [] if step.nblocks == nblocks else [_run(step.block, step.nblocks)]
    lines, labels = [], []
    for (source, target, how), runs in blocks.items():
        x1, y1, x2, y2 = column(source), y + 12, column(target), y + BAND - 12
        what = f"block {','.join(runs)}" if runs else "the whole vector"
        title = f"<title>rank {source} to rank {target}: {what}, {how}</title>"
        lines.append(f'<line class="{how}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}">{title}</line>')
        if runs:
            along = min(0.3, 34 / math.hypot(x2 - x1, y2 - y1))  # near the sender, where few arrows cross
            lx, ly = x1 + along * (x2 - x1), y1 + along * (y2 - y1) + 4
            labels += _label(lx, ly, ",".join(runs))
    return lines + labels


def _label(x: float, y: float, words: str) -> list[str]:
    """Words on a white ground of their own: not every renderer draws the outline of letters behind them."""
    width = 8 * len(words) + 2
    ground = f'<rect x="{x - width / 2:.0f}" y="{y - 10:.0f}" width="{width}" height="12" fill="#fff"/>'
    return [ground, f'<text class="label" x="{x:.0f}" y="{y:.0f}">{words}</text>']


def _strip(values: list[int], wanted: list[int | None], x: int, y: int, size: int) -> str:
    """The strip of blocks of one rank between two rounds."""
    each = STRIP / len(values)
    cells = []
    for block, ranks in enumerate(values):
        title = f"<title>block {block}: {rank_set(ranks)}</title>"
        left = x - STRIP / 2 + block * each
        shade = _shade(ranks, size, wanted[block])
        cells.append(
            f'<rect x="{left:.1f}" y="{y - 6}" width="{each:.1f}" height="12" fill="{shade}" '
            f'stroke="#fff" stroke-width="{min(1.0, each / 8):.2f}">{title}</rect>'
        )
    frame = f'<rect x="{x - STRIP / 2}" y="{y - 6}" width="{STRIP}" height="12" fill="none" stroke="{FAINT}"/>'
    return "".join(cells) + frame


def _shade(ranks: int, size: int, wanted: int | None = None) -> str:
    """The colour of a block: between SHADES by the share of contributions, DONE if they are those wanted."""
    share = ranks.bit_count() / size
    if ranks == wanted:
        return DONE
    light, dark = ([int(shade[i : i + 2], 16) for i in (1, 3, 5)] for shade in SHADES)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(light, dark, strict=True))


def _svg_legend(y: int) -> list[str]:
    parts = []
    for x, how, words in ((20, "reduced", "sent, and reduced on arrival"), (300, "stored", "sent, and stored")):
        parts.append(f'<line class="{how}" x1="{x}" y1="{y}" x2="{x + 44}" y2="{y}"/>')
        parts.append(f'<text x="{x + 54}" y="{y + 4}">{words}</text>')
    for i in range(4):
        parts.append(f'<rect x="{20 + 11 * i}" y="{y + 20}" width="11" height="12" fill="{_shade((1 << i) - 1, 4)}"/>')
    parts.append(f'<text x="74" y="{y + 30}">blocks: the more contributions, the darker</text>')
    parts.append(f'<rect x="380" y="{y + 20}" width="22" height="12" fill="{DONE}"/>')
    parts.append(f'<text x="412" y="{y + 30}">complete</text>')
    return parts
