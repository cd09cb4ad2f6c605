"""The search: models from few sizes, then measurements where models cannot tell the best candidates apart."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..cost_model import Model
from ..select import PRIVATE_LENGTHS, Rows
from .fit import Point, fit, median_error
from .measure import Bench, Candidate
from .race import Result, race

__all__ = ["Found", "rows_of", "search"]

APART = 2  # models are fitted to every second size
QUICK = 3  # measurements that make up a point
HOPELESS = 3.0  # times the best: not measured at longer sizes
UNSURE = 0.2  # relative error that a model has at least, for all that is known
MOST_RIVALS = 9  # in a race, the default included: segments alone make many that are nearly alike
TESTS = 4  # lengths between the others, at which models are tested
SHARE = 0.5  # of the time, for the models


@dataclass
class Found:
    """What a search comes to: rows for the table, models, lengths that they were fitted to, races that were run."""

    rows: Rows = field(default_factory=list)
    models: dict[Candidate, Model] = field(default_factory=dict)
    fitted: list[int] = field(default_factory=list)
    races: dict[int, Result[Candidate]] = field(default_factory=dict)


def search(
    bench: Bench, collective: str, sizes: Sequence[int], folds: Sequence[Point], seconds: float,
    step: Callable[[], None] = lambda: None,
) -> Found:  # fmt: skip
    """Find the rows of a collective for vectors of these sizes, in about so many seconds; on all ranks together.

    ``step`` is called after each size. Sizes for which there is no time are left to the defaults.
    """
    begin = bench.agreed(time.monotonic())
    lengths = bench.lengths(collective, list(sizes))
    found = Found()
    points = _points(bench, collective, lengths[::APART], begin + SHARE * seconds, step)
    found.fitted = sorted({p.nbytes for each in points.values() for p in each})
    for candidate, each in points.items():
        found.models[candidate] = fit([*_uncut(candidate, points), *each], folds)
    found.models = bench.agreed(found.models)  # lest the last bit of a float divide the ranks
    _test(bench, collective, found, begin + SHARE * seconds, step)
    decisions: list[tuple[int, Candidate]] = []
    results: dict[int, list[Candidate]] = {}
    for number, nbytes in enumerate(lengths):
        now = bench.agreed(time.monotonic())
        if nbytes > 2 * max(found.fitted, default=-1) or now > begin + seconds:
            break
        share = now + (begin + seconds - now) / (len(lengths) - number)
        default = bench.default(collective, nbytes)
        rivals = contenders(bench, collective, nbytes, default, found.models)
        if len(rivals) > 1:
            measure = functools.partial(_seconds, bench, collective, nbytes)
            found.races[nbytes] = race(rivals, measure, enough=functools.partial(bench.over, share))
        result = found.races.get(nbytes, Result({c: [] for c in rivals}, rivals))
        results[nbytes] = result.left
        decisions.append((nbytes, result.winner(default, decisions[-1][1] if decisions else None)))
        step()
    complete = bool(decisions) and decisions[-1][0] == lengths[-1]
    if collective in PRIVATE_LENGTHS:
        found.rows = _one_row(bench.default(collective, 0), results, found.races) if complete else []
    else:
        found.rows = rows_of(decisions, complete)
    return found


def _seconds(bench: Bench, collective: str, nbytes: int, candidate: Candidate) -> float:
    return bench.seconds(collective, candidate, nbytes)


def _points(
    bench: Bench, collective: str, lengths: Sequence[int], deadline: float, step: Callable[[], None]
) -> dict[Candidate, list[Point]]:  # fmt: skip
    """Quick measurements of all candidates; of the hopeless ones at the shorter lengths only."""
    points: dict[Candidate, list[Point]] = {}
    hopeless: set[Candidate] = set()
    for nbytes in lengths:
        now = {}
        for candidate in bench.candidates(collective, nbytes):
            if candidate not in hopeless:
                times = [bench.seconds(collective, candidate, nbytes) for _ in range(QUICK)]
                now[candidate] = float(np.median(times))
        for candidate, seconds in now.items():
            load = bench.load(collective, candidate, nbytes)
            points.setdefault(candidate, []).append(Point(nbytes, load, seconds))
            if seconds > HOPELESS * min(now.values()) and len(points[candidate]) > 5:
                hopeless.add(candidate)
        step()
        if bench.over(deadline):
            break
    return points


def contenders(
    bench: Bench, collective: str, nbytes: int, default: Candidate, models: dict[Candidate, Model]
) -> list[Candidate]:  # fmt: skip
    """The default, and what may be faster by the models; beyond the lengths where it was measured nothing is."""
    expected = {
        c: models[c].seconds(bench.load(collective, c, nbytes), nbytes)
        for c in bench.candidates(collective, nbytes) if c in models and bench.may_choose(collective, c)
    }  # fmt: skip
    if default not in expected:
        return [default]
    error = {c: max(UNSURE, models[c].error or 0) for c in expected}
    bound = min(expected[c] * (1 + error[c]) for c in expected)
    near = [c for c in sorted(expected, key=expected.__getitem__) if expected[c] / (1 + error[c]) <= bound]
    return [default, *(c for c in near if c != default)][:MOST_RIVALS]


def _uncut(candidate: Candidate, points: dict[Candidate, list[Point]]) -> list[Point]:
    """What was measured of an algorithm in one segment, where a segment is not shorter than the vector."""
    if candidate.segment is None:
        return []
    return [p for p in points.get(Candidate(candidate.algorithm), []) if p.nbytes <= candidate.segment]


def _test(bench: Bench, collective: str, found: Found, deadline: float, step: Callable[[], None]) -> None:
    """Find what the models are wrong by at a few lengths between those that they were fitted to."""
    between = [math.isqrt(a * b) for a, b in itertools.pairwise(found.fitted)]
    chosen = bench.lengths(collective, between[len(between) % 2 :: max(1, len(between) // TESTS)]) if between else []
    unseen: dict[Candidate, list[Point]] = {}
    for nbytes in chosen:
        for candidate in bench.candidates(collective, nbytes):
            if candidate in found.models:
                seconds = float(np.median([bench.seconds(collective, candidate, nbytes) for _ in range(QUICK)]))
                load = bench.load(collective, candidate, nbytes)
                unseen.setdefault(candidate, []).append(Point(nbytes, load, seconds))
        step()
        if bench.over(deadline):
            break
    for candidate, model in found.models.items():
        found.models[candidate] = Model(model.pieces, median_error(model, unseen.get(candidate, [])))


def rows_of(decisions: Sequence[tuple[int, Candidate]], complete: bool) -> Rows:
    """Rows from what was decided for each length, in their order; ``complete``: the last one serves all longer ones.

    A row ends between two lengths, at their geometric mean. Up to the length of a segment an algorithm is the same with
    segments and without.
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


def _one_row(default: Candidate, left: dict[int, list[Candidate]], races: dict[int, Result[Candidate]]) -> Rows:
    """Where one choice serves all lengths: another than the default if it is never found slower, and mostly faster."""
    good = set.intersection(*map(set, left.values()))
    others = [c for c in good if c != default and all(race.times.get(c) for race in races.values())]
    if not races or default in good or not others:
        return [(None, *default)]

    def gain(candidate: Candidate) -> float:
        return float(np.mean([math.log(r.median(candidate) / r.median(default)) for r in races.values()]))

    best = min(others, key=gain)
    return [(None, *(best if gain(best) < 0 else default))]
