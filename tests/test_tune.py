"""What the command tune does on simulated machines: the fit of models, races, rules for Open MPI."""

import itertools
import json
import math
import os
import random
import re
import subprocess

import numpy as np
import pytest
from conftest import ROOT, mpiexec
from test_tuning import entry

from collectives import registry
from collectives.cost_model import Load, Model, Piece, load
from collectives.tune import openmpi, steady
from collectives.tune.fit import Point, errors, fit
from collectives.tune.measure import Candidate
from collectives.tune.race import Result, interval, judged, race
from collectives.tune.report import Line, summary
from collectives.tune.search import Search, _one_row, rows_of
from collectives.tuning import Layout, Table

# --- models -------------------------------------------------------------------------------------------------------

SIZES = [8 << (2 * k) for k in range(11)]


def timed(names, ranks, pieces, noise=0.0, sizes=SIZES):
    """Points as a machine with these pieces would give them."""
    draw = random.Random(1)
    made = Model(tuple(pieces))
    for name, p, nbytes in itertools.product(names, ranks, sizes):
        work = load(registry.find("allreduce", name), p, nbytes)
        yield Point(nbytes, work, made.seconds(work, nbytes) * (1 + noise * draw.uniform(-1, 1)))


def test_the_fit_finds_alpha_beta_and_gamma():
    truth = Piece(None, 3e-6, 4e-10, 2e-10)
    points = list(timed(["ring", "tree", "recursive_doubling"], [2, 5, 8], [truth], 0.02))
    (piece,) = fit(points).pieces
    assert piece.upto is None
    for name in ("alpha", "beta", "gamma"):
        assert getattr(piece, name) == pytest.approx(getattr(truth, name), rel=0.1), name


def test_folding_alone_tells_beta_from_gamma():
    """One algorithm on so many ranks folds in proportion to what it moves."""
    truth = Piece(None, 3e-6, 4e-10, 2e-10)
    points = list(timed(["ring"], [8], [truth]))
    folds = [Point(n, Load(0, 0, n), n * truth.gamma) for n in SIZES if n > 4096]
    (piece,) = fit(points, folds).pieces
    assert piece.beta == pytest.approx(truth.beta, rel=1e-3)
    assert piece.gamma == pytest.approx(truth.gamma, rel=1e-3)
    (without,) = fit(points).pieces
    assert without.seconds(points[-1].load) == pytest.approx(points[-1].seconds, rel=1e-6)


def test_pieces_where_the_protocol_changes():
    truth = [Piece(5000, 2e-6, 1e-9, 0), Piece(None, 2e-5, 1e-10, 0)]
    model = fit(list(timed(["ring"], [4], truth, 0.02)))
    assert len(model.pieces) == 2
    assert 2048 <= model.pieces[0].upto <= 8192
    between = list(timed(["ring"], [4], truth, sizes=[16 << (2 * k) for k in range(10)]))
    assert np.median(errors(model, between)) < 0.03
    assert errors(model, []) == []
    assert len(fit(list(timed(["ring"], [4], [Piece(None, 2e-6, 1e-9, 0)], 0.02))).pieces) == 1
    with pytest.raises(ValueError, match="points: expected at least one"):
        fit([])


def test_segments_fill_a_pipeline():
    """The chain of p ranks: the whole vector p - 1 times in one segment, nearly once in many."""
    chain = registry.find("bcast", "chain")
    assert load(chain, 5, 1000) == Load(4, 4000, 0)
    assert load(chain, 5, 1000, 10) == Load(13, 1300, 0)
    ring = registry.find("allreduce", "ring")
    one, ten = load(ring, 4, 1000), load(ring, 4, 1000, 10)
    assert one.moved == ten.moved == pytest.approx(1500)
    assert one.folded == ten.folded == pytest.approx(750)
    assert load(registry.find("allreduce", "shm"), 4, 1000) == Load(1, 1000, 1000)


# --- the search ---------------------------------------------------------------------------------------------------


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
    """The parts of a bench that a search of scans uses, on a machine whose clock is that of what it measures."""

    limits = None

    def __init__(self):
        self.clock, self.draw = 0.0, random.Random(6)

    def now(self):
        return self.clock

    def over(self, deadline):
        return self.clock > deadline

    def agreed(self, value):
        return value

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
        found = (start + per_byte * nbytes) * self.draw.lognormvariate(0, 0.05)
        self.clock += 10 * found
        return found


@pytest.mark.parametrize("seconds", [2, 0.2])
def test_the_search_finds_what_is_faster_in_little_time(seconds):
    """The sweeps alone tell where there is hardly time for races; their lengths tell of those between."""
    machine = Simulated()
    search = Search(machine, "scan", [8 << k for k in range(16)])
    for number in range(8):
        search.sweep(number, math.inf, lambda: None)
    search.fit([])
    for number in range(8):
        search.visit(number, machine.now() + seconds / 8, lambda: None)
    short, long = search.rows()
    assert 16_000 < short[0] < 140_000  # 60 kB
    assert (short[1:], long) == (("recursive_doubling", None), (None, "linear", None))


