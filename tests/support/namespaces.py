"""Hosts of network namespaces (hosts.sh), which MPIs take for separate machines, and how jobs are started on them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["BURST", "SCRIPT", "flags", "network", "obstacle"]

SCRIPT = Path(__file__).with_name("hosts.sh")
BURST = 256 << 10  # bytes that a link at rest lets through before its rate counts


def obstacle() -> str | None:
    """Why there can be no hosts on this machine, or None."""
    missing = [name for name in ("ip", "nsenter", "pgrep", "setsid", "tc", "unshare") if shutil.which(name) is None]
    if os.geteuid() == 0 and not missing:
        return None
    return "hosts of network namespaces need root" + (f", and {', '.join(missing)} on the PATH" if missing else "")


@contextlib.contextmanager
def network(number: int, rate: str = "") -> Iterator[str]:
    """So many hosts for a ``with`` block, 10.NET.0.1 and so on; yields NET, which HOSTS_NET sets if it is there.

    ``rate``, such as ``200mbit``, limits each link both ways. RuntimeError if there is such a network already.
    """
    before = os.environ.get("HOSTS_NET")
    net = os.environ["HOSTS_NET"] = before or str(100 + os.getpid() % 100)
    if Path(f"/run/hosts{net}").exists():
        raise RuntimeError(f"the network 10.{net} is there already; HOSTS_NET={net} {SCRIPT} down removes it")
    try:
        subprocess.run([SCRIPT, "up", str(number), *([rate] if rate else [])], check=True, timeout=120)
        yield net
    finally:
        subprocess.run([SCRIPT, "down"], check=True, timeout=60)
        if before is None:
            del os.environ["HOSTS_NET"]


def flags(mpi: str, net: str, ranks_on: Sequence[int], folder: Path, forwarded: Sequence[str] = ()) -> list[str]:
    """Options of an MPI's mpiexec for ``ranks_on[i]`` ranks on host i, the first host's ranks first.

    ``folder`` is for a file of theirs; ``forwarded`` are the environment variables that all ranks are to have.
    """
    hosts = [f"10.{net}.0.{i}" for i in range(1, len(ranks_on) + 1)]
    if mpi == "openmpi":
        told = ["--prtemca", "plm_ssh_agent", str(SCRIPT), "--prtemca", "prte_if_include", f"10.{net}.0.0/24"]
        told += ["--mca", "btl_tcp_if_include", f"10.{net}.0.0/24", "--bind-to", "none"]
        told += ["--host", ",".join(f"{host}:{n}" for host, n in zip(hosts, ranks_on, strict=True))]
        return [*told, *(word for name in forwarded for word in ("-x", name))]
    machines = folder / "machines"
    machines.write_text("".join(f"{host}:{n}\n" for host, n in zip(hosts, ranks_on, strict=True)))
    told = ["-launcher", "rsh", "-launcher-exec", str(SCRIPT), "-iface", f"hosts{net}"]
    if mpi == "impi":
        told += ["-genvall", "-genv", "FI_PROVIDER", "tcp", "-genv", "I_MPI_PIN", "0"]
    return [*told, "-machinefile" if mpi == "impi" else "-f", str(machines)]
