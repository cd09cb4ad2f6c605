"""A Slurm of two nodes on this machine, for tests. The nodes are hosts of `faults.Hosts`, which MPI takes for machines.

It needs root, what `Hosts` needs, and Debian's packages slurmctld, slurmd, slurm-client and munge, or their like; for
PMIx also libpmix-dev. It says so where they are not there. Nothing of it outlives the block, and it reads and writes
its own folder only.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

from faults import Hosts
from free_port import free_port
from jobs import variables

__all__ = ["Slurm"]

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo", "scontrol", "scancel")
NODES = ("s1", "s2")
CORES = 2  # of each node, whatever the machine has
PATIENCE = 60  # seconds
REQUEUED_FOR = 10  # seconds that a requeued job waits at least: what credentials live
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}


class Slurm:
    """Two nodes of two cores each, for a ``with`` block; RuntimeError where there can be none."""

    def __init__(self, folder: Path):
        places = os.environ["PATH"] + ":/usr/sbin:/sbin"
        self._paths = {name: shutil.which(name, path=places) for name in PROGRAMS}
        missing = [name for name, path in self._paths.items() if path is None]
        if os.geteuid() != 0 or missing:
            why = f"{', '.join(missing)} not found" if missing else "this is another user"
            raise RuntimeError(f"a Slurm of its own needs root, and the programs {', '.join(PROGRAMS)}: {why}")
        self._folder = folder
        self._hosts = Hosts(len(NODES))
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._env = {"SLURM_CONF": str(folder / "slurm.conf")}

    def _configure(self) -> None:
        folder, hosts = self._folder, self._hosts
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        lines = [
            "ClusterName=tests", f"SlurmctldHost={socket.gethostname()}({hosts.outside})",
            f"SlurmctldPort={free_port()}", "SlurmUser=root", "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge.socket,cred_expire={REQUEUED_FOR}",
            "SchedulerParameters=sched_interval=2", "CredType=cred/munge", f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/%n", f"TmpFS={folder}/%n", f"SlurmctldPidFile={folder}/ctld.pid",
            f"SlurmdPidFile={folder}/%n.pid", f"SlurmctldLogFile={folder}/ctld.log", f"SlurmdLogFile={folder}/%n.log",
            "MpiDefault=none", "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU", "SwitchType=switch/none",
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/affinity", "TaskPluginParam=Cores",
            "ReturnToService=2", "MailProg=/bin/true", "SlurmdParameters=config_overrides",
            *(
                f"NodeName={node} NodeHostname={hosts.name(i)} NodeAddr={hosts.address(i)} CPUs={CORES}"
                for i, node in enumerate(NODES)
            ),
            f"PartitionName=all Nodes={','.join(NODES)} Default=YES State=UP OverSubscribe=FORCE",
        ]  # fmt: skip
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={folder}/cgroup\n")  # not used
        (folder / "state").mkdir()
        for node in NODES:
            (folder / node).mkdir()

    def _start(self, name: str, *options: str, before: list[str] | None = None) -> None:
        with open(self._folder / f"{name}{len(self._daemons)}.out", "wb") as output:
            line = [*(before or []), str(self._paths[name]), *options]
            env = {**os.environ, **self._env}
            self._daemons.append(subprocess.Popen(line, env=env, stdout=output, stderr=subprocess.STDOUT))

    def __enter__(self) -> Slurm:
        folder = self._folder
        self._hosts.__enter__()
        try:
            self._configure()
            files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
            files |= {"seed-file": "munged.seed", "log-file": "munged.log"}
            self._start("munged", "--foreground", "--force", *(f"--{k}={folder / f}" for k, f in files.items()))
            self._wait_for(lambda: (folder / "munge.socket").exists())
            self._start("slurmctld", "-D", "-c")
            for i, node in enumerate(NODES):
                self._start("slurmd", "-D", "-N", node, before=self._hosts.command(i))
            self._wait_for(lambda: self._idle() == set(NODES))
        except BaseException:
            self.__exit__()
            raise
        return self

    def _idle(self) -> set[str]:
        done = self._run("sinfo", ["--noheader", "--Node", "--states=idle", "--format=%N"], {}, 30)
        return set(done.stdout.split())

    def _wait_for(self, there) -> None:
        end = time.monotonic() + PATIENCE
        while not there():
            ended = [process.args for process in self._daemons if process.poll() is not None]
            if ended or time.monotonic() > end:
                logs = "".join(f"--- {f.name}:\n{f.read_text()[-2000:]}" for f in sorted(self._folder.glob("*.out")))
                raise RuntimeError(f"Slurm does not start: {ended or 'nodes are not idle in time'}\n{logs}")
            time.sleep(0.1)

    def _run(self, program: str, words: list[str], env: dict[str, str], timeout: float):
        line = ["timeout", "-k", "5", str(timeout), str(self._paths[program]), *words]
        how = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
        return subprocess.run(line, env=variables({**self._env, **env}), **how)

    def srun(
        self, *command: str, mpi: str, ranks: int = 4, flags: tuple[str, ...] = (), env: dict[str, str] | None = None,
        timeout: float = 120,
    ):  # fmt: skip
        """Run a command on ranks of the two nodes; ``mpi`` is what srun calls the interface: ``pmi2`` or ``pmix``."""
        return self._run("srun", [f"--mpi={mpi}", "-N2", f"-n{ranks}", *flags, *command], env or {}, timeout)

    def submit(self, script: Path, env: dict[str, str] | None = None) -> int:
        """Submit a job script, which runs in its folder and prints into a file beside, ``.out``; the job's number."""
        words = ["--parsable", f"--chdir={script.parent}", f"--output={script.with_suffix('.out')}", str(script)]
        done = self._run("sbatch", words, env or {}, 30)
        if done.returncode:
            raise ValueError(f"no job: {done.stderr}")
        return int(done.stdout)

    def show(self, job: int) -> dict[str, str]:
        """What ``scontrol show job`` says of a job."""
        done = self._run("scontrol", ["--oneliner", "show", "job", str(job)], {}, 30)
        if done.returncode:
            raise ValueError(f"job {job}: {done.stderr}")
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def signal(self, job: int, name: str) -> None:
        """Send a signal to the ranks of a job."""
        done = self._run("scancel", [f"--signal={name}", str(job)], {}, 30)
        if done.returncode:
            raise ValueError(f"job {job}: {done.stderr}")

    def end_of(self, job: int, timeout: float) -> int:
        """Wait until a job has ended, after all its restarts; its exit code, or the negative of a signal."""
        end = time.monotonic() + timeout
        while (shown := self.show(job))["JobState"] not in ENDED:
            if time.monotonic() > end:
                raise TimeoutError(f"job {job} does not end: {shown}")
            time.sleep(0.5)
        code, signum = map(int, shown["ExitCode"].split(":"))
        return -signum or code

    def sbatch(self, script: Path, env: dict[str, str] | None = None, timeout: float = 120) -> tuple[int, str]:
        """Run a job script, in its folder, to its end; its exit code, and what it printed."""
        code = self.end_of(self.submit(script, env), timeout)
        return code, script.with_suffix(".out").read_text()

    def why_no_pmix(self) -> str | None:
        """Why jobs cannot use PMIx, in Slurm's words; None if they can."""
        done = self.srun("true", mpi="pmix", timeout=30)
        return None if done.returncode == 0 else f"this Slurm has no PMIx (Debian: libpmix-dev): {done.stderr}"

    def __exit__(self, *exception: object) -> None:
        for process in reversed(self._daemons):
            process.terminate()
        for process in self._daemons:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._hosts.__exit__()
