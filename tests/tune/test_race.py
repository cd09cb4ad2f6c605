"""How the command tune finds what is fastest, on simulated machines: races, and the search that holds them."""

import math
import random
import re
from types import SimpleNamespace

import numpy as np
import pytest

from collectives.selection.model import Load
from collectives.tune.measure import Bench, Candidate
from collectives.tune.race import Result, interval, judged, race
from collectives.tune.search import Search, _one_row, rows_of


def test_the_interval_of_a_median():
    assert interval([1.0] * 6) == (-math.inf, math.inf)  # a coin shows 6 heads once in 64
    values = list(range(1, 8))
    assert interval(values) == (1, 7)
    assert interval(list(range(25))) == (6, 18)
    draw = random.Random(2)
    wrong = sum(
        not low <= 0 <= high for low, high in (interval([draw.gauss(0, 1) for _ in range(15)]) for _ in range(2000))
    )
    assert wrong / 2000 < 0.02


class Noise:
    """A machine that takes so long for each candidate, give or take; what slows it down lasts some rounds."""

    def __init__(self, seconds, spread, seed):
        self.seconds, self.spread, self.draw, self.calls = seconds, spread, random.Random(seed), 0
        self.slow = 1.0

    def __call__(self, candidate):
        self.calls += 1
        if self.draw.random() < 0.1:
            self.slow = self.draw.choice([1, 1, 3])
        return self.seconds[candidate] * self.slow * self.draw.lognormvariate(0, self.spread)


def test_a_default_is_replaced_only_by_what_is_faster():
    wrong = 0
    for seed in range(300):
        result = race("dab", Noise({"d": 1.0, "a": 1.0, "b": 1.5}, 0.1, seed))
        wrong += result.winner("d") != "d"
    assert wrong / 300 < 0.1


def test_what_is_faster_is_found_with_few_measurements():
    for seed in range(100):
        machine = Noise({"d": 1.3, "a": 1.0, "b": 2.0, "c": 1.6}, 0.05, seed)
        result = race("dabc", machine)
        assert result.winner("d") == "a"
        assert result.winner("d", preferred="b") == "a"
        assert machine.calls < 4 * 25  # as many as 25 rounds of all
    close = race("da", Noise({"d": 1.2, "a": 1.0}, 0.01, 1))
    assert len(close.times["d"]) < 10


def test_the_choice_of_before_is_kept_where_nothing_is_better():
    result = race("dab", Noise({"d": 2.0, "a": 1.0, "b": 1.001}, 0.05, 3))
    assert result.winner("d", preferred="b") == "b"
    assert result.winner("d", preferred="a") == "a"


def test_a_race_ends_when_time_is_up():
    machine = Noise({"d": 2.0, "a": 1.0}, 0.01, 4)
    result = race("da", machine, enough=lambda: machine.calls >= 6)
    assert machine.calls == 6
    assert result.winner("d") == "d"  # three rounds prove nothing


def test_a_race_goes_on_where_it_was_left():
    """Nobody leaves in the first visit, however slow; what slows one down in one visit only does not decide."""
    slow = Noise({"d": 1.0, "a": 1.1, "b": 5.0}, 0.01, 5)
    first = race("dab", slow, least=8, most=7)
    assert first.left == list("dab")
    assert [len(times) for times in first.times.values()] == [7, 7, 7]
    second = race(first.left, Noise({"d": 2.0, "a": 1.0, "b": 5.0}, 0.01, 6), least=8, most=7, before=first)
    assert set(second.left) == set("da")
    assert len(second.times["d"]) == 14
    third = race(second.left, Noise({"d": 2.0, "a": 1.0}, 0.01, 7), least=8, most=40, before=second)
    assert third.left == ["a"]


def test_what_is_faster_at_times_only_replaces_nothing():
    """The default is measured after it has left, too: on a machine that changes its ways now and then."""
    result, ways = None, [{"d": 2.0, "a": 1.0}] * 4 + [{"d": 1.0, "a": 2.0}]
    for seconds in ways:
        result = race("da", seconds.__getitem__, least=6, most=5, before=result, beside="d")
    assert result.left == ["a"]
    assert len(result.times["d"]) == len(result.times["a"]) == 25
    assert not result.steady("a", "d", 5)
    result.times["a"] = result.times["a"][:20]
    assert result.steady("a", "d", 5)


