"""``python -m collectives simulate --strategy``: how fast training goes on, and when to leave synchronous training."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from typing import Any, NamedTuple

from ..files import replacing, say_where
from ..train.cli.choice import Choice, assignments, choices, with_options
from ..train.cli.values import number, stragglers
from .strategies import Conditions, Pace, pace
from .values import seconds

__all__ = ["add_arguments", "break_even", "main"]

SYNCHRONOUS = Choice("allreduce", {})
LARGEST = 64.0  # the slowest straggler that is looked at, in steps of the others
NEAR = 1.01  # the factor within which the straggler is found at which a strategy begins to pay
BUSY = 0.9  # the share of its time from which on a server counts as a bottleneck


class Row(NamedTuple):
    """A strategy on so many ranks, for so many steps of the fastest one.

    ``speedup`` is its pace divided by that of all-reduces under the same conditions, ``pays_from`` is what `break_even`
    returns, ``took`` are the seconds of the simulation.
    """

    strategy: Choice
    ranks: int
    steps: int
    pace: Pace
    speedup: float
    pays_from: float | None
    took: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of strategies to those of ``simulate``."""
    group = parser.add_argument_group("strategies of training", "'python -m collectives train --list' names them")
    add = group.add_argument
    add("--strategy", type=choices, metavar="NAME,...",
        help="simulate these strategies, not algorithms; or NAME:OPTION=VALUE,...")  # fmt: skip
    add("--option", action="append", default=[], metavar="OPTION=VALUE",
        help="an option of all these strategies that have it")  # fmt: skip
    add("--servers", type=number(int, 1), metavar="K", help="the same as --option servers=K")
    add("--step", type=seconds, default=Conditions.step, metavar="TIME", help="time of a step's computation (100ms)")
    add("--straggler", type=stragglers, default={}, metavar="RANKxFACTOR", help="slower ranks: 1x4, or 1x4,2x1.5")
    add("--steps", type=number(int, 1), metavar="N", help="steps of the fastest rank (100; 20 on 1,000 ranks)")
    add("--price", type=number(float, 0, strict=True), default=1.0, metavar="X",
        help="steps that the strategy needs for one of allreduce, as compare measures them (%(default)s)")  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Simulate all strategies on all numbers of ranks; print a table and the answers. ValueError for what cannot be."""
    if len(args.nbytes) != 1:
        raise ValueError("--strategy takes one number of bytes, those of all parameters")
    strategies, rows = _strategies(args), []
    width = max(len(str(strategy)) for strategy in strategies) + 2
    print(f"{'strategy':<{width}}    p    steps/s  x allreduce  waiting   gap     lag  server busy")
    for size in args.sizes:
        for strategy in strategies:
            rows.append(_row(strategy, size, args))
            print(_line(rows[-1], width), flush=True)
    answers = [_answer(row, args.price) for row in rows if row.strategy != SYNCHRONOUS]
    print("", *answers, sep="\n")
    if args.json:
        about = {**dataclasses.asdict(_conditions(args)), "price": args.price}
        found = {"simulation": about, "results": [_values(row) for row in rows], "answers": answers}
        with replacing(args.json) as file:
            json.dump(found, file, indent=1, allow_nan=False)
        say_where(args.json)
    return 0


def _strategies(args: argparse.Namespace) -> list[Choice]:
    """All-reduces, and the strategies that are asked for. ValueError for options that none of them has."""
    given = assignments(args.option) | ({} if args.servers is None else {"servers": str(args.servers)})
    found, unknown = with_options(args.strategy, given)
    if unknown:
        raise ValueError(f"{', '.join(strategy.name for strategy in found)}: no option {unknown[0]!r}")
    for size in args.sizes:
        for strategy in found:
            strategy.pattern(size)  # now, not after minutes
    return [SYNCHRONOUS, *(strategy for strategy in found if strategy != SYNCHRONOUS)]


def _conditions(args: argparse.Namespace) -> Conditions:
    return Conditions(
        args.step, args.nbytes[0], args.alpha, args.beta, args.fold, args.jitter, args.straggler, args.seed
    )


def _row(strategy: Choice, size: int, args: argparse.Namespace) -> Row:
    begin, conditions = time.perf_counter(), _conditions(args)
    steps = args.steps or max(20, min(100, 20_000 // size))
    found = pace(strategy.pattern(size), size, conditions, steps)
    speedup, pays_from = 1.0, None
    if strategy != SYNCHRONOUS:
        other = pace(SYNCHRONOUS.pattern(size), size, conditions, steps)
        speedup = found.steps_per_second / other.steps_per_second
        pays_from = break_even(strategy, size, conditions, steps, args.price)
    return Row(strategy, size, steps, found, speedup, pays_from, time.perf_counter() - begin)


def break_even(strategy: Choice, size: int, conditions: Conditions, steps: int, price: float = 1.0) -> float | None:
    """How slow one rank must be for the strategy to make `price` steps in the time of one of all-reduces.

    That is a factor of the rank's computation, found by bisection; 1 if none need be slow, None if the strategy does
    not pay up to a factor of LARGEST. Stragglers of `conditions` are left out.
    """
    pattern, other = strategy.pattern(size), SYNCHRONOUS.pattern(size)
    slow = pattern.workers(size)[-1]

    def pays(factor: float) -> bool:
        these = dataclasses.replace(conditions, stragglers={slow: factor})
        found, reference = (pace(one, size, these, steps).steps_per_second for one in (pattern, other))
        return found >= price * reference

    if pays(1.0):
        return 1.0
    if not pays(LARGEST):
        return None
    low, high = 1.0, LARGEST
    while high > NEAR * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def _answer(row: Row, price: float) -> str:
    """When the strategy is faster than all-reduces, in words."""
    head = f"{row.ranks} ranks: {row.strategy} makes {row.speedup:.3g} times the steps of allreduce"
    if row.speedup > 1:
        head += f", and is ahead if it needs less than {row.speedup:.3g} times as many for the same accuracy"
    needs = f"if it needs {'as many' if price == 1 else f'{price:g} times as many'} steps,"
    if row.pays_from is None:
        tail = f"{needs} it does not pay, even with one rank that takes {LARGEST:g} times as long"
    elif row.pays_from == 1:
        tail = f"{needs} it pays without any straggler"
    else:
        tail = f"{needs} it pays as soon as one rank takes {row.pays_from:.2f} times as long"
    if row.pace.busiest is not None and row.pace.busiest > BUSY:
        tail += f"; a server is in use for {row.pace.busiest:.0%} of the time, so more servers would help"
    return f"{head}; {tail}."


def _line(row: Row, width: int) -> str:
    found = row.pace
    busy = "-" if found.busiest is None else f"{found.busiest:.1%}"
    return (
        f"{str(row.strategy):<{width}}{row.ranks:>5}{found.steps_per_second:>11.4g}{row.speedup:>13.3f}"
        f"{found.waiting:>9.1%}{found.gap:>6}{found.lag:>8.1f}{busy:>13}"
    )


def _values(row: Row) -> dict[str, Any]:
    """A row of ``--json``."""
    return {
        "strategy": row.strategy.name,
        "options": row.strategy.texts,
        "ranks": row.ranks,
        "steps": row.steps,
        **row.pace._asdict(),
        "times_allreduce": row.speedup,
        "pays_from_straggler": row.pays_from,
        "took": row.took,
    }
