"""Ape-X goes on without an actor that is killed, where the launcher allows it (Open MPI's ``--with-ft ulfm``)."""

import json
import sysconfig

import numpy as np
import pytest
from jobs import LIVE_ON, mpiexec, packages_behind

PROGRAM = "tests/rl/apex/programs/killed.py"
QUICK = [
    "apex", "--set", "max_steps=1200", "--set", "evaluate_every=300", "--set", "start=100", "--set", "hidden=16",
    "--set", "trials=6", "--set", "episodes=6", "--set", "chunk=10",
]  # fmt: skip
HOW = {"flags": LIVE_ON["openmpi"], "env": packages_behind(sysconfig.get_paths()["purelib"]), "timeout": 120}
TIMED_OUT = 124  # exit status


def killed(ranks, where, victims, *options):
    return mpiexec("openmpi", ranks, PROGRAM, where, victims, *QUICK, *options, **HOW)


def result(done, path):
    assert path.exists(), done.stdout + done.stderr
    return json.loads(path.read_text())


@pytest.mark.quick("play-3-1")
@pytest.mark.parametrize(("where", "victims", "shards"), [("play", "3", 1), ("evaluate", "2", 1), ("play", "4,5", 2)])
def test_the_others_go_on_without_an_actor(where, victims, shards, tmp_path):
    """With checkpoints; where the launcher is told to go on, it still says that a rank was killed."""
    path, out, dead = tmp_path / "json", tmp_path / "out", [int(rank) for rank in victims.split(",")]
    ranks = 4 if shards == 1 else 7
    files = ["--json", str(path), "--checkpoints", str(out), "--record", str(tmp_path / "seen.npz")]
    done = killed(ranks, where, victims, "--shards", str(shards), *files)
    found = result(done, path)
    assert found["dead"] == dead
    assert f"ranks died: {dead}; the others play on" in done.stderr
    assert (found["ranks"], len(found["actor_steps"])) == (ranks, ranks - 1 - shards - len(dead))
    assert found["env_steps"] >= 1200
    assert found["updates"] == (found["env_steps"] - 100) // 2 if shards == 1 else found["updates"] > 400
    left = ranks - len(dead)
    more = ["--set", "max_steps=1800", "--json", str(path), "--checkpoints", str(out), "--resume"]
    again = mpiexec("openmpi", left, "-m", "collectives", "rl", *QUICK, "--shards", str(shards), *more, **HOW)
    assert again.returncode == 0, again.stderr
    assert result(again, path)["env_steps"] >= 1800


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_an_actor_may_die_at_any_moment(seed, tmp_path):
    """Until the others have parted from it. Runs of about 2 s on an idle machine."""
    seconds = np.random.default_rng(seed).uniform(0.02, 2.0)
    path = tmp_path / "json"
    more = ["--set", "max_steps=6000", "--set", "ratio=10", "--checkpoints", str(tmp_path / "out")]
    done = killed(5, f"{seconds:.3f}", "3", *more, "--json", str(path))
    if not path.exists():
        assert "rank 3 died" in done.stderr, done.stdout + done.stderr
        assert done.stdout.count("mean return") == 20, "it had not played to its end"
        return
    found = result(done, path)
    assert found["dead"] in ([3], [])
    assert found["env_steps"] >= 6000


@pytest.mark.parametrize(
    ("where", "victims", "options", "text"),
    [
        ("learn", "0", [], "rank 0 died, which was the learner"),
        ("draw", "1", [], "rank 1 died, which was shard 0"),
        ("play", "2,3", [], "all actors have died"),
        ("play", "3", ["--lockstep"], "in lockstep the others wait for it"),
    ],
)
def test_a_run_ends_without_those_that_it_needs(where, victims, options, text, tmp_path):
    done = killed(4, where, victims, *options, "--json", str(tmp_path / "json"))
    assert done.returncode != TIMED_OUT  # 0 if all ranks have ended by signals
    assert text in done.stderr
    assert not (tmp_path / "json").exists()