def test_the_second_best_replaces_the_default_where_the_best_is_not_steady():
    slow, best, second = [2.0] * 20, [1.0] * 15 + [2.1] * 5, [1.3] * 15
    result = Result({"d": slow, "a": best, "b": second, "c": [2.01] * 20}, ["a"])
    assert not result.steady("a", "d", 5)
    assert result.steadiest("d", 5) == "b"
    assert Result({"d": slow, "a": best}, ["a"]).steadiest("d", 5) == "d"


@pytest.mark.parametrize(("times", "steady"), [(4, False), (9, True)])
def test_once_in_ten_times_is_noise(times, steady):
    ratios = [0.7] * 5 * times + [1.01, 1.02, 1.03, 0.7, 0.7]
    assert Result({"d": [1.0] * len(ratios), "a": ratios}, ["a"]).steady("a", "d", 5) is steady


class Simulated:
    """The parts of a bench that a search of scans uses, on a machine whose clock is that of what it measures.

    From ``slow_from`` bytes on a call of the default takes five times as long to start.
    """

    limits = None

    def __init__(self, slow_from=math.inf):
        self.clock, self.draw, self.slow_from = 0.0, random.Random(6), slow_from

    def now(self):
        return self.clock

    def over(self, deadline):
        return self.clock > deadline

    def agreed(self, value):
        return value

    def by_first(self, make):
        return make()

    def lengths(self, collective, sizes):
        return sorted(set(sizes))

    def candidates(self, collective, nbytes):
        return [Candidate("linear"), Candidate("recursive_doubling"), Candidate("mpi")]

    def may_choose(self, collective, candidate):
        return candidate.algorithm != "mpi"

    def default(self, collective, nbytes):
        return Candidate("recursive_doubling")

    def load(self, collective, candidate, nbytes):
        return Load(1, nbytes, 0)

    def seconds(self, collective, candidate, nbytes):
        per_byte = {"linear": 1e-8, "recursive_doubling": 2e-8, "mpi": 1.9e-8}[candidate.algorithm]
        start = {"linear": 9e-4, "recursive_doubling": 3e-4, "mpi": 5e-4}[candidate.algorithm]
        if candidate == self.default(collective, nbytes) and nbytes >= self.slow_from:
            start *= 5
        found = (start + per_byte * nbytes) * self.draw.lognormvariate(0, 0.05)
        self.clock += 10 * found
        return found


def swept(*machine):
    """A search on such a machine, before its races."""
    return swept_on(Simulated(*machine), "scan")


def swept_on(machine, collective):
    search = Search(machine, collective, [8 << k for k in range(16)])
    for number in range(8):
        search.sweep(number, math.inf, lambda: None)
    search.fit([])
    return search


class WithoutDefault(Simulated):
    """The default is left out; tree takes as long, and linear is faster from 60 kB on."""

    def candidates(self, collective, nbytes):
        return [Candidate("linear"), Candidate("tree"), Candidate("mpi")]

    def may_choose(self, collective, candidate):
        return candidate.algorithm in ("linear", "tree")

    def seconds(self, collective, candidate, nbytes):
        known = {"tree": "recursive_doubling"}.get(candidate.algorithm, candidate.algorithm)
        return super().seconds(collective, Candidate(known), nbytes)


@pytest.mark.parametrize("collective", ["scan", "alltoallv"])
def test_a_default_that_is_left_out_is_in_no_row(collective):
    """The best by the models takes its place: in races, and where there was no time for one."""
    search = swept_on(WithoutDefault(), collective)
    for number in range(8):
        search.visit(number, search.bench.now() + 0.5, lambda: None)
    rows, races = search.rows(), search._races
    assert search.not_measured() is None
    if collective == "alltoallv":
        assert rows == [(None, "linear", None)]
        return
    (upto, *short), long = rows
    assert 16_000 < upto < 140_000
    assert (short, long) == (["tree", None], (None, "linear", None))
    search._races = {nbytes: race for nbytes, race in races.items() if nbytes > 1024}
    assert [row[1] for row in search.rows()] == ["tree", "linear"]
    assert search.not_measured() == "scan (8 to 1024 bytes)"


def test_a_default_that_is_left_out_is_in_no_row_without_measurements():
    """A barrier has one length, which counted as measured."""
    search = Search(WithoutDefault(), "barrier", [0])
    search.fit([])
    search.visit(0, math.inf, lambda: None)
    assert search.rows() == []
    assert search.not_measured() == "barrier (any length)"