@pytest.mark.parametrize("faster", ["linear", "recursive_doubling"])
def test_models_decide_where_few_rounds_cannot(faster):
    """A slow round in eight leaves both in the race; the default is replaced where model and median agree."""
    machine = Simulated()
    search = Search(machine, "scan", [8 << k for k in range(16)])
    for number in range(8):
        search.sweep(number, math.inf, lambda: None)
    search.fit([])
    times = {Candidate(name): [1.5] * 8 for name in ("linear", "recursive_doubling")}
    times[Candidate(faster)] = [1.0] * 7 + [3.0]
    search._races = {nbytes: judged(times) for nbytes in search.lengths}
    assert all(len(run.left) == 2 for run in search._races.values())
    assert [row[1] for row in search.rows()] == ["recursive_doubling", "linear"][: 2 if faster == "linear" else 1]


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


SAME_CALLS = """
from mpi4py import MPI
from collectives import Communicator
from collectives.select import NODE_LIMITS, Rules, Tuned
from collectives.tune.measure import Bench, Candidate

bench = Bench(Communicator(MPI.COMM_WORLD))
usual = NODE_LIMITS[bench.context.yield_at_once]
other = usual._replace(copy=2 * usual.copy)
rows = {"allreduce": [(100, "ring", 64), (None, "ring", 50)]}
for name, limits in ("usual", None), ("same", usual), ("other", other):
    bench.name(name, Rules(tuned=Tuned({}, "a test", limits)))
bench.name("ring", Rules(tuned=Tuned(rows, "a test", None)))
calls = {name: bench.call("allreduce", name, 64) for name in ("usual", "same", "other", Candidate("shm"), "ring")}
assert calls["usual"] == calls["same"] == calls[Candidate("shm")] == (Candidate("shm"), usual)
assert calls["other"] == (Candidate("shm"), other)
assert calls["ring"] == bench.call("allreduce", Candidate("ring"), 64) == (Candidate("ring"), None)
assert bench.call("allreduce", "ring", 200) == bench.call("allreduce", Candidate("ring", 50), 200)
bench.limits = other
assert bench.call("allreduce", Candidate("shm"), 64) == calls["other"]
"""


