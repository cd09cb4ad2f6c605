"""The program that compares compressions."""

import re

import pytest
from jobs import ROOT, mpiexec

ROW = re.compile(r"^(\S+) +([\d.]+) % \([\d. to]+\) +(\d+) +([\d.]+) +[\d.]+$", re.MULTILINE)


@pytest.mark.long
def test_each_compression_learns_the_digits_with_fewer_bytes():
    program = ROOT / "benchmarks/train_compression.py"
    done = mpiexec("openmpi", 2, program, "--epochs", "12", "--seeds", "1", timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    table = {way: (float(accuracy), float(part)) for way, accuracy, _, part in ROW.findall(done.stdout)}
    assert len(table) == 8, done.stdout
    dense = table.pop("dense")
    assert dense[0] > 94, done.stdout
    assert dense[1] == 1
    for way, (accuracy, part) in table.items():
        assert accuracy > dense[0] - 4, (way, done.stdout)
        assert part <= 0.5, (way, done.stdout)
