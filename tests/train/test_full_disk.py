"""A disk that fills up during a training: a clear error, and no checkpoint is lost or half there."""

import json
import subprocess

import pytest
from jobs import mpiexec
from mpi4py import MPI

from collectives.train import checkpoint

COMMAND = (
    "-m", "collectives", "train", "--model", "mlp", "--batch", "64", "--epochs", "2", "--no-control", "--resume",
    "--checkpoint-every", "2", "--keep", "1000",
)  # fmt: skip
STEPS = 46


def mount(options, place):
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True)


@pytest.fixture
def disk(tmp_path):
    """A disk of 1 MiB, which holds a few of the checkpoints."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = mount("size=1m", place)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr}")
    yield place
    subprocess.run(["umount", place], check=True)


def train(out, result):
    """Train on 2 ranks; the exit code, what was printed, and what the training says of itself."""
    done = mpiexec("openmpi", 2, *COMMAND, "--out", str(out), "--json", str(result), timeout=100)
    said = json.loads(result.read_text()) if result.exists() else {}
    said.pop("seconds", None)
    return done.returncode, done.stdout + done.stderr, said


def steps_of(out):
    """The steps of the checkpoints, each of which can be read to its last byte."""
    steps = []
    for folder in sorted(out.glob("checkpoints/*/step-*")):
        loaded = checkpoint.load(folder, MPI.COMM_SELF)
        assert {name for name in loaded.names if loaded.state(name)} >= {"net", "opt", "data"}
        assert folder.name == f"step-{loaded.step:09d}"
        steps.append(loaded.step)
    return steps


@pytest.mark.long
def test_a_full_disk(disk, tmp_path):
    """Two runs fail; with more room a third goes on, to the bits of one that nothing has disturbed."""
    expected = train(tmp_path / "undisturbed", tmp_path / "expected.json")[2]
    assert expected["steps"] == STEPS
    out, steps = disk / "out", []
    for _ in range(2):
        code, printed, said = train(out, tmp_path / "result.json")
        assert code == 2, printed
        assert "train: error: " in printed
        assert f"No space left on device: {str(out)!r}"[:-1] in printed.replace("device: /", "device: '/"), printed
        assert said == {}
        before, steps = steps, steps_of(out)
        assert steps[: len(before)] == before
        assert 2 < len(steps) < STEPS // 2
    assert mount("remount,size=20m", disk).returncode == 0
    code, printed, said = train(out, tmp_path / "result.json")
    assert code == 0, printed
    assert f"goes on from the checkpoint of step {steps[-1]}" in printed
    assert said == expected
    assert not list(out.glob("checkpoints/*/.*"))
