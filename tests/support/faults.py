"""Faults for tests: ranks that stop for a while or die, and hosts of their own whose links can be cut or slowed down.

`Hosts` makes Linux network namespaces on a bridge, which needs root and `ip` of iproute2; it says so where they are not
there. Each host has its own network, host name, processes, IPC and /dev/shm, so that an MPI takes it for a machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

__all__ = ["BURST", "Hosts", "bytes_per_second", "delay", "kill"]

NETWORKS = 250  # that all Hosts of this machine have between them
BURST = 256 << 10  # bytes that a link at rest lets through before its rate counts
#: Bytes of the longest frame on a link with a rate: a jumbo frame of Ethernet. Linux passes 64 KiB at a time between
#: namespaces else, for which all other messages of the link wait: 2.6 ms at 200 Mbit/s.
FRAME = 9000
#: Seconds that a frame may take. On fast links frames are longer, lest the cores of this machine set the times.
FRAME_TIME = 0.36e-3
MOST_FRAME = 65536  # bytes of the longest frame that Linux passes
UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


@contextlib.contextmanager
def delay(pid: int) -> Iterator[None]:
    """Stop a process for the length of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def kill(pid: int) -> None:
    """End a process as a crash of its machine would: it says nothing to anybody."""
    os.kill(pid, signal.SIGKILL)


def bytes_per_second(rate: str) -> float:
    """Bytes a second of a rate in tc's words, such as ``200mbit``; ValueError for other words."""
    found = re.fullmatch(r"(\d+)([kmg]?bit)", rate)
    if found is None:
        raise ValueError(f"{rate!r} is not like 200mbit")
    return int(found[1]) * UNITS[found[2]] / 8


