"""The command in one process, and on ranks of MPI."""

import argparse
import json
import sysconfig

import numpy as np
import pytest
from jobs import mpiexec, packages_behind
from mpi4py import MPI

from collectives.rl import cli

KEYS = {"algorithm", "ranks", "env", "seed", "env_steps", "updates", "seconds", "mean_return"}
QUICK = [
    "--set", "max_steps=400", "--set", "evaluate_every=200", "--set", "start=100", "--set", "hidden=16",
    "--set", "trials=2", "--set", "episodes=3",
]  # fmt: skip


def main(*options):
    parser = argparse.ArgumentParser(prog="rl")
    cli.add_arguments(parser)
    return cli.main(parser.parse_args([*QUICK, *options]), MPI.COMM_SELF)


def result(path):
    return json.loads(path.read_text())


def test_files(tmp_path, capsys):
    path, picture = tmp_path / "dqn.json", tmp_path / "dqn.png"
    options = ["--json", str(path), "--picture", str(picture), "--record", str(tmp_path / "seen.npz")]
    assert main("dqn", "--seed", "3", *options) == 0
    found = result(path)
    assert found.keys() > KEYS
    assert (found["algorithm"], found["ranks"], found["env"], found["seed"]) == ("dqn", 1, "CartPole-v1", 3)
    assert found["env_steps"] == 400
    assert found["updates"] == 150
    assert [trial["env_steps"] for trial in found["trials"]] == [200, 400]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"mean greedy return {found['mean_return']:.1f} after 400 environment steps" in capsys.readouterr().out
    assert len(np.load(tmp_path / "seen.npz")["actions"]) == 400
    assert main("dqn", "--seed", "3", "--json", str(path)) == 0
    again = result(path)
    for entry in (found, again, *found["trials"], *again["trials"]):
        del entry["seconds"]
    assert again == found
    assert main("dqn", "--experience", str(tmp_path / "seen.npz"), "--json", str(path)) == 0
    assert result(path)["updates"] == 200  # it learns from the first step on


def test_resume(tmp_path, capsys):
    def ended(folder, *options):
        assert main("dqn", *options, "--checkpoints", str(tmp_path / folder), "--json", str(tmp_path / "json")) == 0
        found = result(tmp_path / "json")
        return found["env_steps"], found["updates"], found["mean_return"]

    whole = ended("whole", "--set", "max_steps=600")
    assert ended("parts")[0] == 400
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["step-000000000400"]
    capsys.readouterr()
    assert main("dqn", "--resume", "--seed", "1", "--checkpoints", str(tmp_path / "parts")) == 2
    assert "seed is 0 there, 1 here" in capsys.readouterr().err
    assert ended("parts", "--resume", "--set", "max_steps=600") == whole
    assert "goes on from the checkpoint of step 400" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["apex"], "Ape-X needs 3 ranks"),
        (["gorila"], "none is left to train"),
        (["dqn", "--env", "Nothing-v0"], "no environment"),
        (["dqn", "--set", "speed=1"], "--set speed=1"),
        (["dqn", "--set", "n=0"], "n must be at least 1"),
        (["dqn", "--resume"], "--resume needs a folder"),
        (["dqn", "--json", "/nowhere/file"], "cannot write /nowhere/file"),
        (["dqn", "--experience", "/nowhere/file"], "/nowhere/file"),
    ],
)
def test_errors(options, text, capsys):
    assert main(*options) == 2
    assert text in capsys.readouterr().err


@pytest.mark.quick("True-apex", "False-gorila")
@pytest.mark.parametrize("algorithm", ["apex", "gorila"])
@pytest.mark.parametrize("lockstep", [True, False])
def test_on_ranks(tmp_path, algorithm, lockstep):
    """Few updates: in lockstep each is a message there and one back, whose ranks a busy machine may let wait long."""
    options = [algorithm, "--json", str(tmp_path / "json"), "--checkpoints", str(tmp_path / "out"), *QUICK]
    command = ["-m", "collectives", "rl", *options, "--set", "ratio=10", *(["--lockstep"] if lockstep else [])]
    done = mpiexec("openmpi", 4, *command, env=packages_behind(sysconfig.get_paths()["purelib"]))
    assert done.returncode == 0, done.stderr
    found = result(tmp_path / "json")
    assert found.keys() > KEYS
    assert (found["ranks"], found["env_steps"] >= 400, found["updates"] >= 24) == (4, True, True)
    assert found["bytes_per_step"] == sum(found["bytes"].values()) / found["env_steps"]
    for path in found["bytes"]:
        assert path in done.stdout


@pytest.mark.slow
def test_pong_on_ranks(tmp_path):
    """Each transition has two observations of four frames of 40 x 40 bytes, of which each is sent once."""
    numbers = (
        "max_steps=300", "evaluate_every=300", "start=100", "trials=1", "episodes=1", "chunk=24", "envs=2", "side=40",
        "ratio=4", "convolutions=16,4,2,32,4,2", "actions=0,2,3",
    )  # fmt: skip
    options = ["apex", "--env", "ALE/Pong-v5", "--json", str(tmp_path / "json")]
    command = ["-m", "collectives", "rl", *options, *(word for number in numbers for word in ("--set", number))]
    done = mpiexec("openmpi", 4, *command, env=packages_behind(sysconfig.get_paths()["purelib"]))
    assert done.returncode == 0, done.stderr
    found = result(tmp_path / "json")
    assert found["env_steps"] >= 300
    assert found["updates"] == (found["env_steps"] - 100) // 4
    assert -21 <= found["mean_return"] <= 21
    frame = 40 * 40
    assert 0.5 < found["bytes"]["actors to replay"] / (found["env_steps"] * frame) < 2
    assert 3 < found["bytes"]["replay to learner"] / (found["updates"] * 32 * frame) < 7.2