def test_what_is_left_out_may_not_be_chosen():
    bench = SimpleNamespace(without={"circulant", "mpi"}, mpi="all")
    allowed = [Bench.may_choose(bench, "allreduce", Candidate(name)) for name in ("circulant", "mpi", "ring")]
    assert allowed == [False, False, True]


def test_only_rank_0_counts_what_calls_move():
    """A linear algorithm on p ranks has p^2 messages; all ranks decide by what rank 0 tells."""
    told = []

    class First(Simulated):
        def by_first(self, make):
            told.append(make())
            return told[-1]

    class Other(Simulated):
        def by_first(self, make):
            return told.pop(0)

        def load(self, *call):
            raise AssertionError("another rank counted, too")

    rows, models = [], []
    for machine in (First(), Other()):
        search = swept_on(machine, "scan")
        for number in range(8):
            search.visit(number, search.bench.now() + 0.2, lambda: None)
        rows.append(search.rows())
        models.append((search.models, search.errors, search.fitted))
    assert rows[0] == rows[1]
    assert len(rows[0]) == 2
    assert models[0] == models[1]
    assert told == []


@pytest.mark.parametrize("seconds", [2, 0.2])
def test_the_search_finds_what_is_faster_in_little_time(seconds):
    """The sweeps alone tell where there is hardly time for races; their lengths tell of those between."""
    search = swept()
    for number in range(8):
        search.visit(number, search.bench.now() + seconds / 8, lambda: None)
    short, long = search.rows()
    assert 16_000 < short[0] < 140_000  # 60 kB
    assert (short[1:], long) == (("recursive_doubling", None), (None, "linear", None))


def test_long_vectors_come_first_where_there_is_little_time():
    """The defaults serve the short vectors that were not measured, and a user is told which they are."""
    search = Search(Simulated(), "scan", [8 << k for k in range(16)])
    assert search.not_measured() == "scan (any length)"
    for number in range(8):
        search.sweep(number, search.bench.now() + 0.2, lambda: None)
    assert min(search.fitted or [1 << 30]) > 8
    search.fit([])
    for number in range(8):
        search.visit(number, search.bench.now() + 0.5, lambda: None)
    first, *_, last = search.rows()
    assert first[1] == "recursive_doubling"
    assert last[:2] == (None, "linear")
    missing = search.not_measured()
    assert re.fullmatch(r"scan \(8 to \d+ bytes\)", missing), missing
    assert 0 < np.median(search.spreads()) < 0.3


