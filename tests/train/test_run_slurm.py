"""A run under Slurm that is told to stop, and requeued, again and again, ends with the bits of an undisturbed one."""

import json
import re
import subprocess
import threading
import time

import pytest
from jobs import ROOT, variables

PROGRAM = ROOT / "tests/train/programs/resumable.py"
PYTHON = ROOT / ".venvs/mpich/bin/python"
SCRIPT = f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks=2 --requeue --open-mode=append TIME
srun --mpi=pmi2 {PYTHON} {PROGRAM} OUT sleep=SLEEP
if [ $? -eq 75 ]; then scontrol requeue $SLURM_JOB_ID; fi
"""
STEPS = 200

pytestmark = pytest.mark.slow


class Requeued:
    """A job that is started again at once when it is requeued: Slurm would wait two minutes, lest credentials meet."""

    def __init__(self, slurm, script):
        self._env = variables({"SLURM_CONF": str(slurm._folder / "slurm.conf")})
        self._script, self.ended = script, None
        self._thread = threading.Thread(target=self._run, args=(slurm,))
        self._thread.start()

    def _run(self, slurm):
        self.ended = slurm.sbatch(self._script, timeout=280)

    def control(self, *words):
        done = subprocess.run(words, env=self._env, capture_output=True, text=True, timeout=30)
        return done.stdout

    def start_again(self):
        """If the job waits for its time, let it start now; its number, or None if it is not there."""
        shown = self.control("scontrol", "--oneliner", "show", "job")
        for job in re.findall(r"JobId=(\d+).*JobState=PENDING.*Reason=BeginTime", shown):
            self.control("scontrol", "update", f"JobId={job}", "StartTime=now")
        running = re.search(r"JobId=(\d+).*JobState=RUNNING", shown)
        return running and running[1]

    def until_end(self):
        while self._thread.is_alive():
            self.start_again()
            time.sleep(0.5)
        return self.ended


def written(tmp_path, name, out, sleep, limit=""):
    script = tmp_path / f"{name}.sbatch"
    out.mkdir(exist_ok=True)
    text = SCRIPT.replace("OUT", str(out)).replace("SLEEP", str(sleep)).replace("TIME", limit)
    script.write_text(text)
    return script


def steps_of(out):
    """How many steps the processes have begun, all together."""
    return sum(file.read_text().count("\n") for file in out.glob("seen-*-0-*"))


def told(printed):
    return [json.loads(line) for line in re.findall(r"^END (.*)$", printed, re.MULTILINE)]


@pytest.fixture(scope="module")
def undisturbed(slurm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    code, printed = slurm.sbatch(written(folder, "job", folder / "out", 0), timeout=200)
    assert code == 0, printed
    (end,) = told(printed)
    return end


def check(job, expected, stops):
    code, printed = job.until_end()
    ends = told(printed)
    assert code == 0, printed
    assert [end["stopped"] for end in ends[:-1]] == ["SIGUSR1"] * (len(ends) - 1)
    assert len(ends) - 1 >= stops, printed
    assert ends[-1]["step"] == STEPS
    assert ends[-1]["sha256"] == expected["sha256"]
    assert ends[-1]["records"] == expected["records"]


def test_the_time_limit(slurm, tmp_path, undisturbed):
    """Slurm sends the signal itself, 30 seconds before the end of a minute, or up to a minute earlier."""
    out = tmp_path / "out"
    job = Requeued(slurm, written(tmp_path, "job", out, 0.3, "--time=1 --signal=USR1@30"))
    check(job, undisturbed, 1)
