"""Runs that are killed or stopped, and go on: with as many ranks to the same bits, with others without losing a sample.

The program is tests/train/programs/resumable.py.
"""

import collections
import json
import os
import random
import re
import signal
import time

import pytest
from jobs import RANK, ROOT, descendants, environment, mpiexec, start

PROGRAM = str(ROOT / "tests/train/programs/resumable.py")
SAMPLES, STEPS, EPOCHS = 300, 200, 8
STOPPED = 75


def told(printed):
    """What the program said at its end."""
    found = re.search(r"^END (.*)$", printed, re.MULTILINE)
    assert found, printed
    return json.loads(found[1])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The end of a run that nothing has disturbed, by number of ranks."""
    ends = {}

    def end(ranks):
        if ranks not in ends:
            done = mpiexec("openmpi", ranks, PROGRAM, str(tmp_path_factory.mktemp("undisturbed")), "every=1000")
            assert done.returncode == 0, done.stdout + done.stderr
            ends[ranks] = told(done.stdout)
        return ends[ranks]

    return end


def last_step(out):
    """The last step that any rank has begun, counted from 0."""
    lines = [line for file in out.glob("seen-*") for line in file.read_text().splitlines(True) if line.endswith("\n")]
    return max((int(line.split()[0]) for line in lines), default=0)


def disturb(out, ranks, signum, steps, *options):
    """Start the run, send one rank a signal after some more steps; the launcher's exit code and what was printed."""
    out.mkdir(exist_ok=True)
    begin, job = last_step(out), start("openmpi", ranks, PROGRAM, str(out), "sleep=0.005", *options)
    known = {file.name for file in out.glob("seen-*")}
    try:
        end = time.monotonic() + 60
        while job.poll() is None:
            new = [file for file in out.glob("seen-*") if file.name not in known and file.stat().st_size]
            first = min((int(re.match(r"seen-(\d+)", file.name)[1]) for file in new), default=begin)
            if len(new) == ranks and max(map(reached, new)) >= first + steps:
                break
            assert time.monotonic() < end, "it makes no steps"
            time.sleep(0.002)
        pids = [pid for pid in descendants(job.pid) if RANK.search(environment(pid))]
        if pids:
            os.kill(random.choice(pids), signum)
        printed, _ = job.communicate(timeout=60)
    finally:
        job.kill()
    return job.returncode, printed


def reached(file):
    lines = file.read_text().splitlines()
    return int(lines[-1].split()[0]) if lines else 0


def finish(out, ranks):
    """Let the run go on to its end; what the program says."""
    done = mpiexec("openmpi", ranks, PROGRAM, str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    return told(done.stdout)


def counted(out):
    """How often each epoch's samples were used by steps that count: those that no later process has made anew."""
    attempts = collections.defaultdict(lambda: collections.defaultdict(list))  # step it began with: {step: samples}
    for file in out.glob("seen-*"):
        for line in file.read_text().splitlines():
            step, *rows = map(int, line.split())
            attempts[int(file.name.split("-")[1])][step].extend(rows)
    epochs, end = collections.defaultdict(collections.Counter), STEPS
    for begin in sorted(attempts, reverse=True):
        for step in range(begin, end):
            epochs[step // (STEPS // EPOCHS)].update(attempts[begin][step])
        end = begin
    return epochs


def check_same_end(got, expected):
    assert got["step"] == expected["step"] == STEPS
    assert got["records"] == expected["records"]
    assert got["sha256"] == expected["sha256"]


@pytest.mark.parametrize(("signum", "times"), [
    (signal.SIGKILL, 2), (signal.SIGTERM, 2),
    pytest.param(signal.SIGKILL, 20, marks=pytest.mark.slow), pytest.param(signal.SIGTERM, 20, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_same_bits_with_as_many_ranks(signum, times, tmp_path, undisturbed):
    """However often a rank is killed, or told to stop; weights, and records with their means, are those of one run."""
    out, stops = tmp_path / "out", 0
    for _ in range(times):
        code, printed = disturb(out, 2, signum, random.randint(1, STEPS // times * 3 // 5))
        assert code != 0, printed
        if signum == signal.SIGTERM and "END" in printed:
            end = told(printed)
            assert end["stopped"] == "SIGTERM"
            assert (out / f"checkpoints/train/step-{end['step']:09d}").is_dir()
            stops += 1
    assert signum == signal.SIGKILL or stops == times
    check_same_end(finish(out, 2), undisturbed(2))


def test_every_sample_is_seen_once_with_other_numbers_of_ranks(tmp_path):
    """Killed on 2 ranks, stopped on 3, ended on 1: each epoch has each sample once."""
    out = tmp_path / "out"
    disturb(out, 2, signal.SIGKILL, 40)
    code, printed = disturb(out, 3, signal.SIGUSR1, 37)
    assert told(printed)["stopped"] == "SIGUSR1", printed
    assert finish(out, 1)["step"] == STEPS
    epochs = counted(out)
    assert len(epochs) == EPOCHS
    for epoch, rows in epochs.items():
        assert rows == collections.Counter(range(SAMPLES)), epoch