def test_where_a_model_changes_between_two_lengths_a_race_decides():
    """At 4096 bytes the default takes 0.4 ms or 1.6, which no fitted length tells, and linear 0.9."""
    for slow_from in (4096, 8192):  # fitted: 2048 and 8192
        search = swept(slow_from)
        assert 4096 not in search.fitted
        assert len(search._rivals(4096)) == 2
        assert len(search._rivals(512)) == 1
        for number in range(8):
            search.visit(number, math.inf, lambda: None)
        upto, algorithm, _ = search.rows()[0]
        assert (algorithm, upto) == ("recursive_doubling", math.isqrt(slow_from * slow_from // 2))


@pytest.mark.parametrize("faster", ["linear", "recursive_doubling"])
def test_models_decide_where_few_rounds_cannot(faster):
    """A slow round in eight leaves both in the race; the default is replaced where model and median agree."""
    search = swept()
    times = {Candidate(name): [1.5] * 8 for name in ("linear", "recursive_doubling")}
    times[Candidate(faster)] = [1.0] * 7 + [3.0]
    search._races = {nbytes: judged(times) for nbytes in search.lengths}
    assert all(len(run.left) == 2 for run in search._races.values())
    assert [row[1] for row in search.rows()] == ["recursive_doubling", "linear"][: 2 if faster == "linear" else 1]


def decided(collective, choices):
    """A search at 8, 16, ... bytes whose races ended with these choices; None: without an end."""
    search = Search(Simulated(), collective, [8 << k for k in range(len(choices))])
    names = {"l": "linear", "r": "recursive_doubling"}
    for nbytes, choice in zip(search.lengths, choices, strict=True):
        rounds = {Candidate(name): [1.0 + (letter != choice)] * 20 for letter, name in names.items()}
        if choice != "-":
            search._races[nbytes] = judged(rounds)
        elif nbytes % 3:  # a race that was begun, and none
            search._races[nbytes] = judged({c: times[:2] for c, times in rounds.items()})
    return search


DEFAULTS = "recursive_doubling"


@pytest.mark.parametrize(
    ("choices", "rows", "missing"),
    [
        ("llll", [(None, "linear")], None),
        ("l-------l", [(11, "linear"), (1448, DEFAULTS), (None, "linear")], "16 to 1024 bytes"),
        ("l-l-l", [(None, "linear")], None),  # one length between two of the same choice
        ("l--l", [(11, "linear"), (45, DEFAULTS), (None, "linear")], "16 to 32 bytes"),
        ("r-l", [(22, DEFAULTS), (None, "linear")], "16 bytes"),
        ("l-r", [(11, "linear"), (None, DEFAULTS)], "16 bytes"),
        ("--ll-", [(22, DEFAULTS), (None, "linear")], "8 to 16 bytes"),  # the longest one as the one before
        ("ll--", [(16, "linear")], "32 to 64 bytes"),  # for longer ones than any row's the defaults choose
        ("-l", [(11, DEFAULTS), (None, "linear")], "8 bytes"),
        ("l", [(None, "linear")], None),
        ("--", [], "any length"),
        ("", [], None),
    ],
)
def test_the_default_serves_what_there_was_no_time_for(choices, rows, missing):
    """And the user is told of exactly these lengths."""
    search = decided("scan", choices)
    assert search.rows() == [(*row, None) for row in rows]
    assert search.not_measured() == (missing and f"scan ({missing})")


@pytest.mark.parametrize(
    ("choices", "rows"), [("llll", "linear"), ("l-ll", "linear"), ("l--l", None), ("-lll", None), ("", None)]
)
def test_one_choice_for_all_lengths_needs_all_of_them(choices, rows):
    search = decided("alltoallv", choices)
    assert search.rows() == ([(None, rows, None)] if rows else [])
    assert (search.not_measured() is None) == (rows is not None or not choices)


@pytest.mark.parametrize(("factors", "row"), [([0.85] * 10, "a"), ([1.0] * 10, "d"), ([0.6] * 3 + [1.5] * 7, "d")])
def test_one_choice_for_all_lengths_by_what_all_of_them_tell(factors, row):
    draw = random.Random(7)
    races = {
        nbytes: judged({c: [f * draw.lognormvariate(0, 0.06) for _ in range(10)] for c, f in (("d", 1), ("a", factor))})
        for nbytes, factor in enumerate(factors)
    }
    races[0] = judged({"d": [1.0, 1.0, 1.1] * 3, "a": [0.9, 1.02, 0.9] * 3})
    assert races[0].left == ["d", "a"]
    assert _one_row("d", races) == [(None, *row)]


def test_rounds_that_were_run_elsewhere_count():
    slow, fast = [2.0, 2.1] * 4, [1.0, 1.1] * 4
    assert judged({"d": slow, "a": fast}).left == ["a"]
    assert judged({"d": slow[:6], "a": fast[:6]}).left == ["d", "a"]  # too few to tell
    run = race("da", {"d": 2.0, "a": 1.0}.get, most=2, before=judged({"d": [*slow], "a": [*fast]}), beside="d")
    assert run.times == {"d": [*slow, 2.0, 2.0], "a": [*fast, 1.0, 1.0]}


def test_rows_from_decisions():
    ring, cut, shm = Candidate("ring"), Candidate("ring", 65536), Candidate("shm")
    assert rows_of([(8, shm), (32, shm), (128, ring)], True) == [(64, "shm", None), (None, "ring", None)]
    assert rows_of([(8, shm), (32, shm), (128, ring)], False) == [(64, "shm", None), (128, "ring", None)]
    # Up to the length of a segment there is but one.
    assert rows_of([(4096, ring), (65536, ring), (262144, cut)], True) == [(None, "ring", 65536)]
    assert rows_of([(4096, ring), (131072, ring), (262144, cut)], True) == [
        (185363, "ring", None), (None, "ring", 65536),
    ]  # fmt: skip
    assert rows_of([(0, shm)], True) == [(None, "shm", None)]
    assert rows_of([], False) == []
