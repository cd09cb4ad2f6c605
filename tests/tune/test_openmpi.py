"""Rules for Open MPI from models of a table: what they name, for how many ranks, and by which lengths."""

import json
import os
import re
import subprocess

import pytest
from jobs import ROOT, mpiexec
from tables import entry

from collectives.selection.layout import Layout
from collectives.selection.model import Model, Piece
from collectives.selection.table import Table
from collectives.tune import cli, openmpi


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


def classic(table):
    return openmpi.classic(openmpi.made(table))


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
    assert re.findall(r"(\d+)  # ranks", classic(table)) == ["2", "4", "8"]


def test_smaller_communicators_are_left_to_open_mpi():
    """It uses the first rules for all of them."""
    lines = classic(for_openmpi()).splitlines()
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
        assert write(openmpi.made(mixed)) == write(openmpi.made(Table([ours])))
    with pytest.raises(ValueError, match=r"^t\.json: no entry of Open MPI"):
        openmpi.made(Table(mixed.entries[1:], "t.json"))


def test_rules_are_of_one_machine_and_one_open_mpi():
    ours = for_openmpi().entries[0]
    others = [entry(machine="ARM, 4 cores", layout=Layout(1, 8)), entry(mpi="Open MPI 4.1"), entry(mpi="*")]
    for other in others:
        both = Table([ours, other], "t.json")
        with pytest.raises(ValueError, match=r"^t\.json: entries of .*; .*: choose one of these by --only") as raised:
            openmpi.made(both)
        for place in ("Open MPI 5.0, AMD EPYC, 2 cores", f"{other.mpi}, {other.machine}"):
            assert place in str(raised.value)
        assert classic(openmpi.only(both, "Open MPI 5.0, AMD")) == classic(Table([ours]))


def test_an_export_without_rules_says_why():
    assert openmpi.missing(openmpi.made(for_openmpi())) is None
    assert "no models" in openmpi.missing(openmpi.made(Table([entry()])))
    models = {("bcast", "mpi", None): linear(1e-6, 1e-10), ("bcast", "binomial", None): linear(1e-6, 1e-10)}
    assert "no algorithm is faster" in openmpi.missing(openmpi.made(Table([entry(models=models)])))


def test_rules_end_before_the_next_number_of_ranks():
    models = for_openmpi().entries[0].models
    table = Table([entry(layout=Layout(1, ranks), models=models) for ranks in (2, 3)])
    assert re.findall(r"(\d+)  # ranks", classic(table)) == ["2", "3", "6"]


@pytest.mark.parametrize(("alpha", "beta", "rules"), [(1e-6, 1e-9, None), (1e-6, 1e-11, [(0, 2, 0)])])
def test_rules_of_alltoallv_hold_for_all_lengths(alpha, beta, rules):
    """Open MPI takes the first one for every call."""
    models = {("alltoallv", "pairwise", None): linear(alpha, beta), ("alltoallv", "mpi", None): linear(5e-4, 1e-10)}
    assert openmpi.rules(entry(layout=Layout(1, 4), models=models)).get("alltoallv") == rules


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize(("collective", "blocks"), [("allgather", 1), ("allgatherv", None)])
def test_rules_have_the_lengths_by_which_open_mpi_looks(collective, blocks, ranks):
    """Of an all-gather (v) it takes the mean length of a block, rounded down; the ring is faster from 40 kB on."""
    per_byte = 1e-10 * ranks / (ranks - 1)  # of a vector, of which the ring moves all but one block
    ring = Model((Piece(None, 0.0, per_byte, 0.0),), 0.0)
    theirs = Model((Piece(40_000, 0.0, 1e-12, 0.0), Piece(None, 0.0, 1e-8, 0.0)), 0.0)
    models = {(collective, "ring", None): ring, (collective, "mpi", None): theirs}
    (first, (least, *_)) = openmpi.rules(entry(layout=Layout(1, ranks), models=models))[collective]
    assert first == (0, 0, 0)
    looked_for = [nbytes // (blocks or ranks) >= least for nbytes in (32_767, 40_000, 65_540)]
    assert looked_for == [False, False, True]


def test_an_export_computes_its_rules_once(tmp_path, monkeypatch):
    computed, rules = [], openmpi.rules
    monkeypatch.setattr(openmpi, "rules", lambda entry: computed.append(entry.layout) or rules(entry))
    for name in ("rules.conf", "rules.json"):
        cli._export(for_openmpi(), str(tmp_path / name), "")
        assert "allreduce" in (tmp_path / name).read_text()
    assert computed == 2 * [Layout(2, 2)]


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
    (tmp_path / "rules.conf").write_text(classic(Table([entry(layout=layout, models=models)])))
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
    made = json.loads(openmpi.in_json(openmpi.made(for_openmpi())))
    assert (made["rule_file_version"], made["module"], list(made["collectives"])) == (3, "tuned", ["allreduce"])
    (block,) = made["collectives"]["allreduce"]
    assert (block["comm_size_min"], block["comm_size_max"], block["comm_rank_distribution"]) == (4, 7, "any")
    short, long = block["rules"]
    assert (short["msg_size_min"], short["alg"]) == (0, 3)
    assert (long["msg_size_max"], long["alg"], long["seg_size"]) == ("inf", 5, 65536)
    assert short["msg_size_max"] < long["msg_size_min"]
