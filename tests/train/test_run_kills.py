"""Trainings that are killed, or told to stop, at random moments: 20 times each, spread over the three MPIs.

They end with the bits of trainings that nothing disturbs. One command runs it all:

    python -m pytest tests/train/test_run_kills.py
"""

import json
import random
import signal
import time

import pytest
from interrupt import interrupt, newest
from jobs import MPIS, mpiexec, packages_of, start

TIMES = {"openmpi": 8, "mpich": 6, "impi": 6}  # 20 times by SIGKILL, and as often by SIGTERM
RANKS, EPOCHS, BATCH, STEPS = 2, 20, 64, 460
STOPPED = 75

pytestmark = pytest.mark.slow


@pytest.fixture
def command(digits, tmp_path):
    return [
        "-m", "collectives", "train", "--data", digits, "--model", "cnn", "--epochs", str(EPOCHS),
        "--batch", str(BATCH), "--no-control", "--json", str(tmp_path / "result.json"),
    ]  # fmt: skip


def result(tmp_path):
    """What the training says of itself, but for its time; None if it has not come to say it."""
    file = tmp_path / "result.json"
    if not file.exists():
        return None
    found = json.loads(file.read_text())
    file.unlink()
    assert found.pop("seconds") > 0
    return found


def disturb(mpi, command, out, signum, steps):
    """Start the training and send one rank or all a signal some time after it has saved ``steps`` further steps."""
    begin, late = newest(out), random.uniform(0, 0.1)

    def ready():
        if newest(out) < begin + steps:
            return False
        time.sleep(late)
        return True

    job = start(mpi, RANKS, *command, env=packages_of("openmpi"))
    return interrupt(job, ready, signum, random.choice(["one", "all"]))


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("mpi", MPIS)
def test_the_same_bits_with_as_many_ranks(mpi, signum, command, tmp_path):
    """Also the accuracy, and the bytes that each rank has sent in all."""
    done = mpiexec(mpi, RANKS, *command, env=packages_of("openmpi"))
    assert done.returncode == 0, done.stdout + done.stderr
    expected = result(tmp_path)
    assert expected["steps"] == STEPS
    out = tmp_path / "out"
    command += ["--out", str(out), "--checkpoint-every", "5", "--resume"]
    for _ in range(TIMES[mpi]):
        code, printed = disturb(mpi, command, out, signum, random.randint(1, STEPS // TIMES[mpi] // 2))
        said = result(tmp_path)
        if signum == signal.SIGKILL:
            assert code != 0, printed
            assert said is None
        else:
            assert code == STOPPED, printed
            assert said["stopped"] == "SIGTERM"
            assert newest(out) == said["steps"] < STEPS
    done = mpiexec(mpi, RANKS, *command, env=packages_of("openmpi"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "goes on from the checkpoint" in done.stdout
    assert result(tmp_path) == expected
