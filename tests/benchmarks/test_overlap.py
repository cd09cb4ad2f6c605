"""benchmarks/overlap.py: batches of non-blocking all-reduces beside computation."""

import re

import pytest
from jobs import mpiexec

ROW = re.compile(
    r"(\d+) x (\w+) (alone|computing) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) \[([\d.]+), ([\d.]+)\]"
)


@pytest.mark.in_turn
def test_rows_and_check(mpi):
    command = ("benchmarks/overlap.py", "--requests", "2,5", "--bytes", "1Ki", "--rounds", "3", "--check")
    done = mpiexec(mpi, 2, *command, timeout=200)
    rows = [row.groups() for row in ROW.finditer(done.stdout)]
    kinds = [(requests, nbytes, kind) for requests, nbytes, kind, *_ in rows]
    assert kinds == [(n, "1Ki", kind) for n in ("2", "5") for kind in ("alone", "computing")], done.stdout + done.stderr
    for _, _, _, *numbers in rows:
        our_submit, their_submit, ours, theirs, ratio, low, high = map(float, numbers)
        assert 0 < our_submit < ours < 1e8
        assert 0 < their_submit < theirs < 1e8
        assert low <= ratio <= high
    lows = [float(row[-2]) for row in rows]
    if all(low != 1 for low in lows):  # a figure of two digits may be rounded to the limit
        assert done.returncode == int(any(low > 1 for low in lows)), done.stderr


def test_bad_options():
    done = mpiexec("openmpi", 1, "benchmarks/overlap.py", "--work", "0", timeout=60)
    assert done.returncode == 2
    assert "--rounds, --requests, --work: positive numbers" in done.stderr