def test_which_calls_are_the_same():
    done = mpiexec("openmpi", 2, "-c", SAME_CALLS, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def looks(monkeypatch):
    """Distances that looks find one after the other, the last one for ever, and no pauses between them."""
    monkeypatch.setattr(steady.time, "sleep", lambda seconds: None)

    def start(*found, **options):
        ahead = list(found)
        return steady.Steady(lambda: ahead.pop(0) if len(ahead) > 1 else ahead[0], **options), ahead

    return start


def test_what_was_measured_elsewhere_is_measured_again(looks):
    near, ahead = looks(1.1, 3, 3, 0.9, 1, 0.5, 0.5, 1.2, patience=10, apart=1.0)
    times = iter(range(10))
    assert [near.measured(lambda: next(times)) for _ in range(3)] == [0, 3, 6]  # after a wait not the first, either
    assert (near.taken, near.strayed, ahead) == (3, 0, [1.2])


def test_patience_with_ranks_elsewhere_ends(looks):
    near, _ = looks(1, 3, patience=1, apart=1.0)
    times = iter(range(100))
    assert [near.measured(lambda: next(times)) for _ in range(4)] == [0, 1, 2, 3]
    assert (near.taken, near.strayed) == (4, 3)
    assert "of 4 measurements 3 were taken" in near.text()


def test_ranks_belong_where_they_are_most_of_the_time(looks):
    near, _ = looks(*[3.0] * 8, 1.0, patience=1)
    assert near.apart == 1.0


def test_limits_that_are_slower_at_times_are_given_up():
    a = [1.0] * 25
    for b, slower in (([0.5] * 25, False), ([1.01] * 25, False), ([1.05] * 25, True), ([0.5] * 20 + [1.2] * 5, True)):
        assert Result({"new": b, "old": a}, ["old", "new"]).ever_slower("new", "old", 5) is slower
    assert not Result({"new": [], "old": []}, ["old", "new"]).ever_slower("new", "old", 5)


# --- rules for Open MPI -------------------------------------------------------------------------------------------


def linear(alpha, beta):
    return Model((Piece(None, alpha, beta, 0.0),), 0.1)


def for_openmpi():
    """Recursive doubling is best for short vectors on 4 ranks, the ring for long ones, Open MPI's choice between."""
    models = {
        ("allreduce", "recursive_doubling", None): linear(1e-6, 1e-9), ("allreduce", "mpi", None): linear(5e-6, 3e-10),
        ("allreduce", "ring", 65536): linear(9e-6, 1e-11), ("allreduce", "shm", None): linear(1e-7, 1e-12),
        ("bcast", "mpi", None): linear(1e-6, 1e-10), ("bcast", "binomial", None): linear(1e-6, 1e-10),
    }  # fmt: skip
    return Table([entry(layout=Layout(2, 2), models=models)])


def test_rules_name_what_is_faster_than_their_own_choice():
    found = openmpi.rules(for_openmpi().entries[0])
    assert list(found) == ["allreduce"]  # of bcast nothing is faster for sure
    assert [(number, segment) for _, number, segment in found["allreduce"]] == [(3, 0), (0, 0), (5, 65536)]
    starts = [nbytes for nbytes, _, _ in found["allreduce"]]
    assert starts[0] == 0
    assert starts == sorted(starts)


def test_the_numbers_are_those_of_this_open_mpi():
    """Names of the algorithms as ompi_info tells them."""
    told = subprocess.run(
        [ROOT / ".venvs/openmpi/bin/ompi_info", "--param", "coll", "tuned", "--level", "9"],
        capture_output=True, text=True, check=True, env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1"},
    ).stdout  # fmt: skip
    alike = {
        "naive": "linear", "chain": "pipeline", "dissemination": "bruck", "recursive_halving": "rabenseifner",
        "scatter_allgather": "scatter_allgather_ring",
    }  # fmt: skip
    for collective, names in openmpi.ALGORITHMS.items():
        (values,) = re.findall(rf'"coll_tuned_{collective}_algorithm".*?Valid values: ([^\n]*)', told, re.DOTALL)
        known = dict(value.split("|") for value in values.split(", "))
        for name, numbers in names.items():
            for number in filter(None, numbers):
                theirs = known[str(number)]
                assert theirs.endswith((name, alike.get(name, name))), (collective, name, theirs)


@pytest.mark.parametrize(("name", "total"), [("naive", 1.0), ("recursive_doubling", 0.0)])
def test_open_mpi_does_what_the_classic_file_says(name, total, tmp_path):
    """In which order Open MPI adds tells which algorithm it runs: in rank order, or by pairs."""
    models = {("allreduce", name, None): linear(1e-6, 1e-9), ("allreduce", "mpi", None): linear(5e-6, 3e-9)}
    (tmp_path / "rules.conf").write_text(openmpi.classic(Table([entry(layout=Layout(2, 2), models=models)])))
    flags = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll", "tuned,basic,libnbc,inter,self"]
    flags += ["--mca", "coll_tuned_dynamic_rules_filename", str(tmp_path / "rules.conf")]
    text = (
        "from mpi4py.MPI import COMM_WORLD as w; import numpy as n; y = n.empty(1); "
        "w.Allreduce(n.array([1.0, 1e16, -1e16, 1.0][w.rank]), y); print(*y)"
    )
    done = mpiexec("openmpi", 4, "-c", text, flags=flags, timeout=60)
    assert done.stdout.split() == [str(total)] * 4, done.stdout + done.stderr


def test_the_json_file():
    made = json.loads(openmpi.in_json(for_openmpi()))
    assert (made["rule_file_version"], made["module"], list(made["collectives"])) == (3, "tuned", ["allreduce"])
    (block,) = made["collectives"]["allreduce"]
    assert (block["comm_size_min"], block["comm_size_max"], block["comm_rank_distribution"]) == (4, 7, "any")
    short, long = block["rules"]
    assert (short["msg_size_min"], short["alg"]) == (0, 3)
    assert (long["msg_size_max"], long["alg"], long["seg_size"]) == ("inf", 5, 65536)
    assert short["msg_size_max"] < long["msg_size_min"]


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


def line(**changes):
    fields = {
        "collective": "bcast", "nbytes": 64, "tuned": "shm", "seconds": 1e-6, "best": "shm", "over_best": 1.0,
        "default": "shm", "over_default": 1.0, "at_least": 0.9, "at_most": 1.1, "names": ["shm", "mpi"],
        "predicted": [1.1e-6, 2e-6], "measured": [1e-6, 2e-6],
    }  # fmt: skip
    return Line(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "right", "words"),
    [
        ({}, True, "above 1.1: 0 of 3"),
        ({"over_best": 1.11}, False, "at most 1.11 (bcast, 64 bytes); above 1.1: 1 of 3"),
        ({"over_default": 1.1, "at_least": 1.05, "at_most": 1.2}, False, "slower with confidence 1, faster 0 of 3"),
        ({"over_default": 1.1}, True, "slower with confidence 0"),
        ({"over_default": 0.8, "at_least": 0.7, "at_most": 0.9}, True, "slower with confidence 0, faster 1 of 3"),
        ({"predicted": [9e-6] * 9, "measured": [1e-6] * 9}, False, "median error 800 % of 13 predictions"),
        ({"predicted": [], "measured": []}, True, "median error 5 % of 4 predictions"),
    ],
)
def test_a_check_fails_where_it_should(changes, right, words):
    text, found = summary([line(), line(), line(**changes)])
    assert found == right
    assert words in "\n".join(text)
