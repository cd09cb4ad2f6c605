"""Faults for tests: ranks that stop for a while or die, and hosts of their own whose links can be dropped.

`Hosts` makes Linux network namespaces on a bridge, which needs root and `ip` of iproute2; it says so where they are not
there. Each host has its own network, host name, processes, IPC and /dev/shm, so that an MPI takes it for a machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Hosts", "delay", "kill"]


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


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """``number`` hosts, 10.78.N.1 and so on, for a ``with`` block; RuntimeError where there can be none."""

    def __init__(self, number: int):
        if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
            raise RuntimeError("hosts of their own need root, and ip (iproute2) and unshare (util-linux) on the PATH")
        self._tag = f"c{os.getpid() % 100_000:05}"  # names of interfaces have 15 characters
        self._net = f"10.78.{os.getpid() % 250 + 1}"
        self._holders: list[subprocess.Popen[str]] = []
        self._number = number

    def __enter__(self) -> Hosts:
        try:
            # With an address of its own; else it takes a port's, which would then accept packets without the bridge.
            _ip("link", "add", f"{self._tag}b", "address", "02:00:00:00:00:fe", "type", "bridge")
            _ip("addr", "add", f"{self._net}.254/24", "dev", f"{self._tag}b")
            _ip("link", "set", f"{self._tag}b", "up")
            for host in range(self._number):
                self._add(host)
        except subprocess.CalledProcessError as e:
            self.__exit__()
            raise RuntimeError(f"no hosts of their own here: {e.stderr.strip()}") from e
        return self

    def __exit__(self, *exception: object) -> None:
        # The links first: left to the end of their hosts they would go when the kernel finds the time, and the next
        # Hosts of this process, with the same names, would meet them.
        for host in range(self._number):
            subprocess.run(["ip", "link", "del", f"{self._tag}v{host}"], capture_output=True)
        for holder in self._holders:
            holder.kill()  # and with it all processes of the host
            holder.wait()
        for host in range(self._number):
            subprocess.run(["ip", "netns", "del", f"{self._tag}n{host}"], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self._tag}b"], capture_output=True)

    def _add(self, host: int) -> None:
        space, link = f"{self._tag}n{host}", f"{self._tag}v{host}"
        _ip("netns", "add", space)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", link, "master", f"{self._tag}b", "up")
        _ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")
        script = f"hostname {space}; mount -t tmpfs tmpfs /dev/shm; echo ready; exec sleep infinity"
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

    def address(self, host: int) -> str:
        """The host's address."""
        return f"{self._net}.{host + 1}"

    def command(self, host: int) -> list[str]:
        """Words to put before a command that is to run on the host."""
        with open(f"/proc/{self._holders[host].pid}/task/{self._holders[host].pid}/children") as children:
            inside = children.read().split()[0]
        return ["nsenter", "-t", inside, "--net", "--uts", "--ipc", "--pid", "--mount", f"--wd={os.getcwd()}"]

    def flags(self, launcher: Path, ranks: int) -> list[str]:
        """Options for MPICH's mpiexec that start so many ranks on each host, by a program that is written for it."""
        words = [" ".join(self.command(i)) for i in range(self._number)]
        cases = "".join(f'{self.address(i)}) exec {words[i]} "$@";; ' for i in range(self._number))
        launcher.write_text(f'#!/bin/sh\nhost=$1; shift; set -- sh -c "$*"; case $host in {cases}esac\n')
        launcher.chmod(0o755)
        hosts = ",".join(self.address(i) for i in range(self._number))
        start = ["-launcher", "rsh", "-launcher-exec", str(launcher), "-iface", self.bridge]
        return [*start, "-hosts", hosts, "-ppn", str(ranks)]

    def drop(self, host: int) -> None:
        """Take the host's link away: nothing it sends arrives, and nothing tells it so."""
        _ip("link", "set", f"{self._tag}v{host}", "nomaster")

    def restore(self, host: int) -> None:
        """Give the host its link back."""
        _ip("link", "set", f"{self._tag}v{host}", "master", f"{self._tag}b")

    def reaches(self, host: int, other: int, seconds: float = 5) -> bool:
        """Whether a connection from one host to another is answered within the time."""
        probe = f"import socket; socket.create_connection(({self.address(other)!r}, 9), 0.5)"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done = subprocess.run([*self.command(host), "python3", "-c", probe], capture_output=True, text=True)
            if "ConnectionRefusedError" in done.stderr:
                return True
        return False
