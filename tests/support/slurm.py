"""A Slurm of two nodes on this machine, for tests: munged, slurmctld and two slurmd on the loopback device.

It needs root and Debian's packages slurmctld, slurmd, slurm-client and munge, or their like; it says so where they are
not there. Nothing of it outlives the block, and it reads and writes its own folder only.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

__all__ = ["Slurm"]

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
NODES = ("s1", "s2")
PATIENCE = 60  # seconds


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


class Slurm:
    """Two nodes of one core each, for a ``with`` block; RuntimeError where there can be none."""

    def __init__(self, folder: Path):
        places = os.environ["PATH"] + ":/usr/sbin:/sbin"
        self._paths = {name: shutil.which(name, path=places) for name in PROGRAMS}
        missing = [name for name, path in self._paths.items() if path is None]
        if os.geteuid() != 0 or missing:
            why = f"{', '.join(missing)} not found" if missing else "this is another user"
            raise RuntimeError(f"a Slurm of its own needs root, and the programs {', '.join(PROGRAMS)}: {why}")
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def _configure(self) -> None:
        folder, host = self._folder, socket.gethostname()
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        lines = [
            "ClusterName=tests", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmctldPort={_free_port()}", "SlurmUser=root",
            "AuthType=auth/munge", f"AuthInfo=socket={folder}/munge.socket", "CredType=cred/munge",
            f"StateSaveLocation={folder}/state", f"SlurmdSpoolDir={folder}/%n", f"SlurmctldPidFile={folder}/ctld.pid",
            f"SlurmdPidFile={folder}/%n.pid", f"SlurmctldLogFile={folder}/ctld.log", f"SlurmdLogFile={folder}/%n.log",
            "MpiDefault=pmi2", "SelectType=select/cons_tres", "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none", "ReturnToService=2", "SwitchType=switch/none", "MailProg=/bin/true",
            *(f"NodeName={n} NodeHostname={host} NodeAddr=127.0.0.1 Port={_free_port()} CPUs=1" for n in NODES),
            f"PartitionName=all Nodes={','.join(NODES)} Default=YES State=UP OverSubscribe=FORCE",
        ]  # fmt: skip
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (folder / "state").mkdir()
        for node in NODES:
            (folder / node).mkdir()

    def _start(self, name: str, *options: str) -> None:
        with open(self._folder / f"{name}{len(self._daemons)}.out", "wb") as output:
            line = [str(self._paths[name]), *options]
            self._daemons.append(subprocess.Popen(line, env=self.env, stdout=output, stderr=subprocess.STDOUT))

    def __enter__(self) -> Slurm:
        folder = self._folder
        self._configure()
        try:
            files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
            files |= {"seed-file": "munged.seed", "log-file": "munged.log"}
            self._start("munged", "--foreground", "--force", *(f"--{k}={folder / f}" for k, f in files.items()))
            self._wait_for(lambda: (folder / "munge.socket").exists())
            self._start("slurmctld", "-D", "-c")
            for node in NODES:
                self._start("slurmd", "-D", "-N", node)
            self._wait_for(lambda: self._idle() == set(NODES))
        except BaseException:
            self.__exit__()
            raise
        return self

    def _idle(self) -> set[str]:
        line = [str(self._paths["sinfo"]), "--noheader", "--Node", "--states=idle", "--format=%N"]
        done = subprocess.run(line, env=self.env, capture_output=True, text=True, timeout=30)
        return set(done.stdout.split())

    def _wait_for(self, there) -> None:
        end = time.monotonic() + PATIENCE
        while not there():
            ended = [process.args[0] for process in self._daemons if process.poll() is not None]  # type: ignore[index]
            if ended or time.monotonic() > end:
                logs = "".join(f"--- {f.name}:\n{f.read_text()[-2000:]}" for f in sorted(self._folder.glob("*.out")))
                raise RuntimeError(f"Slurm does not start: {ended or 'nodes are not idle in time'}\n{logs}")
            time.sleep(0.1)

    def srun(self, *command: str, env: dict[str, str] | None = None, timeout: float = 120):
        """Run a command on each of the two nodes; the completed process."""
        line = [str(self._paths["srun"]), "-N2", "-n2", *command]
        return subprocess.run(
            ["timeout", "-k", "5", str(timeout), *line], env={**self.env, **(env or {})}, capture_output=True,
            text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def __exit__(self, *exception: object) -> None:
        for process in reversed(self._daemons):
            process.terminate()
        for process in self._daemons:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
