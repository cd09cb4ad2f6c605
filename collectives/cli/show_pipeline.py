"""``python -m collectives show --pipeline``: which stage does what and when, as text and as SVG.

The picture is of the papers' model: equal stages, a backward pass twice as long as a forward pass, transfers that last
no time. Below it is what the proof and the clock count, beside what the schedule promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ..analysis.draw import INK, STYLE
from ..train.pipeline.instructions import Kind, PipelineSchedule
from ..train.pipeline.memory import Held
from ..train.pipeline.proof import verify
from ..train.pipeline.replay import Span, Timeline

__all__ = ["Picture", "picture", "svg", "text"]


class Picture(NamedTuple):
    """A schedule for so many stages and micro-batches, proved and timed; one unit of time is a forward pass."""

    schedule: PipelineSchedule
    micro_batches: int
    timeline: Timeline
    held: list[Held]

    @property
    def title(self) -> str:
        """The schedule and its numbers, in words."""
        schedule, stages = self.schedule, len(self.held)
        chunks = f", {_many(schedule.chunks, 'chunk')} a stage" if schedule.interleaved else ""
        return f"{schedule.name}, {_many(stages, 'stage')}{chunks}, {_many(self.micro_batches, 'micro-batch')}"


def picture(schedule: PipelineSchedule, stages: int, micro_batches: int) -> Picture:
    """Prove and time a schedule. ValueError if there is none for so many stages and micro-batches."""
    proof = verify(schedule, stages, micro_batches)
    return Picture(schedule, micro_batches, proof.timeline, proof.held)


def _many(number: int, what: str) -> str:
    plural = "es" if what.endswith("ch") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"


def _computations(spans: Sequence[Span]) -> list[Span]:
    return [span for span in spans if span.instruction.peer is None and span.instruction.kind is not Kind.STEP]


def _steps(spans: Sequence[Span]) -> set[float]:
    return {span.start for span in spans if span.instruction.kind is Kind.STEP}


# --- text -----------------------------------------------------------------------------------------------------------

LEGEND = {
    Kind.FORWARD: "F2    forward pass of micro-batch 2",
    Kind.BACKWARD: "B2==  backward pass, twice as long",
    Kind.BACKWARD_INPUT: "I2    the part of the backward pass that gives gradients of the input",
    Kind.BACKWARD_WEIGHT: "W2    the part of the backward pass that gives gradients of the weights",
    Kind.STEP: "|     a step of the optimizer",
}


def text(picture: Picture, stages: Sequence[int] | None = None) -> str:
    """A row for each stage (of ``stages``, default all), a column for each unit of time, a legend and the numbers."""
    timeline, stages = picture.timeline, range(len(picture.held)) if stages is None else stages
    spans = [span for stage in stages for span in timeline.stages[stage]]
    width = max(len(str(span.instruction)) for span in _computations(spans))
    left = max(len(f"stage {stage}") for stage in stages)
    rows = [f"{f'stage {stage}':{left}}  {_row(timeline, stage, width)}" for stage in stages]
    kinds = {span.instruction.kind for span in spans}
    legend = [line for kind, line in LEGEND.items() if kind in kinds]
    if picture.schedule.chunks > 1:
        legend.insert(0, "F2.1  the same in chunk 1; chunk 0 is not named")
        legend[:2] = legend[1::-1]
    legend = [f"  {line}" for line in legend]
    return "\n".join([picture.title, "", *rows, "", *legend, "", *_numbers(picture, stages)]) + "\n"


def _row(timeline: Timeline, stage: int, width: int) -> str:
    """The units of time of a stage, each ``width`` characters and a blank, or a bar where the stage steps."""
    spans = timeline.stages[stage]
    cells = ["." * width] * round(timeline.length)
    joints = [" "] * len(cells)
    for span in _computations(spans):
        first, after = round(span.start), round(span.end)
        cells[first:after] = [str(span.instruction).ljust(width)] + ["=" * width] * (after - first - 1)
        joints[first : after - 1] = "=" * (after - first - 1)
        if after - first > 1:
            cells[first] = cells[first].replace(" ", "=")
    for time in _steps(spans):
        joints[round(time) - 1] = "|"
    return "".join(cell + joint for cell, joint in zip(cells, joints, strict=True)).rstrip()


def _numbers(picture: Picture, stages: Sequence[int]) -> list[str]:
    """Idle time, and a table with what each stage holds; what is promised is beside what is counted."""
    schedule, held, micro_batches = picture.schedule, picture.held, picture.micro_batches
    counted, promised = picture.timeline.bubble, float(schedule.bubble(len(held), micro_batches))
    of = "stream" if schedule.flushless else "step"
    lines = [f"bubble: {counted:.1%} of the {of}; formula {schedule.bubble_formula}: {promised:.1%}", ""]
    columns = {
        f"activations, {schedule.activations_formula}": [
            (held[stage].activations, schedule.activations(stage, len(held), micro_batches)) for stage in stages
        ],
        f"versions of the weights, {schedule.versions_formula}": [
            (held[stage].versions, schedule.versions(stage, len(held))) for stage in stages
        ],
        f"staleness of a step, {schedule.staleness_formula}": [
            (max(held[stage].staleness), schedule.staleness(stage, len(held))) for stage in stages
        ],
    }
    left = max(len(f"stage {stage}") for stage in stages) + 2
    lines.append("at most".ljust(left) + "  ".join(columns))
    for row, stage in enumerate(stages):
        cells = [
            f"{found} of {most}".ljust(len(head)) for head, column in columns.items() for found, most in [column[row]]
        ]
        lines.append((f"stage {stage}".ljust(left) + "  ".join(cells)).rstrip())
    return lines


# --- SVG ------------------------------------------------------------------------------------------------------------

UNIT, ROW, LEFT, TOP = 30, 34, 80, 50  # pixels of a unit of time, of a stage, and of the margins
COLOURS = {  # palette of Okabe and Ito, lightened
    Kind.FORWARD: "#9ecae8",
    Kind.BACKWARD: "#f2b68c",
    Kind.BACKWARD_INPUT: "#f2b68c",
    Kind.BACKWARD_WEIGHT: "#9fd8c4",
}
WORDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward, gradients of the input",
    Kind.BACKWARD_WEIGHT: "backward, gradients of the weights",
}


def svg(picture: Picture) -> str:
    """A row for each stage, a box for each computation, darker in later chunks, a black bar for each step."""
    timeline, rows = picture.timeline, len(picture.held)
    numbers = [line.replace("  ", "\u00a0 ") for line in _numbers(picture, range(rows))]
    bottom = TOP + ROW * rows
    width = max(LEFT + UNIT * round(timeline.length) + 20, 640)
    height = bottom + 60 + 18 * len(numbers)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{STYLE}.numbers {{ font: 12px monospace; }}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text class="title" x="20" y="30">{escape(picture.title)}</text>',
    ]
    for stage, spans in enumerate(timeline.stages):
        parts += _boxes(spans, stage, picture.schedule.chunks)
    parts += _svg_legend(picture, bottom + 20)
    for line, words in enumerate(numbers):
        parts.append(f'<text class="numbers" x="20" y="{bottom + 62 + 18 * line}">{escape(words)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _boxes(spans: Sequence[Span], stage: int, chunks: int) -> list[str]:
    y = TOP + ROW * stage
    parts = [f'<text x="20" y="{y + 20}">stage {stage}</text>']
    for span in _computations(spans):
        instruction = span.instruction
        x, width = LEFT + UNIT * span.start, UNIT * (span.end - span.start)
        opacity = 1 - 0.5 * (chunks - 1 - instruction.chunk) / chunks
        title = f"<title>{instruction}, from {span.start:g} to {span.end:g}</title>"
        parts.append(
            f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{ROW - 6}" fill="{COLOURS[instruction.kind]}" '
            f'fill-opacity="{opacity:.2f}" stroke="#fff">{title}</rect>'
        )
        parts.append(f'<text class="label" x="{x + width / 2:g}" y="{y + 18}">{instruction.micro_batch}</text>')
    for time in sorted(_steps(spans)):
        x = LEFT + UNIT * time
        parts.append(
            f'<line class="step" x1="{x:g}" y1="{y}" x2="{x:g}" y2="{y + ROW - 6}" stroke="{INK}" stroke-width="3"/>'
        )
    return parts


def _svg_legend(picture: Picture, y: int) -> list[str]:
    kinds = {span.instruction.kind for spans in picture.timeline.stages for span in _computations(spans)}
    parts, x = [], 20
    for kind in (kind for kind in COLOURS if kind in kinds):
        parts.append(f'<rect x="{x}" y="{y - 11}" width="14" height="14" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 20}" y="{y}">{WORDS[kind]}</text>')
        x += 40 + 7 * len(WORDS[kind])
    parts.append(f'<line x1="{x}" y1="{y - 12}" x2="{x}" y2="{y + 4}" stroke="{INK}" stroke-width="3"/>')
    return [*parts, f'<text x="{x + 8}" y="{y}">step</text>']
