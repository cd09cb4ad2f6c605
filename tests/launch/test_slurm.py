"""Jobs under Slurm on two nodes: by srun with PMI2 (MPICH) and PMIx (Open MPI), and by mpiexec in a job script.

tests/support/slurm.py says what that needs; where it is not there these tests are skipped, with the reason.
"""

import json
import os
import re

import pytest
from jobs import ROOT, torch_for
from slurm import Slurm
from torch_jobs import BACKEND, PASSED

INTERFACES = {"mpich": "pmi2", "openmpi": "pmix"}  # each MPI, and how it reaches srun
EVERY = str(ROOT / "tests/runtime/programs/every_collective.py")


@pytest.fixture
def run(slurm):
    """Run a program by srun, on an MPI; its output."""

    def run(mpi, *command, ranks=4, env=None, timeout=120):
        interface = INTERFACES[mpi]
        if interface == "pmix" and (why := slurm.why_no_pmix()):
            pytest.skip(why)
        python = str(ROOT / f".venvs/{'torch' if env and mpi == 'openmpi' else mpi}/bin/python")
        done = slurm.srun(python, *command, mpi=interface, ranks=ranks, env=env, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
        return done.stdout

    return run


@pytest.mark.parametrize("mpi", [pytest.param("mpich", marks=pytest.mark.slow), "openmpi"])
def test_info(mpi, run):
    """One rank speaks, and knows how many there are."""
    account = json.loads(run(mpi, "-m", "collectives", "info", "--json"))
    assert account["mpi"]["ranks"] == 4


@pytest.mark.parametrize("mpi", [pytest.param("openmpi", marks=pytest.mark.slow), "mpich"])
def test_every_collective(mpi, run):
    """Between nodes, in every form, with right results."""
    ranks = 4 if mpi == "openmpi" else 2  # ranks of MPICH spin
    assert re.fullmatch(rf"\d+ calls on {ranks} ranks: every result right\n", run(mpi, EVERY, "between", ranks=ranks))


@pytest.mark.slow
def test_every_collective_of_spinning_ranks(run):
    assert "calls on 4 ranks: every result right" in run("mpich", EVERY, "between", timeout=600)


@pytest.mark.parametrize("mpi", [pytest.param("openmpi", marks=pytest.mark.slow), "mpich"])
def test_the_demo(mpi, run, digits):
    """The weights are the same on all ranks, and better than without communication.

    The ranks of the two nodes are sessions of their own on the same cores. Where long waits only give way, Linux may
    let a rank that others wait for starve for seconds, and the demo takes ten minutes.
    """
    printed = run(mpi, "-m", "collectives", "train", "--data", digits, "--epochs", "10", timeout=100)
    reached = [float(accuracy) for accuracy in re.findall(r"test accuracy (0\.\d+)", printed)]
    assert "the same bits" in printed
    assert len(reached) == 2, printed
    assert reached[0] > 0.9 > reached[1], printed


@pytest.mark.slow
@pytest.mark.parametrize("mpi", INTERFACES)
def test_torch(mpi, run):
    """The backend asks MPI for rank and size."""
    env = torch_for(mpi) if mpi == "mpich" else {"PYTHONPATH": str(ROOT)}
    assert run(mpi, str(ROOT / BACKEND), ranks=2, env=env).splitlines() == ["mpi4py is there", PASSED]


#: Rank 3 is killed in the middle of an all-reduce, in which rank 0 is the last to come.
DEATH = """
import os, signal, threading, time
import numpy as np
from mpi4py import MPI
import collectives
comm = collectives.Communicator(MPI.COMM_WORLD)
x = np.ones(100_000)
comm.Allreduce(MPI.IN_PLACE, x)
if comm.rank == 3:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
if comm.rank == 0:
    time.sleep(1)
comm.Allreduce(MPI.IN_PLACE, x, timeout=5)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mpi", "flags"), [("mpich", ()), ("mpich", ("--kill-on-bad-exit=1",)), ("openmpi", ())])
def test_a_task_that_is_killed(mpi, flags, slurm):
    """srun names it, and the step ends: by the survivors' errors with MPICH, else by Slurm (docs/errors.md)."""
    if mpi == "openmpi" and (why := slurm.why_no_pmix()):
        pytest.skip(why)
    python = str(ROOT / f".venvs/{mpi}/bin/python")
    done = slurm.srun(python, "-c", DEATH, mpi=INTERFACES[mpi], flags=flags, timeout=60)
    assert done.returncode not in (0, 124), done.stderr
    assert re.search(r"^srun: error: s2: (task 3|tasks 2-3): Killed$", done.stderr, re.MULTILINE), done.stderr
    if mpi == "mpich" and not flags:
        assert re.search(r"PeerFailure: allreduce \([^\n]*\) on rank 2 of 4: rank 3 died", done.stderr), done.stderr
    else:  # by Slurm, long before the timeout
        assert "CollectiveTimeout" not in done.stderr


@pytest.mark.slow
def test_survivors_of_mpiexec_in_a_job_script(slurm, tmp_path):
    """With Open MPI and ULFM they go on, which Slurm's own PMIx does not let them: the program of docs/errors.md."""
    page = (ROOT / "docs/errors.md").read_text()
    (program,) = re.findall(r"^```python\n(# survive.py\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "survive.py").write_text(program)
    script = tmp_path / "survive.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=2 --ntasks=4\nmpiexec --with-ft ulfm -n 3 python survive.py\n")
    code, printed = slurm.sbatch(script, {"PATH": f"{ROOT}/.venvs/openmpi/bin:{os.environ['PATH']}"})
    assert "3 steps, the last one on 2 ranks: 2.0\n" in printed, f"{code}\n{printed}"


def test_without_its_programs(monkeypatch, tmp_path):
    monkeypatch.setattr("slurm.shutil.which", lambda name, path=None: None)
    with pytest.raises(RuntimeError, match="needs root, and the programs munged"):
        Slurm(tmp_path)
