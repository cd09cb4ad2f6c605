"""The command in one process, and on ranks of MPI."""

import argparse
import json
import sysconfig

import numpy as np
import pytest
from jobs import mpiexec, packages_behind
from mpi4py import MPI

from collectives.rl import cli
from collectives.train import threads

KEYS = {"algorithm", "ranks", "env", "seed", "env_steps", "updates", "seconds", "mean_return"}
QUICK = [
    "--set", "max_steps=400", "--set", "evaluate_every=200", "--set", "start=100", "--set", "hidden=16",
    "--set", "trials=2", "--set", "episodes=3",
]  # fmt: skip


def main(*options, comm=MPI.COMM_SELF):
    parser = argparse.ArgumentParser(prog="rl")
    cli.add_arguments(parser)
    return cli.main(parser.parse_args([*QUICK, *options]), comm)


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
    (tmp_path / "parts" / ".writing-step-000000000500").mkdir()  # a run that was killed meanwhile
    assert ended("parts", "--resume", "--set", "max_steps=600") == whole
    assert "goes on from the checkpoint of step 400" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["step-000000000600"]


@pytest.mark.parametrize("seen", ["200", "150"])
def test_a_folder_with_checkpoints_is_left_alone(tmp_path, capsys, seen):
    """Whether the new run's first checkpoint would have the same name, or another one."""
    assert main("dqn", "--set", "max_steps=200", "--checkpoints", str(tmp_path)) == 0
    (kept,) = tmp_path.iterdir()
    before = (kept / "manifest.json").read_bytes()
    capsys.readouterr()
    assert main("dqn", "--seed", "1", "--set", f"evaluate_every={seen}", "--checkpoints", str(tmp_path)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""  # nothing was computed
    assert f"{tmp_path} has checkpoints of an earlier run" in printed.err
    assert list(tmp_path.iterdir()) == [kept]
    assert (kept / "manifest.json").read_bytes() == before
    assert main("dqn", "--resume", "--checkpoints", str(tmp_path)) == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["dqn", "--shards", "2"], "--shards has no effect with dqn"),
        (["gorila", "--shards", "2"], "--shards has no effect with gorila"),
        (["dqn", "--servers", "2"], "--servers has no effect with dqn"),
        (["apex", "--servers", "2"], "--servers has no effect with apex"),
        (["dqn", "--lockstep"], "--lockstep has no effect with dqn"),
        (["gorila", "--set", "clip=1"], "--set clip has no effect with gorila"),
        (["dqn", "--set", "envs=2"], "--set envs has no effect with dqn"),
        (["gorila", "--set", "chunk=10"], "--set chunk has no effect with gorila"),
        (["dqn", "--set", "fetch_every=10"], "--set fetch_every has no effect with dqn"),
        (["gorila", "--set", "ahead=2"], "--set ahead has no effect with gorila"),
        (["apex", "--lockstep", "--set", "ahead=2"], "--set ahead has no effect with --lockstep"),
        (["apex", "--set", "oldest=2"], "--set oldest has no effect with apex"),
        (["gorila", "--lockstep", "--set", "oldest=2"], "--set oldest has no effect with --lockstep"),
        (["dqn", "--set", "deviations=2"], "--set deviations has no effect with dqn"),
        (["apex", "--set", "epsilon_steps=10"], "--set epsilon_steps has no effect with apex"),
        (["dqn", "--set", "epsilon_base=0.1"], "--set epsilon_base has no effect with dqn"),
        (["dqn", "--set", "alpha=0.1"], "--set alpha has no effect without --set prioritised=true"),
        (["dqn", "--set", "convolutions=4,2,1"], "--set convolutions has no effect on CartPole-v1"),
        (["dqn", "--set", "side=40"], "--set side has no effect on CartPole-v1"),
    ],
)
def test_what_has_no_effect_is_refused(options, text, capsys):
    assert main(*options) == 2
    assert text in capsys.readouterr().err


def test_what_has_an_effect_is_not_refused(tmp_path):
    options = ["prioritised=true", "alpha=0.1", "beta=1", "clip=1", "epsilon_steps=10", "chunk=50"]
    assert main("dqn", "--shards", "1", *(word for text in options for word in ("--set", text))) == 0


