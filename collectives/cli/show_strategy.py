"""``python -m collectives show --strategy``: who talks to whom after each step of training, as text and as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..analysis.draw import BAND, INK, REDUCED, STORED, TOP, canvas, column
from ..train.strategies.pattern import GRADIENTS, PARAMETERS, Action, Ask, Meet, Pattern, Post, Send

__all__ = ["Frame", "Message", "frames", "period", "svg", "text"]


class Message(NamedTuple):
    """What one rank sends to another; ``waits`` says whether the target waits for it."""

    source: int
    target: int
    what: str
    waits: bool


class Frame(NamedTuple):
    """Steps ``first`` to ``last``, after which ranks do the same: an all-reduce of ``meeting``, and ``messages``."""

    first: int
    last: int
    meeting: str | None
    messages: tuple[Message, ...]

    @property
    def name(self) -> str:
        """``step 3`` or ``steps 0-7``."""
        return f"step {self.first}" if self.first == self.last else f"steps {self.first}-{self.last}"


def frames(pattern: Pattern, size: int, steps: int) -> list[Frame]:
    """The first ``steps`` steps, or the first ones of them that are repeated (see `period`).

    Steps after each other that are alike are one frame.
    """
    repeated, found = period(pattern, size, steps), list[Frame]()
    for step in range(steps if repeated == 1 else repeated):
        content = _content(pattern, size, step)
        if found and found[-1][2:] == content:
            found[-1] = found[-1]._replace(last=step)
        else:
            found.append(Frame(step, step, *content))
    return found


def period(pattern: Pattern, size: int, steps: int) -> int:
    """The number of steps of which the first ``steps`` steps are repetitions, at least two; else ``steps``."""
    done = [_content(pattern, size, step) for step in range(steps)]
    return next((n for n in range(1, steps // 2 + 1) if done[n:] == done[:-n]), steps)


def _content(pattern: Pattern, size: int, step: int) -> tuple[str | None, tuple[Message, ...]]:
    """What a frame of one step has: what is all-reduced, and the messages."""
    done = [(rank, action) for rank in pattern.workers(size) for action in pattern.actions(rank, step)]
    meeting = next((_part(action.what, action.share) for _, action in done if isinstance(action, Meet)), None)
    return meeting, tuple(message for rank, action in done for message in _messages(rank, action))


def _messages(rank: int, action: Action) -> list[Message]:
    """The messages of an action of a rank; those that it waits for are their senders'."""
    if isinstance(action, Send):
        return [Message(rank, action.target, _part(action.what, action.share), True)]
    if isinstance(action, Post):
        return [Message(rank, target, _part(action.what, action.share), False) for target in action.targets]
    if isinstance(action, Ask):
        pushed, pulled = _part(action.what, action.share), _part(PARAMETERS, action.share)
        return [Message(rank, action.server, pushed, True), Message(action.server, rank, pulled, True)]
    return []


def _part(what: str, share: float) -> str:
    return what if share == 1 else f"{what}/{1 / share:.3g}"


def _title(name: str, pattern: Pattern, size: int, steps: int) -> str:
    count, repeated = len(pattern.servers), period(pattern, size, steps)
    serve, train = ("serves", " and trains") if count == 1 else ("serve", " and train")
    servers = f", {count} of them {serve}{train if pattern.beside else ''}" if count else ""
    return f"{name}, p = {size}{servers}{f', the same every {repeated} steps' if 1 < repeated < steps else ''}"


def _head(rank: int, pattern: Pattern) -> str:
    if rank not in pattern.servers:
        return f"rank {rank}"
    return f"rank {rank}, server" if pattern.beside else f"server {rank}"


def _answers(pattern: Pattern) -> str:
    """When a server answers, in words."""
    if pattern.staleness == 0:
        return "a server answers all when all have sent"
    if pattern.staleness == math.inf:
        return "a server answers at once"
    return f"a server answers a rank that is at most {pattern.staleness:g} steps ahead of the slowest"


# --- text -----------------------------------------------------------------------------------------------------------


def text(name: str, pattern: Pattern, size: int, steps: int, ranks: Sequence[int] | None = None) -> str:
    """A grid with a row for each frame and a column for each rank (of ``ranks``, default all), and a legend."""
    ranks = range(size) if ranks is None else ranks
    shown = frames(pattern, size, steps)
    rows = [(frame.name, [_cell(frame, rank, pattern, size) for rank in ranks]) for frame in shown]
    heads = [_head(rank, pattern) for rank in ranks]
    cells = [cell for _, row in rows for cell in row]
    width = max(len(line) for lines in (heads, *cells) for line in lines) + 2
    left = max(len(label) for label, _ in rows) + 3
    top = " " * left + "".join(f"{head:<{width}}" for head in heads)
    lines = [_title(name, pattern, size, steps), "", top.rstrip()]
    for label, row in rows:
        lines.append("")
        for i in range(max(1, *map(len, row))):
            beside = "".join(f"{cell[i] if i < len(cell) else '':<{width}}" for cell in row)
            lines.append(f"{label if i == 0 else '':<{left}}{beside}".rstrip())
    return "\n".join([*lines, "", *_legend([line for cell in cells for line in cell], pattern)]) + "\n"


