"""The machine: its name, the cores that this process may use, and a description for the results of measurements."""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_SIOCGIFADDR = 0x8915


@functools.cache
def cpu_model() -> str:
    """Name of the processor as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part")))
    return next(models, platform.processor() or "unknown")


@functools.cache
def kind() -> str:
    """The kind of machine that a selection table is for: processor and cores, as in ``AMD EPYC 9654, 96 cores``.

    The cores are those of the machine or of its control group; the process's affinity does not count.
    """
    cores = min(os.cpu_count() or 1, cgroup_quota())
    return processor(cpu_model(), cores)


def processor(model: str, cores: float) -> str:
    """A processor and its cores in words, as in ``AMD EPYC 9654, 96 cores``."""
    return f"{model}, {cores:g} core{'s' if cores > 1 else ''}"


@functools.cache
def boot_id() -> str:
    """Boot id of the kernel, which no two machines share; the host name if it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def node_name() -> str:
    """Host name and boot id; two containers or machines rarely have the same."""
    return f"{socket.gethostname()}/{boot_id()}"


def addresses() -> list[str]:
    """The IP addresses of this machine's network devices, except the loopback device."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, device in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", device.encode()[:15]))
            except OSError:  # the device has no IPv4 address
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith("127.")] + _addresses_v6()


def _addresses_v6() -> list[str]:
    """The IPv6 addresses of this machine with global scope."""
    try:
        fields = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
    except OSError:
        return []
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(f[0])) for f in fields if f[3] == "00"]


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on. OSError if it cannot be read.

    The name before them may be in any encoding, and the kernel cuts it after 15 bytes, also within a character.
    """
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode("ascii").split()


def process(pid: int) -> tuple[str, str]:
    """State and start time of process ``pid``. ``Z`` is a zombie, ``X`` a process that does not exist.

    The start time tells processes apart that have the same PID. OSError if /proc cannot be read."""
    try:
        fields = stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return "X", ""
    return fields[0], fields[19]


def ancestors(pid: int) -> list[int]:
    """``pid``, the PID of its parent, and so on, as far as /proc shows them."""
    found: list[int] = []
    while pid > 0 and pid not in found:
        try:
            fields = stat(pid)
        except OSError:
            break
        found.append(pid)
        pid = int(fields[1])
    return found


def ptrace_scope() -> int:
    """Yama's ptrace_scope, which limits access to the memory of processes of the same user; 0 without Yama."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def affinity() -> frozenset[int]:
    """Numbers of the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cgroup_quota() -> float:
    """The least CPU quota of this process's control groups and those above them, in cores; infinity without one."""
    return min(map(_quota, _cgroups()))


def _cgroups() -> Iterator[Path]:
    """The folders of these groups: of version 2, and of version 1's controller ``cpu``."""
    yield CGROUPS
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = CGROUPS / "cpu" if controllers else CGROUPS
        own = root / path.lstrip("/")  # in a container it may be missing: root is then the container's own
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def _quota(folder: Path) -> float:
    """CPU quota of one control group, in cores."""
    try:
        names = ["cpu.max"] if (folder / "cpu.max").exists() else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        quota, period = " ".join((folder / name).read_text() for name in names).split()
        cores = float(quota) / float(period)
    except (OSError, ValueError):  # no such file; or "max", no limit
        return float("inf")
    return cores if cores > 0 else float("inf")  # -1 is version 1's word for no limit


def usable_cores(cores: int) -> float:
    """The lesser of ``cores`` and the control group's quota, in cores."""
    return min(cores, cgroup_quota())


BUSY = 0.05  # share of time spent waiting for a core above which a measurement reports it


class CoreWaits:
    """Measures, from its making on, how long this process's main thread was ready to run and had no core."""

    def __init__(self) -> None:
        self._begin, self._waited = time.monotonic_ns(), self._so_far()

    @staticmethod
    def _so_far() -> int:
        """Nanoseconds that the thread has spent in the scheduler's queues; 0 if the system does not count them."""
        try:
            return int(Path("/proc/self/schedstat").read_text().split()[1])
        except (OSError, IndexError):
            return 0

    def share(self) -> float:
        """The share of that time in the time since the object was made, from 0 to 1."""
        return min(1.0, (self._so_far() - self._waited) / max(1, time.monotonic_ns() - self._begin))


def busy(share: float) -> str | None:
    """Text for a measurement whose ranks waited for cores for ``share`` of the time; None if that is at most 5 %."""
    if share <= BUSY:
        return None
    return (
        f"Busy: ranks waited up to {share:.0%} of the time for a core, which other processes had or which are too few."
    )


def describe() -> dict[str, Any]:
    """A description of the machine for JSON: processor, cores, caches and memory in bytes, system, load."""
    return {
        "cpu": cpu_model(),
        "cores": len(affinity()),
        "caches": {f"L{level}": cache.size for level, cache in caches().items()},
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": os.getloadavg(),
    }


class Cache(NamedTuple):
    """A data cache: its size in bytes, and the number of cores that share it."""

    size: int
    sharers: int


def caches(core: int = 0) -> dict[int, Cache]:
    """The data caches of core number ``core``, by level."""
    found = {}
    for index in Path(f"/sys/devices/system/cpu/cpu{core}/cache").glob("index*"):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
            sharers = _count((index / "shared_cpu_list").read_text())
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and size.endswith("K"):
            found[int(level)] = Cache(int(size[:-1]) << 10, sharers)
    return dict(sorted(found.items()))


def _count(cpu_list: str) -> int:
    """Number of processors in a list such as ``0-3,8``."""
    ends = [part.split("-") for part in cpu_list.strip().split(",")]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def last_level_cache() -> int:
    """Size of the largest cache in bytes; 32 MiB if the system does not say."""
    return max((cache.size for cache in caches().values()), default=32 << 20)