@pytest.mark.parametrize("algorithm", ["apex", "gorila"])
def test_a_file_that_one_rank_cannot_read(algorithm, tmp_path, capsys):
    assert main("dqn", "--record", str(tmp_path / "0")) == 0
    (tmp_path / "2").write_bytes((tmp_path / "0").read_bytes())

    def on_rank(comm):
        return main(algorithm, "--experience", str(tmp_path / str(comm.rank)), comm=comm)

    assert threads.run(3, on_rank, timeout=10) == [2] * 3
    assert "rank 1: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["apex"], "Ape-X needs 3 ranks"),
        (["gorila"], "none is left to train"),
        (["dqn", "--env", "Nothing-v0"], "no environment"),
        (["dqn", "--set", "speed=1"], "--set speed=1"),
        (["dqn", "--set", "n=0"], "n must be at least 1"),
        (["dqn", "--set", "lr=none"], "--set lr=none"),
        (["dqn", "--resume"], "--resume needs a folder"),
        (["dqn", "--json", "/nowhere/file"], "cannot write /nowhere/file"),
        (["dqn", "--picture", "curve.xyz"], "cannot draw curve.xyz: pictures end with"),
        (["dqn", "--checkpoints", "/dev/null/out"], "/dev/null/out"),
        (["dqn", "--experience", "/nowhere/file"], "/nowhere/file"),
    ],
)
def test_errors(options, text, capsys):
    assert main(*options) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(("algorithm", "ranks"), [("dqn", 1), ("gorila", 3)])
def test_a_checkpoint_that_cannot_be_written(algorithm, ranks, tmp_path, capsys, monkeypatch):
    """In the middle of the run; the servers end, too."""

    def full(self, comm, step, state):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cli.Checkpoints, "save", full)
    found = threads.run(ranks, lambda comm: main(algorithm, "--checkpoints", str(tmp_path), comm=comm), timeout=20)
    assert found == [2] * ranks
    assert "rl: error: [Errno 28] No space left on device" in capsys.readouterr().err


def test_experience_of_other_actions_is_refused(tmp_path, capsys):
    path = tmp_path / "seen.npz"
    assert main("dqn", "--record", str(path)) == 0
    with np.load(path) as file:
        seen = dict(file)
    seen["actions"][7] = 2
    np.savez(path, **seen)
    assert main("dqn", "--experience", str(path)) == 2
    assert "actions are 0 to 2, of this environment 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--record", "--picture"])
def test_a_file_that_cannot_be_written_in_the_end(option, tmp_path, capsys):
    """All ranks end alike; the result is printed, and is in the other files."""
    path, seen = tmp_path / "json", tmp_path / "seen.npz"
    words = ["gorila", "--json", str(path), "--record", str(seen), option, "/dev/full"]
    assert threads.run(2, lambda comm: main(*words, comm=comm), timeout=20) == [2, 2]
    printed = capsys.readouterr()
    assert "mean greedy return" in printed.out
    assert "rl: error: cannot write /dev/full: " in printed.err
    assert result(path)["env_steps"] == 400
    assert seen.exists() == (option == "--picture")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("words", "ranks", "text"),
    [
        (["dqn"], 1, "the loss of update 2 is nan"),
        (["apex"], 3, "smaller learning rate may help"),
        (["apex", "--lockstep"], 4, "smaller learning rate may help"),
    ],
)
def test_a_run_that_diverges(words, ranks, text, capsys):
    """All ranks end alike."""
    assert threads.run(ranks, lambda comm: main(*words, "--set", "lr=1e38", comm=comm), timeout=30) == [2] * ranks
    err = capsys.readouterr().err
    assert "rl: error: " in err
    assert text in err


def test_what_a_gorila_that_goes_on_counts(tmp_path):
    """The last run has nothing left to do."""

    def ended(steps, *options):
        words = ["gorila", "--lockstep", "--set", f"max_steps={steps}", *options]
        files = ["--json", str(tmp_path / "json"), "--checkpoints", str(tmp_path / "out")]
        assert threads.run(3, lambda comm: main(*words, *files, comm=comm), timeout=60) == [0] * 3
        found = result(tmp_path / "json")
        assert found["bytes_per_step"] == sum(found["bytes"].values()) / max(1, found["counted_steps"])
        return found["env_steps"], found["counted_steps"], found["bytes"]["learners to server"]

    first, second, third = ended(400), ended(600, "--resume"), ended(600, "--resume")
    assert [first[:2], second[:2], third[:2]] == [(400, 400), (600, 200), (600, 0)]
    assert 0 < third[2] < second[2] < first[2]


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
