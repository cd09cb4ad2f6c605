"""Checks a table: its choices compared with the best measured, with the default, and with its models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..selection.policy import Rules
from ..selection.table import Entry, Table, noted, pick
from .measure import Bench
from .progress import Progress
from .race import interval, shuffled

__all__ = ["HEADING", "Line", "as_json", "check", "summary", "told"]

FACTOR, MODEL = 1.1, 0.2  # the most that is right: tuned time over best time, and median error of the models
VISITS, ROUNDS = 8, 5  # for each length


@dataclass(frozen=True)
class Line:
    """One collective and length: seconds of the tuned choice, best and default calls, and ratios of times.

    ``best`` was selected from every second round and ``over_best`` measured in the others, so that luck does not make
    the best. Both ratios are 1 if the two calls are the same. ``at_least`` and ``at_most`` are the interval of
    ``over_default``. ``predicted`` and ``measured`` are seconds of the candidates ``names``, whose models were not
    fitted to this length, and only from measurements with ranks as far apart as for the table.
    """

    collective: str
    nbytes: int
    tuned: str
    seconds: float
    best: str
    over_best: float
    default: str
    over_default: float
    at_least: float
    at_most: float
    names: list[str]
    predicted: list[float]
    measured: list[float]

    @property
    def slower(self) -> bool:
        """Whether the tuned choice is slower than the default, by more than noise."""
        return self.at_least > 1.0 and self.over_default > 1.02

    def text(self) -> str:
        """The line as a row of the report."""
        wrong = [abs(a / b - 1) for a, b in zip(self.predicted, self.measured, strict=True)]
        error = f"{100 * float(np.median(wrong)):5.0f} %" if wrong else "      -"
        return (
            f"{self.collective:20} {self.nbytes:>10} {self.tuned:22} {self.seconds * 1e6:>10.2f} {self.best:22} "
            f"{self.over_best:>6.2f} {self.default:22} {self.over_default:>6.2f} {error}"
        )


HEADING = (
    f"{'collective':20} {'bytes':>10} {'tuned choice':22} {'us':>10} {'best measured':22} {'ratio':>6} "
    f"{'untuned default':22} {'ratio':>6} models"
)


class Measured:
    """The measurements of a check for one collective and length, made in several visits."""

    def __init__(self, bench: Bench, collective: str, nbytes: int):
        self.bench, self.collective, self.nbytes = bench, collective, nbytes
        self.every = bench.candidates(collective, nbytes)
        self.calls = {name: bench.call(collective, name, nbytes) for name in ("tuned", "default", *self.every)}
        self._times: dict[Any, list[float]] = {call: [] for call in self.calls.values()}
        self._there: dict[Any, list[float]] = {call: [] for call in self.calls.values()}  # with ranks where they were

    def visit(self) -> None:
        """Measure all calls in some more rounds; a call that has several names is measured once."""
        name_of = {call: name for name, call in reversed(self.calls.items())}
        for _ in range(ROUNDS):
            for call in shuffled(list(self._times), len(self._times[self.calls["tuned"]])):
                strayed = self.bench.strayed
                self._times[call].append(self.bench.seconds(self.collective, name_of[call], self.nbytes))
                if self.bench.strayed == strayed:
                    self._there[call].append(self._times[call][-1])

    def line(self, entry: Entry) -> Line:
        """The line of the report."""
        bench, collective, nbytes = self.bench, self.collective, self.nbytes
        times = {name: self._times[call] for name, call in self.calls.items()}
        allowed = [c for c in self.every if bench.may_choose(collective, c)]
        best = min(allowed, key=lambda c: float(np.median(times[c][::2])))
        ratios = np.divide(times["tuned"], times["default"]).tolist()
        unseen = nbytes not in (noted(entry, "fitted", dict).get(collective) or [])
        there = {c: self._there[self.calls[c]] for c in self.every}
        models = {c: entry.models.get((collective, c.algorithm, c.segment)) for c in self.every if unseen and there[c]}
        shown = [c for c, model in models.items() if model is not None]
        return Line(
            collective, nbytes, str(self.calls["tuned"][0]), float(np.median(times["tuned"])),
            str(best), float(np.median(np.divide(times["tuned"][1::2], times[best][1::2]))),
            str(self.calls["default"][0]), float(np.median(ratios)),
            *interval(ratios), [str(c) for c in shown],
            [m.seconds(bench.load(collective, c, nbytes), nbytes) for c in shown if (m := models[c]) is not None],
            [float(np.median(there[c])) for c in shown],
        )  # fmt: skip


def check(
    bench: Bench, table: Table, entry: Entry, names: Sequence[str], sizes: Sequence[int], seconds: float,
    show: Callable[[int], Progress],
) -> list[Line]:  # fmt: skip
    """Measure every collective at every size, in about ``seconds``. Collective over the ranks of ``bench``.

    All lengths are visited several times in turn, since a disturbance of the machine may last longer than one visit.
    If time is short, the longest vectors are left out. ``show`` makes the Progress for a number of steps.
    """
    bench.name("tuned", Rules(tuned=pick(Table([entry], table.path), bench.context.layout)))
    bench.name("default", Rules())
    jobs = sorted((n, name) for name in names for n in bench.lengths(name, list(sizes)))
    deadline = bench.now() + seconds
    found: list[Measured] = []
    progress = show(VISITS * len(jobs))
    for number in range(VISITS):
        progress.begin(f"all choices, {number + 1} of {VISITS}")
        for i, (nbytes, collective) in enumerate(jobs):
            if bench.over(deadline):
                break
            if number == 0:
                found.append(Measured(bench, collective, nbytes))
            found[i].visit()
            progress.step()
        jobs = jobs[: len(found)]
    progress.close()
    return bench.by_first(lambda: [measured.line(entry) for measured in found])


def summary(lines: Sequence[Line]) -> tuple[list[str], bool]:
    """The figures of the check as text, and whether all are within their limits."""
    far = [line for line in lines if line.over_best > FACTOR]
    slower = [line for line in lines if line.slower]
    faster = [line for line in lines if line.at_most < 1]
    wrong = [abs(a / b - 1) for line in lines for a, b in zip(line.predicted, line.measured, strict=True)]
    worst = max(lines, key=lambda line: line.over_best)
    text = [
        f"tuned over best measured: at most {worst.over_best:.2f} ({worst.collective}, {worst.nbytes} bytes); "
        f"above {FACTOR}: {len(far)} of {len(lines)}",
        f"tuned over default: slower with confidence {len(slower)}, faster {len(faster)} of {len(lines)}",
        f"models: {told(wrong)}",
    ]
    return text, not far and not slower and (not wrong or float(np.median(wrong)) <= MODEL)


def told(wrong: Sequence[float]) -> str:
    """The errors of models, as text."""
    error = f"median error {100 * float(np.median(wrong)):.0f} % of {len(wrong)}" if wrong else "no"
    return f"{error} predictions at lengths they were not fitted to"


def as_json(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The lines as objects for JSON. A bound that is infinite, since there were few rounds, is None: JSON has none."""
    return [
        {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in asdict(line).items()
        }
        for line in lines
    ]
