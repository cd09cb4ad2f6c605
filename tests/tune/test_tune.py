"""What the command tune makes of measurements: models, places of ranks, the check of a table."""

import itertools
import json
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import mpiexec

from collectives.schedules import registry
from collectives.selection.layout import Layout
from collectives.selection.model import Load, Model, Piece, load
from collectives.tune import job, steady
from collectives.tune.fit import Point, errors, fit
from collectives.tune.race import Result
from collectives.tune.report import Line, summary

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


# --- what is measured, and where ----------------------------------------------------------------------------------

SAME_CALLS = """
from mpi4py import MPI
from collectives import Communicator
from collectives.selection.policy import NODE_LIMITS, Rules, Tuned
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


# --- the check of a table ------------------------------------------------------------------------------------------


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


def test_a_check_at_the_fitted_lengths_alone_says_nothing_of_models():
    text, right = summary([line(predicted=[], measured=[])])
    assert right
    assert text[-1] == "models: no predictions at lengths they were not fitted to"


def test_figures_of_few_rounds_are_json(tmp_path):
    """A bound that is infinite was written as -Infinity, which is no JSON."""
    few = line(at_least=-math.inf, at_most=math.inf)
    bench = SimpleNamespace(context=SimpleNamespace(layout=Layout(1, 2)))
    job._write_json(str(tmp_path / "check.json"), bench, [few, line()], ("a machine", "an MPI"))

    def refuse(word):
        raise AssertionError(word)

    found = json.loads((tmp_path / "check.json").read_text(), parse_constant=refuse)
    assert [(each["at_least"], each["at_most"]) for each in found["lines"]] == [(None, None), (0.9, 1.1)]
    assert found["lines"][0]["predicted"] == few.predicted


def test_what_there_was_no_time_for_is_told():
    made = {"not_measured": ["scan (8 bytes)", "bcast (any length)"], "spread": 0.1}
    assert job.warnings({**made, "not_measured": []}, []) == []
    (one,) = job.warnings(made, [])
    assert one.startswith("No time for scan (8 bytes), bcast (any length): the defaults serve these.")
    served, stays = job.warnings(made, ["bcast"])
    assert served.startswith("No time for scan (8 bytes): the defaults serve these.")
    assert stays.startswith("No time for new rules of bcast: those in the file stay.")


CALLS_OF_NAMES = """
import sys
from mpi4py import MPI
import collectives
from collectives.selection.policy import Rules
from collectives.system import machine
from collectives.tune.measure import Bench

host = "aabb"[MPI.COMM_WORLD.rank]
machine.boot_id = lambda: host
bench = Bench(collectives.Communicator(MPI.COMM_WORLD))
bench.name("default", Rules())
for collective in ("allreduce", "bcast", "alltoallv"):
    for nbytes in (64, 1 << 20):
        made, _ = bench.call(collective, "default", nbytes)
        assert made == bench.default(collective, nbytes), (collective, nbytes, made)
        if bench.comm.rank == 0:
            print(collective, nbytes, made.algorithm)
"""


def test_the_default_is_that_of_the_layout_before_anything_is_measured():
    """The check of a table told the times of `hierarchical` for those of another algorithm, at the first length."""
    done = mpiexec("openmpi", 4, "-c", CALLS_OF_NAMES, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"allreduce {1 << 20} hierarchical" in done.stdout
