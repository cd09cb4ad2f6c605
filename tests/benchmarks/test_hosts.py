"""The program that compares collectives between hosts with what their links allow and with the MPIs' own."""

import importlib.util
import re
import subprocess
import sys

import numpy as np
import pytest
from faults import BURST
from jobs import ROOT

from collectives.analysis.cost import crossing
from collectives.schedules import registry
from collectives.selection.hosts import nearest

PROGRAM = ROOT / "benchmarks/hosts.py"


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("hosts_program", PROGRAM)
    module = sys.modules["hosts_program"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["hosts_program"]


@pytest.mark.long
def test_a_row_for_each_case():
    told = ["--layouts", "2x1,1+2", "--sizes", "8,1Mi", "--collectives", "allreduce,bcast", "--mpis", "openmpi"]
    done = subprocess.run(
        [sys.executable, PROGRAM, *told, "--rounds", "2"], capture_output=True, text=True, timeout=240
    )
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(\S+) +(\w+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) ", done.stdout, re.MULTILINE)
    assert [row[:2] for row in rows] == [
        (layout, collective) for layout in ("2x1", "1+2") for collective in ("allreduce", "bcast") for _ in range(2)
    ]
    for layout, collective, nbytes, bound, own, ours in rows:
        carried = int(nbytes) * (collective == "bcast" or 1)  # on two hosts an all-reduce sends its vector once, too
        least = 1e3 * (carried - BURST) / 25e6 if int(nbytes) > 1 << 19 else 0
        assert float(bound) == pytest.approx(least, abs=0.06), (layout, collective)
        assert min(float(own), float(ours)) > 0.9 * least  # the links do what they are told


def test_the_bound_is_what_a_schedule_reaches(program):
    for text in ("4x1", "4x2", "4x2c", "3x2c", "7x1", "1+2+1", "2+3"):
        layout = program.Layout.of(text)
        place = np.empty(layout.size, np.int32)
        for rank, number in enumerate(layout.order()):
            place[rank] = np.searchsorted(np.cumsum(layout.ranks_on), number, side="right")
        for collective in ("allreduce", "allgather", "reduce_scatter"):
            ring, _ = nearest(registry.find(collective, "ring"), place.tobytes())
            assert layout.crossing(collective, 1 << 20) == pytest.approx((1 << 20) * crossing(ring, place.tobytes())[0])


def test_cyclic_ranks_are_dealt_to_the_hosts(program):
    assert program.Layout.of("3x2c").order() == [0, 2, 4, 1, 3, 5]
    assert program.Layout.of("3x2").order() == list(range(6))


def test_the_bytes_that_must_cross_are_those_of_the_collective(program):
    layout = program.Layout.of("2+1")
    crossing = {
        name: layout.crossing(name, 3 << 20) / (1 << 20) for name in ("gather", "scatter", "reduce", "allgather")
    }
    assert crossing == {"gather": 1, "scatter": 1, "reduce": 3, "allgather": 2}
    assert layout.crossing("alltoallv", 900) == layout.crossing("alltoall", 900) == 600
    with pytest.raises(ValueError, match="how many bytes of barrier"):
        layout.crossing("barrier", 8)


@pytest.mark.parametrize("wrong", ["1x2", "4", "4x", "0+1", "4x2d", ""])
def test_other_layouts_are_refused(program, wrong):
    with pytest.raises(ValueError, match="not like 4x2"):
        program.Layout.of(wrong)


@pytest.mark.parametrize(
    ("collective", "ours", "own", "found"),
    [
        ("allreduce", 1.09, 1.2, None), ("allreduce", 1.2, 1.3, "1.20 of the bound, limit 1.10"),
        ("allreduce", 1.05, 1.0, "1.05 of the MPI's own, limit 1.02"), ("bcast", 3.0, 2.9, None),
        ("bcast", 3.5, 2.9, "1.21 of the best MPI's own, limit 1.15"),
        ("bcast", 1.14, 0.7, None), ("bcast", 1.16, 0.7, "1.66 of the best MPI's own, limit 1.15"),
    ],
)  # fmt: skip
def test_what_is_beyond_the_limits(program, collective, ours, own, found):
    times = {"mpich": {"ours": [ours] * 3, "own": [own] * 3}}
    case = program.Case(program.Layout.of("4x2"), collective, 4 << 20, 1.0, True, times, "ring")
    beyond = case.beyond()
    assert (beyond == []) if found is None else (len(beyond) == 1 and found in beyond[0]), beyond


@pytest.mark.parametrize(("layout", "ours", "beyond"), [("2x1", 1.14, 0), ("2x1", 1.16, 1), ("4x1", 1.14, 1)])
def test_short_vectors_have_limits_of_their_own(program, layout, ours, beyond):
    times = {"mpich": {"ours": [ours] * 3, "own": [1.0] * 3}}
    assert len(program.Case(program.Layout.of(layout), "allreduce", 8, 0.0, False, times, "ring").beyond()) == beyond


def test_what_links_pass_at_once_is_compared_with_the_same_mpis_own(program):
    times = {"mpich": {"ours": [1.2] * 3, "own": [1.1] * 3}, "openmpi": {"ours": [2.4] * 3, "own": [2.0] * 3}}
    beyond = program.Case(program.Layout.of("4x2"), "bcast", 256 << 10, 0.0, False, times, "ring").beyond()
    assert beyond == ["bcast of 262144 bytes on 4x2, openmpi: 1.20 of the MPI's own, limit 1.15"]