def _frame_of(rate: str) -> int:
    """Bytes of the longest frame on a link of this rate."""
    return round(min(MOST_FRAME, max(FRAME, FRAME_TIME * bytes_per_second(rate))))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """``number`` hosts, 10.78.N.1 and so on, for a ``with`` block; RuntimeError where there can be none.

    ``rate``, such as ``200mbit``, limits each link, each way; at rest a link lets ``burst`` bytes through at once.
    """

    def __init__(self, number: int, rate: str = "", burst: int = BURST):
        tools = ("ip", "nsenter", "tc", "unshare")
        if os.geteuid() != 0 or not all(map(shutil.which, tools)):
            raise RuntimeError(f"hosts of their own need root, and {', '.join(tools)} on the PATH")
        self._holders: list[subprocess.Popen[str]] = []
        self.number, self.rate, self.burst = number, rate, burst

    def __enter__(self) -> Hosts:
        self._take_network()
        try:
            _ip("addr", "add", f"{self.outside}/24", "dev", self.bridge)
            _ip("link", "set", self.bridge, "up")
            for host in range(self.number):
                self._add(host)
        except subprocess.CalledProcessError as e:
            self.__exit__()
            raise RuntimeError(f"no hosts of their own here: {e.stderr.strip()}") from e
        return self

    def _take_network(self) -> None:
        """Make the bridge of a network that no other Hosts on this machine has: its name can be made once only."""
        for i in range(NETWORKS):
            number = (os.getpid() + i) % NETWORKS + 1
            self._net, self._tag = f"10.78.{number}", f"c78x{number:03}"  # names of interfaces have 15 characters
            # With an address of its own; else it takes a port's, which would then accept packets without the bridge.
            bridge = ["ip", "link", "add", self.bridge, "address", "02:00:00:00:00:fe", "type", "bridge"]
            made = subprocess.run(bridge, capture_output=True, text=True)
            if made.returncode == 0:
                return
            if "exists" not in made.stderr:
                break
        raise RuntimeError(f"no hosts of their own here: {made.stderr.strip()}")

    def __exit__(self, *exception: object) -> None:
        # The links first: left to the end of their hosts they would go when the kernel finds the time, and the next
        # Hosts of this process, with the same names, would meet them.
        for host in range(self.number):
            subprocess.run(["ip", "link", "del", f"{self._tag}v{host}"], capture_output=True)
        for holder in self._holders:
            holder.kill()  # and with it all processes of the host
            holder.wait()
        for host in range(self.number):
            subprocess.run(["ip", "netns", "del", self.name(host)], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    def _add(self, host: int) -> None:
        space, link = self.name(host), f"{self._tag}v{host}"
        _ip("netns", "add", space)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", link, "master", self.bridge, "up")
        _ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")
        if self.rate:
            frame = ["gso_max_size", str(_frame_of(self.rate))]
            _ip("link", "set", link, *frame)
            _ip("-n", space, "link", "set", "eth0", *frame)
            self._limit(host, self.rate, self.burst, 8 << 20)
        names = "".join(f"{self.address(i)} {self.name(i)}\\n" for i in range(self.number))
        script = (
            f"hostname {space}; mount -t tmpfs tmpfs /dev/shm; printf '127.0.0.1 localhost\\n{names}' >/dev/shm/h; "
            "mount --bind /dev/shm/h /etc/hosts; rm /dev/shm/h; echo ready; exec sleep infinity"
        )
        own = ["unshare", "--uts", "--ipc", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
        holder = subprocess.Popen(
            ["ip", "netns", "exec", space, *own, "sh", "-c", script], stdout=subprocess.PIPE, text=True
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"

    @property
    def bridge(self) -> str:
        """The interface of this machine that all hosts reach."""
        return f"{self._tag}b"

    @property
    def outside(self) -> str:
        """The address of this machine that all hosts reach."""
        return f"{self._net}.254"

    def address(self, host: int) -> str:
        """The host's address."""
        return f"{self._net}.{host + 1}"

    def name(self, host: int) -> str:
        """The host's name, which is also that of its network namespace."""
        return f"{self._tag}n{host}"

    def command(self, host: int) -> list[str]:
        """Words to put before a command that is to run on the host."""
        with open(f"/proc/{self._holders[host].pid}/task/{self._holders[host].pid}/children") as children:
            inside = children.read().split()[0]
        return ["nsenter", "-t", inside, "--net", "--uts", "--ipc", "--pid", "--mount", f"--wd={os.getcwd()}"]

    def flags(
        self, mpi: str, folder: Path, ranks: int | Sequence[int], passed_on: Iterable[str] = ()
    ) -> list[str]:  # fmt: skip
        """Options for the mpiexec of one of the MPIs that start so many ranks on each host, or on each of the first.

        Files for it are written to ``folder``. ``passed_on`` are variables that ranks must have; Open MPI is told them.
        """
        launcher, machines = folder / "rsh", folder / "machines"
        each = [ranks] * self.number if isinstance(ranks, int) else ranks
        hosts = [self.address(i) for i in range(len(each))]
        # Process ids repeat from host to host, and files in /tmp that are named by them would meet.
        cases = "".join(
            f'{host}) exec {" ".join(self.command(i))} env TMPDIR=/dev/shm "$@";; ' for i, host in enumerate(hosts)
        )
        slots = [f"{host}:{n}" for host, n in zip(hosts, each, strict=True)]
        skip = "while case $1 in -*) true;; *) false;; esac; do shift; done"
        launcher.write_text(f'#!/bin/sh\n{skip}\nhost=$1; shift; set -- sh -c "$*"; case $host in {cases}esac\n')
        launcher.chmod(0o755)
        machines.write_text("\n".join([*slots, ""]))
        if mpi in ("openmpi", "torch"):
            told = ["--prtemca", "plm_ssh_agent", str(launcher), "--prtemca", "prte_if_include", f"{self._net}.0/24"]
            told += ["--mca", "btl_tcp_if_include", f"{self._net}.0/24", "--bind-to", "none"]
            told += ["--mca", "mpi_yield_when_idle", "1"]  # as it does where it knows that ranks share cores
            told += ["--host", ",".join(slots)]
            return [*told, *(word for name in passed_on for word in ("-x", name))]
        told = ["-launcher", "rsh", "-launcher-exec", str(launcher), "-iface", self.bridge]
        if mpi == "impi":
            told += ["-genvall", "-genv", "FI_PROVIDER", "tcp", "-genv", "I_MPI_PIN", "0"]
            told += ["-genv", "I_MPI_THREAD_YIELD", "2"]  # its waits give way, too, since ranks share cores
        return [*told, "-machinefile" if mpi == "impi" else "-f", str(machines)]

    def drop(self, host: int) -> None:
        """Take the host's link away: nothing it sends arrives, and nothing tells it so."""
        _ip("link", "set", f"{self._tag}v{host}", "nomaster")

    def slow_down(self, host: int, rate: str) -> None:
        """Limit what the host's link carries, each way, to a rate such as ``8kbit``; what it cannot carry is lost."""
        self._limit(host, rate, 1600, 16000)

    def _limit(self, host: int, rate: str, burst: int, waiting: int) -> None:
        """Let a token bucket of ``burst`` bytes limit the link, each way; ``waiting`` bytes are queued at most."""
        bucket = ["root", "tbf", "rate", rate, "burst", str(burst), "limit", str(waiting)]
        space, link = self.name(host), f"{self._tag}v{host}"
        for device in (["-n", space, "qdisc", "replace", "dev", "eth0"], ["qdisc", "replace", "dev", link]):
            subprocess.run(["tc", *device, *bucket], check=True, capture_output=True, text=True)

    def restore(self, host: int) -> None:
        """Give the host its link back, with its whole rate."""
        space, link = self.name(host), f"{self._tag}v{host}"
        subprocess.run(["tc", "-n", space, "qdisc", "del", "dev", "eth0", "root"], capture_output=True)
        subprocess.run(["tc", "qdisc", "del", "dev", link, "root"], capture_output=True)
        _ip("link", "set", link, "master", self.bridge)
        if self.rate:
            self._limit(host, self.rate, self.burst, 8 << 20)

    def reaches(self, host: int, other: int, seconds: float = 5) -> bool:
        """Whether a connection from one host to another is answered within the time."""
        probe = f"import socket; socket.create_connection(({self.address(other)!r}, 9), 0.5)"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done = subprocess.run([*self.command(host), "python3", "-c", probe], capture_output=True, text=True)
            if "ConnectionRefusedError" in done.stderr:
                return True
        return False
