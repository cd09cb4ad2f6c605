"""Jobs: programs on the ranks of an MPI, in the environments that `make build-all` sets up: three MPIs, and torch and
JAX with Open MPI."""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MPIS = ("openmpi", "mpich", "impi")
#: For survivors to live on: what launchers are told.
LIVE_ON = {"openmpi": ["--with-ft", "ulfm"], "mpich": ["-disable-auto-cleanup"], "impi": ["-disable-auto-cleanup"]}
#: For programs of elastic training, by `mpiexec` of Open MPI.
ELASTIC = {
    "env": {"COLLECTIVES_TIMEOUT": "60", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}"},
    "flags": LIVE_ON["openmpi"],
}
#: For those that replace the dead. New ranks start with the sleep that tests/conftest.py spares all others: without
#: it, the launcher's exit code was 1 in one of three runs, after all ranks had ended well. TCP connects them, for
#: which Open MPI takes devices that another test's hosts come and go with.
REPLACING = {**ELASTIC, "env": {**ELASTIC["env"], "OMPI_MCA_btl": "^openib", "OMPI_MCA_btl_tcp_if_include": "lo"}}


def variables(env: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of jobs, with ``env`` added."""
    return {
        **os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "I_MPI_PIN": "0",  # Intel MPI binds the ranks of jobs that run side by side to the same cores
        **(env or {}),
    }  # fmt: skip


def launch(mpi: str, ranks: int, command: Sequence[str], env: dict[str, str] | None, flags: Sequence[str]):
    """The command line that runs `python COMMAND` on `ranks` ranks of an MPI, and how to start it."""
    home = ROOT / ".venvs" / mpi / "bin"
    flags = [*flags, "--oversubscribe"] if mpi in ("openmpi", "torch", "jax", "programs") else flags
    line = [home / "mpiexec", *flags, "-n", str(ranks), home / "python", *command]
    # Launchers mix the output of ranks in pieces that may end within a character.
    reading = {"text": True, "errors": "backslashreplace"}
    return line, {**reading, "cwd": ROOT, "env": variables(env), "stdin": subprocess.DEVNULL}


def packages_of(environment: str) -> dict[str, str]:
    """The variables by which programs find the packages of another environment behind those of their own."""
    (site,) = (ROOT / ".venvs" / environment / "lib").glob("python3*/site-packages")
    return packages_behind(site)


def packages_behind(site: Path | str) -> dict[str, str]:
    """The variables by which programs find the packages in a folder behind those of their own."""
    return {"SITE_BEHIND": str(site), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support/site_behind'}"}


def torch_for(mpi: str) -> dict[str, str]:
    """The environment in which programs on an MPI find torch, which is in .venvs/torch only."""
    return packages_of("torch")


#: What tells a rank from its launcher.
RANK = re.compile(rb"(^|\0)(OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)=(?P<rank>\d+)")
PATIENCE = 20  # seconds that a launcher may outlive its ranks
LAUNCHER_STAYED = "(all ranks had ended; their launcher had not, and was ended)"
#: Open MPI 5.0.11 itself crashes now and then as survivors agree, shrink or start processes after a death. If a process
#: that it starts dies in MPI_Comm_spawn, that call stays in MPI, and MPI_Comm_dup of the survivors may never come back.
#: And it aborts the job if a message that counts as sent does not reach a dead rank. Tests then start the job again.
OPEN_MPI_CRASHED = re.compile(
    r"Segmentation fault(?:(?!Segmentation).)*?Current thread[^\n]*\n[^\n]* in (done|shrink|start)\n"
    r"|stuck in a call of MPI's that does not come back.*?/replacing\.py\", line \d+ in start\n.*? in duplicate\n"
    r"|An error occurred in Send error after request freed",
    re.S,
)
#: What Open MPI's launcher says when it gave up before it had started anything, which happens on a busy machine.
NOT_STARTED = "The PMIx server's listener thread failed to start"


def mpiexec(
    mpi: str, ranks: int, *command: str, timeout: float = 600, env: dict[str, str] | None = None,
    flags: Sequence[str] = (),
):  # fmt: skip
    """Run `python COMMAND` on `ranks` ranks of an MPI; the completed process with its output as text."""
    stacks = {"PYTEST_ADDOPTS": f"-o faulthandler_timeout={0.8 * timeout:.0f}"}  # of ranks that hang in a test
    line, how = launch(mpi, ranks, command, {**stacks, **(env or {})}, flags)
    return once_started(lambda: run_to_its_end(["timeout", "-k", "5", str(timeout), *line], how))


def shell(line: str, timeout: float, folder: Path, env: dict[str, str]):
    """Run a line of the shell, which may start a job; the completed process with its output as text."""
    words = ["timeout", "-k", "5", str(timeout), "sh", "-c", line]
    how = {"cwd": folder, "env": env, "capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    return once_started(lambda: subprocess.run(words, **how))


def once_started(run: Callable[[], subprocess.CompletedProcess]) -> subprocess.CompletedProcess:
    """What ``run()`` returns; again, at most twice, if Open MPI's launcher had given up."""
    for _ in range(3):
        done = run()
        if NOT_STARTED not in done.stderr:
            break
    return done


def run_to_its_end(line: Sequence[str], how: dict[str, Any]) -> subprocess.CompletedProcess:
    """Run a job, and its launcher no longer than its ranks: Open MPI's has been seen to wait for nothing, for ever."""
    late = threading.Event()
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how) as job:
        threading.Thread(target=end_launcher, args=(job, late), daemon=True).start()
        output, errors = job.communicate()
    if late.is_set():
        return subprocess.CompletedProcess(line, 1, output, f"{errors}\n{LAUNCHER_STAYED}\n")
    return subprocess.CompletedProcess(line, job.returncode, output, errors)


def end_launcher(job: subprocess.Popen, late: threading.Event) -> None:
    """End a job whose ranks ran, and ended PATIENCE seconds ago; ``late`` is set then."""
    seen, gone = False, 0
    while job.poll() is None and gone < PATIENCE:
        time.sleep(1)
        there = any(RANK.search(environment(pid)) for pid in descendants(job.pid))
        seen, gone = seen or there, gone + 1 if seen and not there else 0
    if job.poll() is None:
        late.set()
        for pid in descendants(job.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        children = [int(child) for task in tasks for child in task.read_text().split()]
        return [*children, *(found for child in children for found in descendants(child))]
    return []


def environment(pid: int) -> bytes:
    """What a process was started with; nothing of one that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def start(
    mpi: str, ranks: int, *command: str, env: dict[str, str] | None = None, flags: Sequence[str] = ()
) -> subprocess.Popen:  # fmt: skip
    """Start `python COMMAND` on `ranks` ranks of an MPI; its output and errors come by one pipe."""
    line, how = launch(mpi, ranks, command, env, flags)
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)
