"""docs/training.md: its programs and commands run and print what the page says; its job script runs under Slurm."""

import os
import re
import signal
import subprocess

import pytest
from interrupt import interrupt
from jobs import ROOT, variables

PAGE = (ROOT / "docs/training.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PROGRAMS = {re.match(r"# (.*)\n", block)[1]: block for language, block in BLOCKS if language == "python"}
SCRIPTS = {re.search(r"^# (.*)$", block, re.MULTILINE)[1]: block for _, block in BLOCKS if block.startswith("#!")}
RANKS = {"train.py": 4, "options.py": 2, "read.py": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("training")


def environment(mpi):
    """That in which a page's commands find an MPI."""
    path = f"{ROOT}/.venvs/{mpi}/bin:{os.environ['PATH']}"
    return variables({"PATH": path, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"})


def run(line, folder):
    words = ["timeout", "-k", "5", "120", "sh", "-c", line]
    done = subprocess.run(
        words, cwd=folder, env=environment("openmpi"), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page(folder):
    """In order: programs run when they come, or by the command after them; a text is the end of what was printed."""
    printed = ""
    for language, block in BLOCKS:
        if language == "python":
            name = re.match(r"# (.*)\n", block)[1]
            (folder / name).write_text(block)
            if name == "train.py":  # which a command runs
                continue
            printed = run(f"mpiexec -n {RANKS[name]} python {name}", folder)
        elif language == "sh" and not block.startswith("#!"):
            for line in block.splitlines():
                printed = run(line, folder)
        elif language == "text":
            assert printed.endswith(block), printed
    assert "goes on from the checkpoint" in printed
    assert (folder / "demo/curve.png").exists()
    assert (folder / "records.jsonl").exists()


def test_again_there_is_nothing_to_do(folder):
    printed = run("mpiexec -n 3 python train.py", folder)
    assert printed == "stopped by None after step 160\n"


@pytest.mark.in_turn
def test_the_script_that_stops_at_sigterm(mpi, tmp_path):
    """With the program of tests/train/test_run_resumes.py, which takes longer."""
    assert SCRIPTS.keys() == {"stoppable.sh", "train.sbatch"}
    program = f"{ROOT}/tests/train/programs/resumable.py {tmp_path} sleep=0.05"
    script = SCRIPTS["stoppable.sh"].replace("-n 4", "-n 2").replace("train.py", program)
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, "text": True}
    job = subprocess.Popen(["bash", "-c", script], env=environment(mpi), **how)
    seen = tmp_path / "seen-000-0-0"

    def ready():
        return seen.exists() and seen.read_text().count("\n") > 5

    code, printed = interrupt(job, ready, signal.SIGTERM, "launcher")
    assert code == 75, printed
    assert '"stopped": "SIGUSR1"' in printed


@pytest.mark.slow
def test_the_job_script(slurm, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAMS["train.py"])
    (tmp_path / "train.sbatch").write_text(SCRIPTS["train.sbatch"])
    path = f"{ROOT}/.venvs/mpich/bin:{os.environ['PATH']}"
    code, printed = slurm.sbatch(tmp_path / "train.sbatch", {"PATH": path}, timeout=200)
    assert code == 0, printed
    assert "stopped by None after step 160" in printed


def test_links():
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
    for anchor in re.findall(r"\]\(#([^)]+)\)", PAGE):
        assert anchor in [h.lower().replace(" ", "-") for h in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)], anchor
