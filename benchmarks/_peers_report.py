"""Statistics, tables and targets of ``peers.py``."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.tune import race

CONFIDENCE = 0.95
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}

LIMIT_SIZE = 64 << 20  # where the passes over memory are measured
LIMIT_MEANING = "each reading s bytes and writing s bytes"
ENOUGH = 6  # rounds, for an interval of that confidence
Samples = Mapping[str, Sequence[float]]  # contestant: seconds in each round


# --- statistics ---------------------------------------------------------------------------------------------------


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Confidence interval of the median from order statistics; the whole range where the values are too few for one."""
    low, high = race.interval(values, (1 - confidence) / 2)
    return max(low, min(values)), min(high, max(values))


@dataclass(frozen=True)
class Ratio:
    """Our time divided by another's: the median over rounds and its confidence interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Compare round by round, so that a disturbance of the machine in a round affects both."""
    rounds = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Ratio(statistics.median(rounds), *median_interval(rounds))


def best(
    samples: Samples, names: Sequence[str], of: Callable[[Sequence[float]], float] = statistics.median
) -> str | None:
    """The contestant with the lowest median, or with the lowest value of another measure."""
    return min((name for name in names if name in samples), key=lambda name: of(samples[name]), default=None)


class Mode(NamedTuple):
    """A way of calling: in place or out of place, the same arrays in every call or rotating ones, the collective."""

    place: str
    reuse: str
    collective: str = "allreduce"

    def __str__(self) -> str:
        place = {"out": "out of place", "in": "in place"}[self.place]
        if self.collective != "allreduce":
            place = f"{self.collective}, {place}"
        return f"{place}, {dict(one='one buffer', rotating='rotating buffers')[self.reuse]}"


# --- tables -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """One contestant of ours beside all peers, under one set of conditions."""

    ranks: int
    cores: int
    ours: str  # contestant: private, heap or program
    mode: Mode
    rounds: int
    peers: Sequence[str]
    rows: Mapping[int, Samples]  # by bytes; contestants that failed are not in it
    limits: Sequence[str] = ()
    slow: Collection[tuple[int, str]] = ()  # sizes, and the peers that were too slow for the rounds there
    algorithms: Mapping[int, str] = field(default_factory=dict)  # of our library, by bytes, if they are known
    reasons: Mapping[int, str] = field(default_factory=dict)  # why these algorithms ran

    def title(self) -> str:
        """The conditions of the table, as text."""
        arrays = {"private": "private arrays", "heap": "heap arrays", "program": "unchanged program"}[self.ours]
        return f"{self.ranks} ranks, {arrays}, {self.mode}"

    def ratio(self, nbytes: int, prefixes: tuple[str, ...] = ("",)) -> Ratio | None:
        """Our time divided by that of the best of the peers whose names begin with one of ``prefixes``."""
        samples = self.rows[nbytes]
        peer = best(samples, [name for name in self.peers if name.startswith(prefixes)])
        return ratio(samples[self.ours], samples[peer]) if peer and self.ours in samples else None

    def limit_ratio(self, nbytes: int) -> Ratio | None:
        """Our time divided by that of the fastest pass over memory."""
        samples = self.rows.get(nbytes, {})
        limit = best(samples, self.limits)
        return ratio(samples[self.ours], samples[limit]) if limit and self.ours in samples else None

    def minima(self, nbytes: int) -> float | None:
        """Our shortest time divided by the shortest time of all peers."""
        samples = self.rows[nbytes]
        peer = best(samples, self.peers, min)
        return min(samples[self.ours]) / min(samples[peer]) if peer and self.ours in samples else None

    def mean(self, ratios: Sequence[float | None]) -> float | None:
        """Geometric mean over the sizes; None unless all were measured."""
        found = [value for value in ratios if value is not None]
        return statistics.geometric_mean(found) if found and len(found) == len(self.rows) else None

    def mean_ratio(self) -> float | None:
        """Geometric mean of the median ratios."""
        return self.mean([found.median if found else None for found in map(self.ratio, self.rows)])

    def head(self) -> str:
        """The names of the columns up to the peers."""
        return f"{'bytes':>6}{'ours':>8}{'best':>9}" + "".join(f"{name:>8}" for name in self.peers)

    def medians(self) -> list[str]:
        """The table in medians."""
        interval = "[95 %]" if self.rounds >= ENOUGH else "[range]"
        lines = [self.head() + f"{'ours/best ' + interval:>20}"]
        for nbytes in self.rows:
            lines.append(self.row(nbytes, statistics.median) + f" {str(self.ratio(nbytes) or '-'):>19}")
        lines.append(mean_line(self.mean_ratio()))
        return lines + ([f"algorithms of ours: {names}"] if (names := self.runs_of_algorithms()) else [])

    def lines(self) -> list[str]:
        """The table in medians, then in minima."""
        lines = [f"{self.title()}: us, medians of {self.rounds} rounds", *self.medians()]
        lines += ["", f"{self.title()}: us, minima", self.head() + f"{'ours/best':>20}"]
        minima = {nbytes: self.minima(nbytes) for nbytes in self.rows}
        for nbytes, value in minima.items():
            lines.append(self.row(nbytes, min) + (f"{value:20.2f}" if value else f"{'-':>20}"))
        lines.append(mean_line(self.mean(list(minima.values()))))
        return lines

    def runs_of_algorithms(self) -> str:
        """The algorithms by size: "shm up to 16Mi, ring up to 64Mi"."""
        runs = [list(group) for _, group in itertools.groupby(self.algorithms.items(), key=lambda item: item[1])]
        named = [(run[-1][1], size_name(run[-1][0])) for run in runs if run[-1][1]]
        return named[0][0] if len(runs) == len(named) == 1 else ", ".join(f"{name} up to {n}" for name, n in named)

    def row(self, nbytes: int, of: Callable[[Sequence[float]], float]) -> str:
        """Size, ours, the best peer's name, and each peer's time."""
        samples = self.rows[nbytes]
        times = [f"{self.cell(nbytes, name, of):>8}" for name in (self.ours, *self.peers)]
        peer = best(samples, self.peers, of) or "-"
        return f"{size_name(nbytes):>6}{times[0]}{peer:>9}" + "".join(times[1:])

    def cell(self, nbytes: int, name: str, of: Callable[[Sequence[float]], float]) -> str:
        """A contestant's time; "slow" if it was left out, "-" if it is missing."""
        if name in self.rows[nbytes]:
            return micro(of(self.rows[nbytes][name]))
        return "slow" if (nbytes, name) in self.slow else "-"


