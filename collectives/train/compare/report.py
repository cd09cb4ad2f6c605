"""The table of a comparison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from .training import Values


class Row(NamedTuple):
    """Medians over the seeds of one strategy, or of one process alone.

    ``lowest`` and ``highest`` are the accuracies of the worst and best seed. ``sent`` are bytes of a rank that trains.
    ``efficiency`` is the rate of samples divided by that of as many processes alone. ``time`` is the number of seconds
    to the target, infinite if the median training has not reached it; ``gain`` is that of the fastest process alone
    divided by it, NaN if neither is finite.
    """

    label: str
    accuracy: float
    lowest: float
    highest: float
    seconds: float
    steps: float
    sent: float
    efficiency: float
    time: float
    gain: float


def time_to(target: float, run: Values) -> float:
    """Seconds to the first record whose accuracy is at least `target`; infinite without one."""
    return next((record["seconds"] for record in run["records"] if record["accuracy"] >= target), math.inf)


def rows(runs: dict[str, list[Values]], alone: Sequence[str], target: float) -> list[Row]:
    """A row for each label, of its runs with several seeds. `alone` are the labels of one process.

    The first of `alone` has the batch of one rank, by which efficiency is measured.
    """
    rates = {label: statistics.median(run["samples"] / run["seconds"] for run in each) for label, each in runs.items()}
    times = {label: statistics.median(time_to(target, run) for run in each) for label, each in runs.items()}
    best = min(times[label] for label in alone)
    found = []
    for label, each in runs.items():
        accuracies = [run["accuracy"] for run in each]
        found.append(
            Row(
                label,
                statistics.median(accuracies),
                min(accuracies),
                max(accuracies),
                statistics.median(run["seconds"] for run in each),
                statistics.median(run["steps"] for run in each),
                statistics.median(run["records"][-1]["bytes"] for run in each),
                rates[label] / (each[0]["ranks"] * rates[alone[0]]),
                times[label],
                best / times[label] if math.isfinite(times[label]) else math.nan,
            )
        )
    return found


def table(found: Sequence[Row], target: float) -> str:
    """The rows as text."""
    heads = ("", "accuracy", "from-to", "seconds", "steps", "kB/rank", "efficiency", f"s to {target:g}", "gain")
    lines = [heads, *(_cells(row) for row in found)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.label, f"{row.accuracy:.4f}", f"{row.lowest:.3f}-{row.highest:.3f}", f"{row.seconds:.2f}",
        f"{row.steps:.0f}", f"{row.sent / 1000:.0f}", f"{row.efficiency:.2f}",
        f"{row.time:.2f}" if math.isfinite(row.time) else "not reached",
        f"{row.gain:.2f}" if math.isfinite(row.gain) else "-",
    )  # fmt: skip
