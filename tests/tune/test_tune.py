"""What the command tune makes of measurements: models, places of ranks, rules for Open MPI, the check of a table."""

import itertools
import json
import math
import os
import random
import re
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import ROOT, mpiexec
from tables import entry

from collectives.schedules import registry
from collectives.selection.layout import Layout
from collectives.selection.model import Load, Model, Piece, load
from collectives.selection.table import Table
from collectives.tune import job, openmpi, steady
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


def test_rules_are_for_the_ranks_that_there_were():
    """Hosts of 1, 2 and 1 ranks."""
    table = for_openmpi()
    table.entries[0].layout = Layout(3, 2, 4)
    assert re.findall(r"(\d+)  # ranks", openmpi.classic(table)) == ["2", "4", "8"]


def test_smaller_communicators_are_left_to_open_mpi():
    """It uses the first rules for all of them."""
    lines = openmpi.classic(for_openmpi()).splitlines()
    first = next(i for i, text in enumerate(lines) if text.endswith("  # ranks"))
    assert lines[first].startswith("2 ")
    assert lines[first + 1].startswith("1  # rules")
    assert lines[first + 2] == "0 0 0 0"
    assert lines[first + 3] == "4  # ranks"


def test_rules_for_open_mpi_are_of_open_mpi():
    ours = for_openmpi().entries[0]
    slow = {**ours.models, ("allreduce", "mpi", None): linear(1.0, 1.0)}
    mixed = Table([ours, entry(mpi="MPICH 5.0", layout=ours.layout, models=slow)], "t.json")
    for write in (openmpi.classic, openmpi.in_json):
        assert write(mixed) == write(Table([ours]))
        with pytest.raises(ValueError, match=r"^t\.json: no entry of Open MPI"):
            write(Table(mixed.entries[1:], "t.json"))


def test_rules_are_of_one_machine_and_one_open_mpi():
    ours = for_openmpi().entries[0]
    others = [entry(machine="ARM, 4 cores", layout=Layout(1, 8)), entry(mpi="Open MPI 4.1"), entry(mpi="*")]
    for other in others:
        both = Table([ours, other], "t.json")
        with pytest.raises(ValueError, match=r"^t\.json: entries of .*; .*: choose one of these by --only") as raised:
            openmpi.classic(both)
        for place in ("Open MPI 5.0, AMD EPYC, 2 cores", f"{other.mpi}, {other.machine}"):
            assert place in str(raised.value)
        assert openmpi.classic(openmpi.only(both, "Open MPI 5.0, AMD")) == openmpi.classic(Table([ours]))


def test_an_export_without_rules_says_why():
    assert openmpi.missing(for_openmpi()) is None
    assert "no models" in openmpi.missing(Table([entry()]))
    models = {("bcast", "mpi", None): linear(1e-6, 1e-10), ("bcast", "binomial", None): linear(1e-6, 1e-10)}
    assert "no algorithm is faster" in openmpi.missing(Table([entry(models=models)]))


def test_rules_end_before_the_next_number_of_ranks():
    models = for_openmpi().entries[0].models
    table = Table([entry(layout=Layout(1, ranks), models=models) for ranks in (2, 3)])
    assert re.findall(r"(\d+)  # ranks", openmpi.classic(table)) == ["2", "3", "6"]


@pytest.mark.parametrize(("alpha", "beta", "rules"), [(1e-6, 1e-9, None), (1e-6, 1e-11, [(0, 2, 0)])])
def test_rules_of_alltoallv_hold_for_all_lengths(alpha, beta, rules):
    """Open MPI takes the first one for every call."""
    models = {("alltoallv", "pairwise", None): linear(alpha, beta), ("alltoallv", "mpi", None): linear(5e-4, 1e-10)}
    assert openmpi.rules(entry(layout=Layout(1, 4), models=models)).get("alltoallv") == rules


def test_the_numbers_are_those_of_this_open_mpi():
    """Names of the algorithms as ompi_info tells them."""
    told = subprocess.run(
        [ROOT / ".venvs/openmpi/bin/ompi_info", "--param", "coll", "tuned", "--level", "9"],
        capture_output=True, text=True, check=True, env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1"},
    ).stdout  # fmt: skip
    alike = {
        "naive": "linear", "chain": "pipeline", "dissemination": "bruck", "recursive_halving": "rabenseifner",
        "scatter_allgather": "scatter_allgather_ring", "neighbor_exchange": "neighbor",
    }  # fmt: skip
    for collective, names in openmpi.ALGORITHMS.items():
        (values,) = re.findall(rf'"coll_tuned_{collective}_algorithm".*?Valid values: ([^\n]*)', told, re.DOTALL)
        known = dict(value.split("|") for value in values.split(", "))
        for name, numbers in names.items():
            for number in filter(None, numbers):
                theirs = known[str(number)]
                assert theirs.endswith((name, alike.get(name, name))), (collective, name, theirs)


def total_on_4_ranks(name, layout, tmp_path):
    """What each rank has from Open MPI's all-reduce under rules that name an algorithm for ``layout``."""
    models = {("allreduce", name, None): linear(1e-6, 1e-9), ("allreduce", "mpi", None): linear(5e-6, 3e-9)}
    (tmp_path / "rules.conf").write_text(openmpi.classic(Table([entry(layout=layout, models=models)])))
    flags = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll", "tuned,basic,libnbc,inter,self"]
    flags += ["--mca", "coll_tuned_dynamic_rules_filename", str(tmp_path / "rules.conf")]
    text = (
        "from mpi4py.MPI import COMM_WORLD as w; import numpy as n; y = n.empty(1); "
        "w.Allreduce(n.array([1.0, 1e16, -1e16, 1.0][w.rank]), y); print(*y)"
    )
    done = mpiexec("openmpi", 4, "-c", text, flags=flags, timeout=60)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


@pytest.mark.parametrize(("name", "total"), [("naive", 1.0), ("recursive_doubling", 0.0)])
def test_open_mpi_does_what_the_classic_file_says(name, total, tmp_path):
    """In which order Open MPI adds tells which algorithm it runs: in rank order, or by pairs."""
    assert total_on_4_ranks(name, Layout(2, 2), tmp_path) == [total] * 4


def test_open_mpi_chooses_for_fewer_ranks_than_the_classic_file_has(tmp_path):
    """The same, whatever the file says of 8 ranks."""
    naive, pairs = (total_on_4_ranks(name, Layout(2, 4), tmp_path) for name in ("naive", "recursive_doubling"))
    assert naive == pairs
    assert len(naive) == 4


def test_the_json_file():
    made = json.loads(openmpi.in_json(for_openmpi()))
    assert (made["rule_file_version"], made["module"], list(made["collectives"])) == (3, "tuned", ["allreduce"])
    (block,) = made["collectives"]["allreduce"]
    assert (block["comm_size_min"], block["comm_size_max"], block["comm_rank_distribution"]) == (4, 7, "any")
    short, long = block["rules"]
    assert (short["msg_size_min"], short["alg"]) == (0, 3)
    assert (long["msg_size_max"], long["alg"], long["seg_size"]) == ("inf", 5, 65536)
    assert short["msg_size_max"] < long["msg_size_min"]


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
