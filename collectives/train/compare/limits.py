"""What ``compare --check`` asks of accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..cli.choice import Choice
from .report import Row

SYNCHRONOUS = "allreduce"
LIMIT = 0.01  # by which the accuracy may be below that of synchronous training
LIMITS = {"easgd": 0.04, "async_easgd": 0.04}
ALONE = "nocomm"
BELOW = 0.5  # where the accuracy without communication must be


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