def mean_line(mean: float | None) -> str:
    """The line under a table."""
    return f"geometric mean of the ratios {'-' if mean is None else f'{mean:.3f}'}"


def limit_lines(table: Table, nbytes: int) -> list[str]:
    """Times of the passes over memory, and their bytes per second over all ranks; for shared arrays only."""
    lines = []
    for name in table.limits if table.ours != "private" else ():
        if seconds := table.rows.get(nbytes, {}).get(name):
            middle = statistics.median(seconds)
            speed = 2 * nbytes * table.ranks / middle / 1e9
            lines.append(f"  {name:6}{micro(middle):>8} us  {speed:6.1f} GB/s over all ranks")
    if lines:
        lines.insert(0, f"memory limit at {size_name(nbytes)}, {table.ranks} ranks at once, {LIMIT_MEANING}:")
    return lines


def micro(seconds: float) -> str:
    """Microseconds, with three digits or all before the point."""
    us = seconds * 1e6
    return f"{us:.2f}" if us < 9.995 else f"{us:.1f}" if us < 99.95 else f"{us:.0f}"


def size_name(nbytes: int) -> str:
    """8, 16Ki, 64Mi."""
    for unit, factor in reversed(UNITS.items()):
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes // factor}{unit}"
    return str(nbytes)


def parse_size(text: str) -> int:
    """Bytes of '8', '16Ki', '64MiB'; ValueError for what is no size of whole float32."""
    number, factor = text.strip().removesuffix("B"), 1
    for unit in UNITS:
        if number.endswith(unit):
            number, factor = number.removesuffix(unit), UNITS[unit]
    nbytes = int(number) * factor
    if nbytes < 4 or nbytes % 4:
        raise ValueError(f"{text}: not a positive multiple of 4 bytes")
    return nbytes


# --- targets ------------------------------------------------------------------------------------------------------


class Target(NamedTuple):
    """A figure and the most that it may be; None where it was not measured."""

    where: str
    what: str
    value: float | None
    most: float

    @property
    def verdict(self) -> str:
        """PASS, FAIL or not measured."""
        if self.value is None:
            return "not measured"
        return "PASS" if self.value <= self.most else "FAIL"

    def __str__(self) -> str:
        value = "-" if self.value is None else f"{self.value:.3f}"
        return f"{self.verdict:12}  {value:>7}, at most {self.most:<4g}  {self.what}"


def targets(table: Table) -> list[Target]:
    """What the figures of a table should be."""
    found = {n: r for n in table.rows if (r := table.ratio(n))}
    mean = table.mean_ratio()
    goals: list[tuple[str, float | None, float]] = []
    if all(name.startswith("before") for name in table.peers):
        least, at = max(((r.low, size_name(n)) for n, r in found.items()), default=(None, "-"))
        goals += [(f"lower end of the interval, the highest (at {at})", least, 1.05)]
        goals += [("geometric mean of the ratios", mean, 1.02)]
    elif table.ranks == 2:
        if table.ours == "private":
            most = max((r.median for r in found.values()), default=None)
            goals += [(worst(found), most if len(found) == len(table.rows) else None, 1.05)]
            goals += [("geometric mean of the ratios", mean, 0.62)]
        else:
            limit = table.limit_ratio(LIMIT_SIZE)
            goals += [("geometric mean of the ratios", mean, 0.2)]
            goals += [("64Mi, ratio to the memory limit", limit.median if limit else None, 1.5)]
        if table.mode.reuse == "one":
            ours = table.rows.get(8, {}).get(table.ours)
            goals += [("8 bytes, us", statistics.median(ours) * 1e6 if ours else None, 0.35)]
    elif table.ranks == 4 and table.cores < 4 and table.ours == "private":
        strongest = ("ompi", "impi")
        small = {n: r for n in table.rows if n <= 64 and (r := table.ratio(n, strongest))}
        most = max((r.median for r in small.values()), default=None)
        goals += [(worst(small) + " of ompi and impi up to 64 bytes", most, 1.1)]
        goals += [("geometric mean of the ratios", mean, 0.6)]
    return [Target(table.title(), what, value, most) for what, value, most in goals]


def worst(found: Mapping[int, Ratio]) -> str:
    """Where the ratio is highest."""
    if not found:
        return "highest ratio"
    return f"highest ratio (at {size_name(max(found, key=lambda n: found[n].median))})"
