"""The search: models from few sizes, then measurements where models cannot separate the best candidates.

A disturbance of the machine may last for seconds, and not slow all algorithms alike. So no decision rests on
measurements made at one time: sweeps for the models, and rounds of races, are repeated several times, with all other
collectives and lengths in between.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..schedules.registry import PRIVATE_LENGTHS
from ..selection.model import Model
from ..selection.policy import Limits, Rows
from .fit import Point, errors, fit
from .measure import Bench, Candidate
from .race import Result, interval, judged, race, shuffled

__all__ = ["SWEEPS", "VISITS", "Search", "rows_of"]

APART = 2  # models are fitted to every second size
TESTS = 4  # lengths between these, at which models are tested
SWEEPS = 25  # measurements of which a point is the median
HOPELESS = 3.0  # a candidate this many times slower than the best is measured in one of SELDOM sweeps
SELDOM = 5
UNSURE = 0.1  # relative error that is assumed of a model at least
MOST_RIVALS = 9  # candidates in a race, with the default; segments alone give many that are nearly equal
VISITS, ROUNDS = 8, 5  # of a race; no candidate is eliminated in the first visit


class Search:
    """The search for the rows of one collective, for vectors of about ``sizes`` bytes. All methods are collective."""

    def __init__(self, bench: Bench, collective: str, sizes: Sequence[int]):
        self.bench, self.collective = bench, collective
        self.lengths = bench.lengths(collective, list(sizes))
        self._to_fit = self.lengths[::APART]
        between = [math.isqrt(a * b) for a, b in itertools.pairwise(self._to_fit)]
        tests = bench.lengths(collective, between[len(between) % 2 :: max(1, len(between) // TESTS)]) if between else []
        self.swept = sorted({*self._to_fit, *tests})
        self._times: dict[int, dict[Candidate, list[float]]] = {nbytes: {} for nbytes in self.swept}
        self._races: dict[int, Result[Candidate]] = {}
        self._limits: Limits | None = None  # of the node-local engine, during the sweeps
        self.models: dict[Candidate, Model] = {}
        self.fitted: list[int] = []  # lengths that the models are fitted to
        self.errors: list[float] = []  # relative errors of the models at other lengths

    def sweep(self, number: int, deadline: float, step: Callable[[], None]) -> None:
        """Measure all candidates at the lengths for the models, for sweep ``number``; call ``step`` per length.

        Long vectors come first: if there is no time for all, the defaults serve short ones.
        """
        self._limits = self.bench.limits
        for nbytes in reversed(self.swept):
            if self.bench.over(deadline):
                break
            times = self._times[nbytes]
            left_out = _far_behind(times) if number % SELDOM else set()
            every = self.bench.candidates(self.collective, nbytes)
            for candidate in shuffled([c for c in every if c not in left_out], number):
                times.setdefault(candidate, []).append(self._seconds(nbytes, candidate))
            step()

    def _seconds(self, nbytes: int, candidate: Candidate) -> float:
        return self.bench.seconds(self.collective, candidate, nbytes)

    def fit(self, folds: Sequence[Point]) -> None:
        """Fit the models, and find their errors at lengths that they are not fitted to.

        Rank 0 does so: the others need not count what calls move, and may differ in the last bit of a float.
        """
        self.models, self.errors, self.fitted = self.bench.by_first(functools.partial(self._fitted, folds))
        if self.bench.limits == self._limits:
            self._races = {nbytes: run for nbytes in self.lengths if (run := self._swept(nbytes)) is not None}

    def _fitted(self, folds: Sequence[Point]) -> tuple[dict[Candidate, Model], list[float], list[int]]:
        """The models, their errors at other lengths than they are fitted to, and the lengths that they are fitted to.

        The lengths ascend.
        """
        points: dict[Candidate, list[Point]] = {}
        unseen: dict[Candidate, list[Point]] = {}
        for nbytes, found in self._times.items():
            for candidate, times in found.items():
                load = self.bench.load(self.collective, candidate, nbytes)
                point = Point(nbytes, load, float(np.median(times)))
                (points if nbytes in self._to_fit else unseen).setdefault(candidate, []).append(point)
        models: dict[Candidate, Model] = {}
        every: list[float] = []
        for candidate, each in points.items():
            model = fit([*_uncut(candidate, points), *each], folds)
            wrong = errors(model, unseen.get(candidate, []))
            every += wrong
            models[candidate] = Model(model.pieces, float(np.median(wrong)) if wrong else None)
        return models, every, sorted({p.nbytes for each in points.values() for p in each})

    def _swept(self, nbytes: int) -> Result[Candidate] | None:
        """The sweeps as the first rounds of a race; None unless all rivals were measured equally often."""
        found, rivals = self._times.get(nbytes, {}), self._rivals(nbytes)
        if not all(c in found and len(found[c]) == len(found[rivals[0]]) for c in rivals):
            return None
        return judged({c: list(found[c]) for c in rivals})

    def visit(self, number: int, deadline: float, step: Callable[[], None]) -> None:
        """Measure some more rounds of every race until ``deadline``; the order of lengths depends on ``number``."""
        known = self.fitted or [0]
        lengths = [nbytes for nbytes in self.lengths if min(known) / 2 <= nbytes <= 2 * max(known)]
        for i, nbytes in enumerate(shuffled(lengths, number)):
            now = self.bench.now()
            if now > deadline:
                break
            share = now + (deadline - now) / (len(lengths) - i)
            before, default = self._races.get(nbytes), self._default(nbytes)
            rivals = before.left if before is not None else self._rivals(nbytes)
            if rivals != [default]:
                self._races[nbytes] = race(
                    rivals, functools.partial(self._seconds, nbytes), least=ROUNDS + 1, most=ROUNDS,
                    enough=functools.partial(self.bench.over, share), before=before, beside=default,
                )  # fmt: skip
            elif before is None and self.bench.may_choose(self.collective, default):
                self._races[nbytes] = Result({c: [] for c in rivals}, rivals)
            step()

    def _rivals(self, nbytes: int) -> list[Candidate]:
        return contenders(self._expected(nbytes), self._default(nbytes))

    def _expected(self, nbytes: int) -> dict[Candidate, Expected]:
        made = functools.partial(expectations, self.bench, self.collective, nbytes, self.models, self.fitted)
        return self.bench.by_first(made)  # so that all ranks race the same rivals

    def _default(self, nbytes: int) -> Candidate:
        """What serves a length unless another is faster: the default; if that is left out, the best by the models.

        A collective that has one row for all lengths needs one for all, too: the best at the longest length.
        """
        default = self.bench.default(self.collective, nbytes)
        if self.bench.may_choose(self.collective, default):
            return default
        expected = self._expected(self.lengths[-1] if self.collective in PRIVATE_LENGTHS else nbytes)
        return min(expected, key=lambda c: expected[c].seconds, default=default)

    def rows(self) -> Rows:
        """The rows of the table that follow from all measurements; none where the defaults serve every length.

        A collective that has one row for all lengths gets it only if no length is :meth:`not_measured`.
        """
        choices = self._choices()
        if self.collective in PRIVATE_LENGTHS:
            measured = bool(choices) and None not in choices.values()
            return _one_row(self._default(0), self._run_to_end()) if measured else []
        longest = max((nbytes for nbytes, choice in choices.items() if choice is not None), default=-1)
        decisions = [(n, self._default(n) if c is None else c) for n, c in choices.items() if n <= longest]
        return rows_of(decisions, self.lengths[-1:] == [longest])

    def _choices(self) -> dict[int, Candidate | None]:
        """What each length gets, ascending; None, for which the default serves, where there was no time for its race.

        A single such length between two of the same choice gets that choice, and the longest that of the one before.
        """
        found: dict[int, Candidate | None] = dict.fromkeys(self.lengths)
        before: Candidate | None = None
        for nbytes, run in self._run_to_end().items():
            found[nbytes] = before = self._choice(nbytes, run, before)
        for i in range(1, len(self.lengths)):
            shorter, at, *longer = self.lengths[i - 1 : i + 2]
            if found[at] is None and all(found[nbytes] == found[shorter] for nbytes in longer):
                found[at] = found[shorter]
        return found

    def _choice(self, nbytes: int, run: Result[Candidate], before: Candidate | None) -> Candidate:
        """What a length gets whose race ended; ``before`` is the choice of the next shorter one, if any."""
        default = self._default(nbytes)
        chosen = run.winner(default, before)
        if chosen == default:
            chosen = self._likely(nbytes, run, default)
        if chosen != default and not run.steady(chosen, default, ROUNDS):
            chosen = run.steadiest(default, ROUNDS)
        return chosen

    def _run_to_end(self) -> dict[int, Result[Candidate]]:
        return {nbytes: run for nbytes, run in sorted(self._races.items()) if run.ended}

    def not_measured(self) -> str | None:
        """Which lengths the default serves because there was no time, as text; None if there are none."""
        choices = self._choices()
        if set(choices.values()) == {None}:
            return f"{self.collective} (any length)"
        groups = [list(g) for missing, g in itertools.groupby(self.lengths, lambda n: choices[n] is None) if missing]
        spans = [f"{g[0]} bytes" if len(g) == 1 else f"{g[0]} to {g[-1]} bytes" for g in groups]
        return f"{self.collective} ({', '.join(spans)})" if spans else None

    def spreads(self) -> list[float]:
        """How much each time varied from sweep to sweep: the interquartile range over the median."""
        every = [times for found in self._times.values() for times in found.values() if len(times) >= SELDOM]
        quarters = [np.percentile(times, (25, 50, 75)) for times in every]
        return [float((upper - lower) / middle) for lower, middle, upper in quarters]

    def _likely(self, nbytes: int, run: Result[Candidate], default: Candidate) -> Candidate:
        """The fastest candidate that beats the default both by its model and in the race; else the default.

        The models contribute what was measured at other lengths.
        """
        expected = self._expected(nbytes)
        likely = [
            c for c in run.left
            if c in expected and default in expected and expected[c].most < expected[default].least
            and np.median(run.ratios(c, default) or [1.0]) < 1 / (1 + UNSURE)
        ]  # fmt: skip
        return min(likely, key=lambda c: expected[c].seconds, default=default)


def _far_behind(times: dict[Candidate, list[float]]) -> set[Candidate]:
    """The candidates so slow that they are measured seldom."""
    medians = {c: float(np.median(each)) for c, each in times.items()}
    return {c for c, seconds in medians.items() if seconds > HOPELESS * min(medians.values())}


class Expected(NamedTuple):
    """Expected seconds of a candidate at a length, with bounds from the error of its model."""

    seconds: float
    least: float
    most: float


def expectations(
    bench: Bench, collective: str, nbytes: int, models: dict[Candidate, Model], fitted: Sequence[int]
) -> dict[Candidate, Expected]:  # fmt: skip
    """The expected times of all candidates that may be chosen, by models fitted to the lengths ``fitted``.

    If a piece of a model ends between two of these lengths, its exact end is unknown: the bounds cover both pieces.
    """
    after = bisect.bisect_left(fitted, nbytes)
    around = [nbytes] if nbytes in fitted else [nbytes, *fitted[max(0, after - 1) : after + 1]]
    found = {}
    for candidate in bench.candidates(collective, nbytes):
        if candidate in models and bench.may_choose(collective, candidate):
            model, load = models[candidate], bench.load(collective, candidate, nbytes)
            each, wrong = [model.seconds(load, n) for n in around], 1 + max(UNSURE, model.error or 0)
            found[candidate] = Expected(each[0], min(each) / wrong, max(each) * wrong)
    return found


def contenders(expected: dict[Candidate, Expected], default: Candidate) -> list[Candidate]:
    """The default, and candidates that may be faster by the models; only the default where it has no model."""
    if default not in expected:
        return [default]
    bound = min(e.most for e in expected.values())
    near = [c for c in sorted(expected, key=lambda c: expected[c].seconds) if expected[c].least <= bound]
    return [default, *(c for c in near if c != default)][:MOST_RIVALS]


def _uncut(candidate: Candidate, points: dict[Candidate, list[Point]]) -> list[Point]:
    """Points of the algorithm without segments, at lengths where the candidate has one segment."""
    if candidate.segment is None:
        return []
    return [p for p in points.get(Candidate(candidate.algorithm), []) if p.nbytes <= candidate.segment]


def rows_of(decisions: Sequence[tuple[int, Candidate]], complete: bool) -> Rows:
    """Rows from the decisions for ascending lengths; ``complete``: the last row is for all longer vectors too.

    A row ends at the geometric mean of two lengths. Up to the length of a segment, an algorithm is the same with and
    without segments.
    """
    runs: list[tuple[int, int, Candidate]] = []  # first and last length
    for nbytes, candidate in decisions:
        if runs:
            first, last, before = runs[-1]
            whole = before.segment is None and candidate.segment is not None and last <= candidate.segment
            if before == candidate or (before.algorithm == candidate.algorithm and whole):
                runs[-1] = first, nbytes, candidate
                continue
        runs.append((nbytes, nbytes, candidate))
    rows: Rows = []
    for i, (_, last, candidate) in enumerate(runs):
        upto = math.isqrt(last * runs[i + 1][0]) if i + 1 < len(runs) else last
        rows.append((None if complete and i + 1 == len(runs) else upto, *candidate))
    return rows


def _one_row(default: Candidate, races: dict[int, Result[Candidate]]) -> Rows:
    """One row for all lengths: another candidate than the default if it was eliminated at none and is mostly faster.

    The rounds of all lengths together may give the confidence that a single length does not. The candidate must also be
    steadily faster at most lengths.
    """
    run = [race for race in races.values() if race.times[race.left[0]]]
    good = set.intersection(*(set(race.left) for race in races.values()))
    others = [c for c in good if c != default and all(race.times.get(c) for race in run)]
    ratios = {c: [ratio for race in run for ratio in race.ratios(c, default)] for c in others}
    faster = {c: float(np.median(found)) for c, found in ratios.items() if interval(found)[1] < 1}
    if not faster:
        return [(None, *default)]
    best = min(faster, key=faster.__getitem__)
    steady = sum(r.steady(best, default, ROUNDS) for r in run) > len(run) / 2
    return [(None, *(best if steady else default))]
