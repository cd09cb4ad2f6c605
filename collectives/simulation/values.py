"""Values of the options of ``simulate``, and times as text."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from .network import Level

__all__ = ["duration", "factor", "levels", "part", "rate", "seconds", "several"]

TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def duration(value: float) -> str:
    """Seconds as text with a unit: ``12.3 us``."""
    unit, factor = next(((u, f) for u, f in TIMES.items() if value >= f), ("ns", 1e-9))
    return f"{value / factor:.4g} {unit}"


def seconds(text: str) -> float:
    """Parse a time: ``2us``, ``1.5ms``, ``300ns``, ``1s``."""
    number, unit = _split(text)
    if unit not in TIMES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2us, 1.5ms or 300ns")
    return number * TIMES[unit]


def rate(text: str) -> float:
    """Parse bytes per second: ``12GB/s``, ``200Mbit/s``, ``64KiB/s``."""
    number, unit = _split(text)
    if unit.endswith("b/s"):
        raise argparse.ArgumentTypeError(f"{text!r} may be bits or bytes: write bit/s or B/s")
    for power, letter in enumerate(("", "k", "m", "g", "t")):
        for name, base in ((letter, 1000), (f"{letter}i", 1024)):
            for what, bits in (("b/s", 1), ("bit/s", 8)):
                if unit.lower() == f"{name}{what}" and 0 < number * base**power < math.inf and 1 / number < math.inf:
                    return number * base**power / bits
    raise argparse.ArgumentTypeError(f"{text!r} is not a rate such as 12GB/s or 200Mbit/s")


def _split(text: str) -> tuple[float, str]:
    unit = text.strip().lstrip("0123456789.+-e ")
    try:
        return float(text.strip().removesuffix(unit)), unit
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with a number") from None


def part(text: str) -> float:
    """Parse a part: ``0.1`` or ``10%``."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 0.1 or 10%") from None


def several(parse: Callable[[str], int]) -> Callable[[str], list[int]]:
    """A parser of values joined by commas, each of which ``parse`` takes."""
    return lambda text: [parse(part) for part in text.split(",")]


def levels(text: str) -> tuple[Level, ...]:
    """Parse levels of switches: ``16:2,8:4``."""
    try:
        parts = [part.split(":") for part in text.split(",")]
        return tuple(Level(int(width), *map(float, over)) for width, *over in parts)
    except (ValueError, TypeError):  # TypeError: more than two numbers
        raise argparse.ArgumentTypeError(f"{text!r} is not levels of switches such as 16:2,8:4") from None


def factor(text: str) -> tuple[int, float]:
    """Parse a number and a factor: ``3:2.5``."""
    try:
        number, _, times = text.partition(":")
        return int(number), float(times)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number and a factor such as 3:2.5") from None
