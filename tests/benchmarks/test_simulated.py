"""Calls on hosts with slow links are measured and simulated."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from jobs import ROOT


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="hosts by namespaces need root and tc")
def test_every_call_is_measured_and_simulated(tmp_path):
    """On two hosts with two ranks each. How near the times are depends on the machine's load: it is not judged."""
    file = tmp_path / "found.json"
    command = [sys.executable, ROOT / "benchmarks/simulated.py", "--hosts", "2", "--ranks-per-host", "2"]
    command += ["--collectives", "allreduce,bcast", "--sizes", "256Ki", "--rounds", "1", "--json", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    (found,) = json.loads(file.read_text())
    names = {(line["collective"], line["algorithm"]) for line in found["lines"]}
    assert {("allreduce", "ring"), ("allreduce", "circulant"), ("bcast", "binomial")} <= names
    least = 2 * (256 << 10) / 2 / found["network"]["beta"]  # of an all-reduce, through the link of a host
    for line in found["lines"]:
        assert line["measured"] > 0
        assert line["simulated"] > (least - 2 * found["network"]["burst"] / found["network"]["beta"]) * 0.99