def _cell(frame: Frame, rank: int, pattern: Pattern, size: int) -> list[str]:
    """The lines for a rank in a frame: peers with the same sign and the same content share one."""
    lines = [f"= {frame.meeting}"] if frame.meeting and rank in pattern.workers(size) else []
    grouped: dict[tuple[str, str], list[int]] = {}
    for message in frame.messages:
        if message.source == rank:
            grouped.setdefault((">", message.what), []).append(message.target)
    for message in frame.messages:
        if message.target == rank:
            grouped.setdefault(("<" if message.waits else "~", message.what), []).append(message.source)
    lines += [f"{sign}{_ranges(sorted(set(peers)))} {what}" for (sign, what), peers in grouped.items()]
    return lines or ["-"]


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, runs of three and more as first-last: ``0-3,7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else list(map(str, run)) for run in runs]
    return ",".join(part for several in parts for part in several)


def _legend(lines: list[str], pattern: Pattern) -> list[str]:
    signs = {
        "=": "=    take part in an all-reduce, and wait for it",
        ">": ">q   send to rank q",
        "<": "<q   wait for what rank q sends in this step",
        "~": "~q   use what rank q has sent, when it is there",
        "-": "-    send nothing",
    }
    shown = [words for sign, words in signs.items() if any(line.startswith(sign) for line in lines)]
    parts = sorted({line.rpartition("/")[2] for line in lines if "/" in line})
    shown += [f"/{part}   one of {part} equal parts" for part in parts]
    return [f"  {words}" for words in [*shown, *([_answers(pattern)] if pattern.servers else [])]]


# --- SVG ------------------------------------------------------------------------------------------------------------


def svg(name: str, pattern: Pattern, size: int, steps: int) -> str:
    """The frames as an SVG picture: a line for each rank, a band for each frame, an arrow for each message.

    Gradients are orange, parameters blue and dashed. An all-reduce is a bar across the ranks that take part.
    """
    rows = frames(pattern, size, steps)
    heads, below = [_head(rank, pattern) for rank in range(size)], 76 if pattern.servers else 56
    parts = canvas(_title(name, pattern, size, steps), [frame.name for frame in rows], heads, below=below, indent=12)
    for number, frame in enumerate(rows):
        parts += _drawn(frame, TOP + BAND * number, pattern, size)
    return "\n".join([*parts, *_svg_legend(TOP + BAND * len(rows) + 30, rows, pattern), "</svg>"]) + "\n"


def _drawn(frame: Frame, y: int, pattern: Pattern, size: int) -> list[str]:
    """The all-reduce and the messages of a frame; answers of servers are below the questions."""
    parts, asked = [], bool(pattern.servers)
    if frame.meeting is not None:
        middle, columns = y + BAND // 2, [column(rank) for rank in pattern.workers(size)]
        colour = _colour(frame.meeting)
        bar = f'x1="{columns[0]}" y1="{middle}" x2="{columns[-1]}" y2="{middle}" stroke="{colour}" stroke-width="5"'
        parts.append(f"<line {bar}><title>all-reduce: {frame.meeting}</title></line>")
        parts += [f'<circle cx="{x}" cy="{middle}" r="8" fill="{colour}"/>' for x in columns]
        parts.append(f'<text class="label" x="{sum(columns[:2]) // 2}" y="{middle - 10}">{frame.meeting}</text>')
    for message in frame.messages:
        top, end = y + 12, y + BAND - 12
        if asked:
            top, end = (top, y + BAND // 2) if message.target in pattern.servers else (y + BAND // 2, end)
        how = _how(message.what)
        title = f"<title>rank {message.source} to rank {message.target}: {message.what}</title>"
        x1, x2 = column(message.source), column(message.target)
        if x1 == x2:  # a server beside the rank
            parts.append(
                f'<circle cx="{x1}" cy="{(top + end) // 2}" r="4" fill="{_colour(message.what)}">{title}</circle>'
            )
        else:
            parts.append(f'<line class="{how}" x1="{x1}" y1="{top}" x2="{x2}" y2="{end}">{title}</line>')
    return parts


def _how(what: str) -> str:
    """The class of a line."""
    return "reduced" if what.startswith(GRADIENTS) else "stored"


def _colour(what: str) -> str:
    return REDUCED if what.startswith(GRADIENTS) else STORED


def _svg_legend(y: int, rows: list[Frame], pattern: Pattern) -> list[str]:
    """What the kinds of lines mean that there are."""
    sent = {_how(message.what) for frame in rows for message in frame.messages}
    kinds = (("reduced", GRADIENTS), ("stored", PARAMETERS))
    found = [(f'class="{how}"', words) for how, words in kinds if how in sent]
    if any(frame.meeting for frame in rows):
        found.append((f'stroke="{INK}" stroke-width="5"', "all-reduce"))
    parts = [] if found else [f'<text x="20" y="{y + 4}">no rank sends anything</text>']
    for x, (look, words) in zip(range(20, 500, 164), found, strict=False):
        parts.append(f'<line {look} x1="{x}" y1="{y}" x2="{x + 44}" y2="{y}"/>')
        parts.append(f'<text x="{x + 54}" y="{y + 4}">{words}</text>')
    if pattern.servers:
        parts.append(f'<text x="20" y="{y + 26}">{_answers(pattern)}</text>')
    return parts
