"""Command lines that all ranks parse, with errors printed by rank 0 only; parsers of option values."""

from __future__ import annotations

import argparse
import contextlib
import decimal
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..files import obstacle

__all__ = [
    "UsageError", "changed", "file_to_write", "number_of_bytes", "parsed", "quiet_beside_rank_0", "refused", "size",
    "sizes",
]  # fmt: skip


#: Seconds that other ranks wait for rank 0 to print the error: launchers end all ranks when one fails.
GRACE = 2.0
MOST_RANKS = 1 << 24  # of numbers of ranks in arguments: far above any machine, and still of use in memory


class UsageError(Exception):
    """The command line asks for something impossible; the command prints the message and exits with code 2."""


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """``parser.parse_args(argv)``; only rank 0 prints help or an error."""
    with quiet_beside_rank_0():
        return parser.parse_args(argv)


def changed(args: argparse.Namespace, names: Iterable[str]) -> str | None:
    """The first option of ``names`` whose value is not its default, as ``--in-flight``; None if there is none.

    ``args.parser`` is the parser of the command, as ``collectives.cli.commands`` sets it.
    """
    found = (name for name in names if getattr(args, name) != args.parser.get_default(name))
    return next((f"--{name.replace('_', '-')}" for name in found), None)


@contextlib.contextmanager
def quiet_beside_rank_0() -> Iterator[None]:
    """Within this context, suppress the output of all ranks but 0; delay their exit after an error by 2 s."""
    from .place import place

    if place()[0] == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        try:
            yield
        except SystemExit as leaving:
            if leaving.code:
                time.sleep(GRACE)
            raise


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Within this context, turn ValueError, ImportError and OSError into a UsageError with their message."""
    try:
        yield
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None


def file_to_write(text: str) -> Path:
    """Take the name of a file that a command writes at its end; an error now if it cannot be written."""
    why = obstacle(text)
    if why is not None:
        raise argparse.ArgumentTypeError(f"{text}: {why}")
    return Path(text)


def size(text: str) -> int:
    """Parse a number of ranks, from 1 to 2^24."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} ranks: there must be at least 1")
    if value > MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{value} ranks: expected at most {MOST_RANKS}")
    return value


def sizes(text: str) -> list[int]:
    """Parse numbers of ranks: ``6``, ``1:64`` (both ends included), ``2,4,8``, or several of these joined by commas."""
    found: list[int] = []
    for part in text.split(","):
        ends = [size(end) for end in part.split(":")]
        if len(ends) > 2 or ends[0] > ends[-1]:
            raise argparse.ArgumentTypeError(f"{part!r} is not a range of ranks such as 1:64")
        found.extend(range(ends[0], ends[-1] + 1))
    return found


def number_of_bytes(text: str) -> int:
    """Parse a number of bytes: ``100``, ``64KiB``, ``1.5MB`` (k, M, G are powers of 1000; Ki, Mi, Gi of 1024)."""
    number = text.strip().upper().removesuffix("B").strip()
    factor = 1
    for power, letter in enumerate("KMG", start=1):
        for unit, base in ((f"{letter}I", 1024), (letter, 1000)):
            if number.endswith(unit):
                number, factor = number.removesuffix(unit), base**power
    exact = decimal.Context(traps=[decimal.InvalidOperation, decimal.Inexact])  # 16.1 * 10**9 is no integer in floats
    try:
        value = exact.multiply(decimal.Decimal(number), factor)
    except ArithmeticError:
        value = decimal.Decimal(-1)
    if not value.is_finite() or not 0 <= value < 2**63 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes such as 100, 64KiB or 1.5MB")
    return int(value)
