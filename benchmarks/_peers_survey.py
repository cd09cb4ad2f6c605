"""The summary of ``peers.py --collective``: a line for each collective, calls handed over to MPI apart, targets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from _peers_report import Mode, Ratio, Table, Target, size_name

MEAN, WORST = 0.75, 1.1


def ratios(table: Table, handed_over: bool) -> dict[int, Ratio]:
    """Our time divided by the best peer's, at the sizes that our library hands over to MPI, or at all others."""
    sizes = [n for n in table.rows if (table.algorithms.get(n) == "mpi") == handed_over]
    return {n: found for n in sizes if (found := table.ratio(n))}


def lines(tables: Sequence[Table]) -> list[str]:
    """The summary, worst first."""
    head = f"{'collective':32}{'geometric mean':>15}{'worst':>8} {'[interval]':14}{'at':>6}  algorithms"
    ours, handed = ([(table, ratios(table, kind)) for table in tables] for kind in (False, True))
    ours = sorted([pair for pair in ours if pair[1]], key=lambda pair: -worst(pair[1])[1].median)
    handed = [pair for pair in handed if pair[1]]
    shown = [head, *(line(*pair) + f"  {pair[0].runs_of_algorithms()}" for pair in ours)]
    if handed:
        shown += ["", "handed over to the MPI library", *(line(*pair) + f"  {why(*pair)}" for pair in handed)]
    return shown


def line(table: Table, found: Mapping[int, Ratio]) -> str:
    """The line of one collective: name, mean and worst ratio."""
    nbytes, most = worst(found)
    interval = f"[{most.low:.2f}, {most.high:.2f}]"
    return f"{table.mode.collective:32}{mean(found):15.3f}{most.median:8.2f} {interval:14}{size_name(nbytes):>6}"


def why(table: Table, found: Mapping[int, Ratio]) -> str:
    """Why calls were handed over to the MPI library, and at which sizes."""
    reasons: dict[str, list[str]] = {}
    for nbytes in found:
        reasons.setdefault(table.reasons.get(nbytes, ""), []).append(size_name(nbytes))
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())


def mean(found: Mapping[int, Ratio]) -> float:
    """Geometric mean over the sizes."""
    return statistics.geometric_mean([ratio.median for ratio in found.values()])


def worst(found: Mapping[int, Ratio]) -> tuple[int, Ratio]:
    """The highest ratio, and its size."""
    return max(found.items(), key=lambda item: item[1].median)


def conditions(table: Table) -> str:
    """The conditions that the tables of all collectives have in common."""
    return replace(table, mode=Mode(table.mode.place, table.mode.reuse)).title()


def targets(tables: Sequence[Table]) -> list[Target]:
    """The targets. In the mean, every collective has the same weight, for any number of sizes. The worst ratio includes
    calls that were handed over to MPI."""
    where = conditions(tables[0])
    if any(table.ratio(n) is None for table in tables for n in table.rows):
        return [Target(where, "every collective at every size", None, WORST)]
    means = [mean(ours) for table in tables if (ours := ratios(table, False))]
    highest = [(*worst({**ratios(table, True), **ratios(table, False)}), table) for table in tables]
    nbytes, most, table = max(highest, key=lambda found: found[1].median)
    return [
        Target(
            where,
            "geometric mean over the collectives that are ours",
            statistics.geometric_mean(means) if means else None,
            MEAN,
        ),
        Target(where, f"highest ratio ({table.mode.collective} at {size_name(nbytes)})", most.median, WORST),
    ]
