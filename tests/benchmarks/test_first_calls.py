"""The first call of every default algorithm is quick and small on a rank of thousands."""

import subprocess
import sys

import pytest
from jobs import ROOT


@pytest.mark.alone
def test_first_calls_on_4096_ranks():
    """As many steps as ranks on each of them, at the most: never a step for each pair of ranks."""
    command = [sys.executable, ROOT / "benchmarks" / "first_calls.py", "-p", "4096", "--ms", "200", "--mb", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert len(done.stdout.splitlines()) > 20
