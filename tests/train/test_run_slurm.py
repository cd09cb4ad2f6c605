"""Runs under Slurm that are told to stop, and requeued, again and again, end with the bits of undisturbed ones.

The job script is that of docs/training.md.
"""

import json
import random
import re
import time

import pytest
from jobs import ROOT

PROGRAM = ROOT / "tests/train/programs/resumable.py"
PAGE = (ROOT / "docs/training.md").read_text()
(SCRIPT,) = re.findall(r"^```sh\n(#!/bin/bash\n# train.sbatch\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
INTERFACES = {"mpich": "pmi2", "openmpi": "pmix"}
STEPS, STOPS = 200, 10  # stops on each MPI

pytestmark = pytest.mark.slow


def submit(slurm, mpi, out, sleep, options=""):
    """Submit the page's script, with a program and options of its own; the job's number."""
    if mpi == "openmpi" and (why := slurm.why_no_pmix()):
        pytest.skip(why)
    out.mkdir()
    program = f"{ROOT}/.venvs/{mpi}/bin/python {PROGRAM} {out} sleep={sleep} attempt=${{SLURM_RESTART_COUNT:-0}}"
    text = SCRIPT.replace("--mpi=pmi2 python train.py", f"--mpi={INTERFACES[mpi]} {program}")
    text = text.replace("--ntasks=4", "--ntasks=2")
    assert text.count(program) == text.count("--ntasks=2") == 1
    script = out.with_suffix(".sbatch")
    script.write_text(re.sub(r"--time=\S+ --signal=\S+", options, text))
    return slurm.submit(script)


def ends(out):
    """What the program has said at its ends."""
    printed = out.with_suffix(".out").read_text()
    return [json.loads(line) for line in re.findall(r"^END (.*)$", printed, re.MULTILINE)]


def wait_for_steps(out, attempt, steps):
    """Wait until a start of the program has made so many steps."""
    end = time.monotonic() + 120
    while sum(file.read_text().count("\n") for file in out.glob(f"seen-{attempt:03}-*-0")) < steps:
        assert time.monotonic() < end, f"no step {steps} of start {attempt}: {out.with_suffix('.out').read_text()}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(slurm, tmp_path_factory):
    """The end of a run that nothing has disturbed, by MPI."""
    known = {}

    def end(mpi):
        if mpi not in known:
            out = tmp_path_factory.mktemp("undisturbed") / "out"
            code = slurm.end_of(submit(slurm, mpi, out, 0), timeout=120)
            assert code == 0, out.with_suffix(".out").read_text()
            (known[mpi],) = ends(out)
        return known[mpi]

    return end


def check(slurm, job, out, stops, expected):
    """Check that a job was stopped at least so often, and what it came to in the end."""
    code = slurm.end_of(job, timeout=280)
    assert code == 0, out.with_suffix(".out").read_text()
    *stopped, end = ends(out)
    assert [one["stopped"] for one in stopped] == ["SIGUSR1"] * len(stopped)
    assert len(stopped) >= stops
    assert int(slurm.show(job)["Restarts"]) == len(stopped)
    assert end["step"] == STEPS
    assert end["records"] == expected["records"]
    assert end["sha256"] == expected["sha256"]


@pytest.mark.parametrize("mpi", INTERFACES)
def test_a_signal_at_any_step(mpi, slurm, undisturbed, tmp_path):
    expected, out = undisturbed(mpi), tmp_path / "out"
    job = submit(slurm, mpi, out, 0.1)
    for attempt in range(STOPS):
        wait_for_steps(out, attempt, random.randint(1, 6))
        slurm.signal(job, "USR1")
    check(slurm, job, out, STOPS, expected)


def test_the_time_limit(slurm, undisturbed, tmp_path):
    """Slurm sends the signal itself: 10 to 40 seconds before the minute is over, and again after each restart."""
    expected, out = undisturbed("mpich"), tmp_path / "out"
    check(slurm, submit(slurm, "mpich", out, 0.6, "--time=1 --signal=USR1@10"), out, 2, expected)
