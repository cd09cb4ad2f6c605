"""benchmarks/reinforcement.py: what it prints of a run, and when it fails."""

import argparse
import importlib.util
import json
import re
import subprocess
import sys

import pytest
from jobs import ROOT, variables

QUICK = ["max_steps=300", "evaluate_every=300", "start=100", "hidden=8", "trials=1", "episodes=2"]


def run(*options):
    words = [word for text in QUICK for word in ("--set", text)]
    line = [sys.executable, "benchmarks/reinforcement.py", *options, *words]
    return subprocess.run(line, cwd=ROOT, env=variables(), capture_output=True, text=True, timeout=120)


def test_a_line_for_each_run(tmp_path):
    done = run("--algorithms", "dqn", "--seeds", "2", "--json", str(tmp_path / "json"), "--check")
    assert done.returncode == 0, done.stderr  # dqn is only shown
    first, _, *rest, last = done.stdout.splitlines()
    assert re.fullmatch(r"CartPole-v1; random actions, 2 episodes: mean \d\d\.\d, best \d\d\.\d", first)
    assert last == "dqn: solved with 0 of 2 seeds"
    lines = [line.split() for line in rest]
    assert [line[:5] for line in lines] == [["dqn", "1", str(seed), "300", "100"] for seed in (0, 1)]
    assert [line[-1] for line in lines] == ["no", "no"]
    assert [found["seed"] for found in json.loads((tmp_path / "json").read_text())] == [0, 1]


def test_runs_go_on_from_their_checkpoints(tmp_path):
    options = ["--algorithms", "dqn", "--seeds", "1", "--checkpoints", str(tmp_path / "kept")]
    first, second = run(*options), run(*options)
    assert "300 steps" in first.stderr
    assert "goes on from the checkpoint of step 300" not in first.stderr
    assert "goes on from the checkpoint of step 300" in second.stderr
    assert first.stdout.splitlines()[2].split()[:4] == ["dqn", "1", "0", "300"]


def test_a_run_that_fails():
    done = run("--algorithms", "apex", "--ranks", "1", "--seeds", "1")
    assert done.returncode == 1
    assert "Ape-X needs 3 ranks" in done.stderr


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("reinforcement_program", ROOT / "benchmarks/reinforcement.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("solved", "unmet"), [("1111 0", 0), ("111 00", 1), ("1", 0), ("0", 1)])
def test_all_seeds_but_one_are_solved(program, solved, unmet):
    results = [{"algorithm": "apex", "solved": text == "1"} for text in solved.replace(" ", "")]
    results.append({"algorithm": "dqn", "solved": False})
    args = argparse.Namespace(algorithms=["apex", "dqn"], env="CartPole-v1")
    assert program.unmet_seeds(args, results, 0.0) == unmet


def test_games_without_a_threshold_are_above_random(program):
    args = argparse.Namespace(algorithms=["apex"], env="ALE/Pong-v5")
    for mean, unmet in ((-20.0, 0), (-20.9, 1)):
        result = {"algorithm": "apex", "solved": False, "mean_return": mean}
        assert program.unmet_seeds(args, [result], -20.5) == unmet


def test_starved_actors(program):
    assert program.unmet_actors([{"actor_steps": [50, 90, 100]}, {"actor_steps": [7]}]) == 0
    assert program.unmet_actors([{"actor_steps": [49, 90, 100]}]) == 1
