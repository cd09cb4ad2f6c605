"""Values of options: numbers within bounds, and ranks that are slower than others."""

from __future__ import annotations

import argparse
import math
from typing import Any


def number(kind: type, low: float, strict: bool = False) -> Any:
    """An argparse type: a finite number of `kind`, at least (or above) `low`."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {'an integer' if kind is int else 'a number'}") from None
        if not math.isfinite(value) or value < low or (strict and value == low):
            raise argparse.ArgumentTypeError(f"{text} is not {'above' if strict else 'at least'} {low:g}")
        return value

    return parse


def stragglers(text: str) -> dict[int, float]:
    """Parse ``1x4``: rank 1 takes 4 times as long for a step; several are joined by commas."""
    found = {}
    for part in text.split(","):
        rank, _, factor = part.partition("x")
        try:
            found[int(rank)] = float(factor)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} is not a rank and a factor such as 1x4") from None
        if not (int(rank) >= 0 and 0 < found[int(rank)] < math.inf):
            raise argparse.ArgumentTypeError(f"{part!r}: expected a rank from 0 on, and a finite factor above 0")
    return found
