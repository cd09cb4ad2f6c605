"""Nothing that a rank keeps grows faster than the number of ranks."""

import subprocess
import sys

import pytest
from jobs import ROOT


@pytest.mark.slow
def test_memory_from_512_to_2048_ranks():
    command = [sys.executable, ROOT / "benchmarks" / "scale.py", "-p", "512,2048"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert len(done.stdout.splitlines()) > 50
