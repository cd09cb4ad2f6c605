"""Runs that are killed or stopped, and go on: with as many ranks to the same bits, with others without losing a sample.

The program is tests/train/programs/resumable.py.
"""

import collections
import json
import random
import re
import signal

import pytest
from interrupt import interrupt
from jobs import MPIS, ROOT, mpiexec, start

PROGRAM = str(ROOT / "tests/train/programs/resumable.py")
SAMPLES, STEPS, EPOCHS = 300, 200, 8
STOPPED = 75
#: Numbers of ranks, each with the signal that ends them; the last number is that of the ranks which come to the end.
SHORT = ((2, signal.SIGKILL), (3, signal.SIGUSR1)), 1
LONG = (
    (2, signal.SIGKILL), (3, signal.SIGTERM), (1, signal.SIGKILL), (4, signal.SIGUSR1), (2, signal.SIGTERM),
    (1, signal.SIGUSR1), (3, signal.SIGKILL),
), 2  # fmt: skip


def told(printed):
    """What the program said at its end."""
    found = re.search(r"^END (.*)$", printed, re.MULTILINE)
    assert found, printed
    return json.loads(found[1])


def attempts(out):
    """The files of each start of the program, one for each rank, in the order of the starts."""
    found = collections.defaultdict(list)
    for file in sorted(out.glob("seen-*")):
        found[file.name.split("-")[1]].append(file)
    return list(found.values())


def steps_of(file):
    """The steps that a rank has made, from the one it began with; each with its samples."""
    made = (map(int, line.split()) for line in file.read_text().splitlines())
    return {step: rows for step, *rows in made}


def disturb(mpi, out, ranks, signum, steps, whom="one"):
    """Start the program and send it a signal after some steps; the launcher's exit code, and what was printed."""
    out.mkdir(exist_ok=True)
    number = len(attempts(out))
    job = start(mpi, ranks, PROGRAM, str(out), "sleep=0.005", f"attempt={number}")

    def ready():
        files = [file for files in attempts(out)[number:] for file in files if file.stat().st_size]
        return len(files) == ranks and max(len(steps_of(file)) for file in files) >= steps

    return interrupt(job, ready, signum, whom)


def finish(mpi, out, ranks):
    """Let the run go on to its end; what the program says."""
    done = mpiexec(mpi, ranks, PROGRAM, str(out), f"attempt={len(attempts(out))}")
    assert done.returncode == 0, done.stdout + done.stderr
    return told(done.stdout)


def counted(out):
    """How often each epoch's samples were used by steps that count: those that no later start has made anew."""
    made = {}
    for files in attempts(out):
        begin = int(files[0].name.split("-")[2])
        made = {step: rows for step, rows in made.items() if step < begin}
        for file in files:
            for step, rows in steps_of(file).items():
                made.setdefault(step, []).extend(rows)
    epochs = collections.defaultdict(collections.Counter)
    for step, rows in made.items():
        epochs[step // (STEPS // EPOCHS)].update(rows)
    return epochs


@pytest.mark.long
@pytest.mark.quick("9")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_the_same_bits_with_as_many_ranks(signum, tmp_path):
    """Weights, and records with their means, are those of a run that was neither killed nor stopped."""
    expected = finish("openmpi", tmp_path / "undisturbed", 2)
    out = tmp_path / "out"
    for times in range(1, 10):
        code, printed = disturb("openmpi", out, 2, signum, random.randint(1, STEPS // 3))
        assert code != 0, printed
        if signum == signal.SIGTERM:
            end = told(printed)
            assert end["stopped"] == "SIGTERM"
            assert (out / f"checkpoints/train/step-{end['step']:09d}").is_dir()
        if times > 1 and any(out.glob("checkpoints/train/step-*")):  # busy disks may take longer than the run lived
            break
    got = finish("openmpi", out, 2)
    assert got["resumed"] > 0
    assert got["step"] == expected["step"] == STEPS
    assert got["records"] == expected["records"]
    assert got["sha256"] == expected["sha256"]


@pytest.mark.in_turn
def test_a_signal_to_the_launcher(mpi, tmp_path):
    """All ranks stop, save, and go on later."""
    code, printed = disturb(mpi, tmp_path / "out", 2, signal.SIGUSR1, 20, whom="launcher")
    end = told(printed)
    assert (code, end["stopped"]) == (STOPPED, "SIGUSR1"), printed
    assert finish(mpi, tmp_path / "out", 2)["resumed"] == end["step"]


@pytest.mark.parametrize(
    ("mpi", "plan"), [("openmpi", SHORT), *(pytest.param(mpi, LONG, marks=pytest.mark.slow) for mpi in MPIS)]
)
def test_every_sample_is_seen_once_with_other_numbers_of_ranks(mpi, plan, tmp_path):
    out = tmp_path / "out"
    ends, last = plan
    for ranks, signum in ends:
        code, printed = disturb(mpi, out, ranks, signum, random.randint(1, STEPS // len(ends) // 2))
        assert code != 0, printed
        assert signum == signal.SIGKILL or told(printed)["stopped"] == signal.Signals(signum).name
    assert finish(mpi, out, last)["step"] == STEPS
    epochs = counted(out)
    assert len(epochs) == EPOCHS
    for epoch, rows in epochs.items():
        assert rows == collections.Counter(range(SAMPLES)), epoch
