"""benchmarks/train_run.py: what it measures, and that its verdict is that of its figures."""

import re

import pytest
from jobs import mpiexec

PROGRAM = "benchmarks/train_run.py"
ROWS = ["loader", "loader in a run", "vote", "work", "work beside a vote"]


def measured(*options):
    """The exit code, and the microseconds of each row."""
    done = mpiexec("openmpi", 2, PROGRAM, *options, timeout=100)
    found = re.findall(r"^(\w[a-z ]*?) +([\d.]+) us ", done.stdout, re.MULTILINE)
    assert [name for name, _ in found] == ROWS, done.stdout + done.stderr
    return done.returncode, {name: float(value) for name, value in found}


@pytest.mark.alone
@pytest.mark.parametrize(("most", "code"), [("0.001", 1), ("100000", 0)])
def test_rows_and_verdict(most, code):
    ended, times = measured("--rounds", "3", "--steps", "50", "--work", "50", "--check", most)
    assert ended == code
    assert times["loader"] < times["loader in a run"]
    assert times["work"] >= 50


@pytest.mark.alone
@pytest.mark.slow
def test_a_vote_takes_less_than_ten_microseconds():
    ended, times = measured("--check", "10")
    assert ended == 0, times


def test_bad_options():
    done = mpiexec("openmpi", 1, PROGRAM, "--rounds", "0", timeout=60)
    assert done.returncode == 2
    assert "--rounds, --steps, --work: positive numbers" in done.stderr
