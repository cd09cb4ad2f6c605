"""What ``compare --check`` asks of accuracies, and of the pace where ranks are slow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..cli.choice import Choice
from .gains import SYNCHRONOUS, Gain
from .report import Row

LIMIT = 0.01  # by which the accuracy may be below that of synchronous training
LIMITS = {"easgd": 0.04, "async_easgd": 0.04}
ALONE = "nocomm"
BELOW = 0.5  # where the accuracy without communication must be
FREE = 0.8  # of the ideal pace, where nobody waits
BOUND = 1.25  # times the pace of synchronous training that a bound on staleness allows, or 1 / BOUND
JITTER = 0.5  # of what nobody's waiting would gain in pace, with a bound on staleness


def check_reference(choices: Sequence[Choice]) -> None:
    """Raise ValueError unless synchronous training is among the strategies."""
    if all(str(choice) != SYNCHRONOUS for choice in choices):
        raise ValueError(f"--check compares with {SYNCHRONOUS}, which is not among the strategies")


def misses(choices: Sequence[Choice], rows: Mapping[str, Row]) -> list[str]:
    """A line for each strategy that misses its limit. `rows` are those of a table, by the texts of the strategies."""
    reference, found = rows[SYNCHRONOUS].accuracy, []
    for choice in choices:
        accuracy, limit = rows[str(choice)].accuracy, LIMITS.get(choice.name, LIMIT)
        if choice.name == ALONE:
            if accuracy >= BELOW:
                found.append(f"{choice}: accuracy {accuracy:.4f} without communication is not below {BELOW}")
        elif round(reference - accuracy, 9) > limit:
            found.append(f"{choice}: accuracy {accuracy:.4f} is more than {limit} below {reference:.4f}")
    return found


def pace_misses(gains: Sequence[Gain], straggler: bool) -> list[str]:
    """A line for each strategy whose pace misses its limit. `straggler`: whether ranks are slow for good.

    Where nobody waits, the pace must be near the ideal one. With a bound on staleness, a rank that is slow for good
    sets the pace, and delays that pass are made up for in part. Of other strategies nothing is asked.
    """
    found = []
    for gain in gains:
        least, most = 0.0, math.inf
        if gain.staleness == math.inf:
            least = FREE * gain.ideal
        elif gain.staleness:
            least, most = (1 / BOUND, BOUND) if straggler else (1 + JITTER * (gain.ideal - 1), math.inf)
        if not least <= gain.measured <= most:
            asked = f"at least {least:.2f}" if most == math.inf else f"{least:.2f} to {most:.2f}"
            pace = f"{gain.measured:.2f} times the samples per second of {SYNCHRONOUS}"
            found.append(f"{gain.label}: {pace}, not {asked}")
    return found
