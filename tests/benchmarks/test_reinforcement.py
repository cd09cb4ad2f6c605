"""benchmarks/reinforcement.py: what it prints of a run, and when it fails."""

import json
import subprocess
import sys

from jobs import ROOT, variables

QUICK = ["max_steps=300", "evaluate_every=300", "start=100", "hidden=8", "trials=1", "episodes=2"]


def run(*options):
    words = [word for text in QUICK for word in ("--set", text)]
    line = [sys.executable, "benchmarks/reinforcement.py", *options, *words]
    return subprocess.run(line, cwd=ROOT, env=variables(), capture_output=True, text=True, timeout=120)


def test_a_line_for_each_run(tmp_path):
    done = run("--algorithms", "dqn", "--seeds", "2", "--json", str(tmp_path / "json"), "--check")
    assert done.returncode == 0, done.stderr  # dqn is only shown
    lines = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [line[:5] for line in lines] == [["dqn", "1", str(seed), "300", "100"] for seed in (0, 1)]
    assert [line[-1] for line in lines] == ["no", "no"]
    assert [found["seed"] for found in json.loads((tmp_path / "json").read_text())] == [0, 1]


def test_a_run_that_fails():
    done = run("--algorithms", "apex", "--ranks", "1", "--seeds", "1")
    assert done.returncode == 1
    assert "Ape-X needs 3 ranks" in done.stderr
