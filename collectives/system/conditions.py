"""What a process has from its launcher, its cores and its limits, and advice where a job is started to its harm.

Each rank collects its :class:`Conditions` once, ranks exchange them when they make their first communicator, and rank 0
judges those of its machine. There is advice only where another command would be better: a machine with too few cores
for its ranks, or a control group with a small quota, gives none.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import machine
from .threads import start_without_signals

__all__ = ["Conditions", "advice", "collect"]

RESERVE = 16  # files that a program may want to open besides
PINNED = 1 << 30  # bytes of memory that a rank must be allowed to lock where the network reads memory itself
LOOKS = 0.01  # seconds between two looks at other processes
_KERNEL_THREAD = 0x00200000  # a flag in /proc/PID/stat
_MAY_LOCK = 1 << 14  # the capability CAP_IPC_LOCK
THREADS = ("SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS")  # variables that ask for threads

_REMEDY = {
    "cores": "Give each rank cores of its own, or bind none: mpiexec --bind-to none (Open MPI), -bind-to none (MPICH), "
    "-genv I_MPI_PIN 0 (Intel MPI); srun --cpu-bind=none or --cpus-per-task=N; SLURM_CPU_BIND=none for an mpiexec in a "
    "job script",
    "SLURM_CPUS_PER_TASK": "Since Slurm 22.05 srun does not take --cpus-per-task from sbatch: pass it to srun, too, or "
    "export SRUN_CPUS_PER_TASK; mpiexec of Open MPI: --map-by slot:PE=N",
    "OMP_NUM_THREADS": "Give each rank as many cores as threads: mpiexec --map-by slot:PE=N or --bind-to none (Open "
    "MPI), -bind-to none (MPICH), srun --cpus-per-task=N",
    "files": "Raise the limit where the ranks start: ulimit -n",
    "memory": "Set it to unlimited where the ranks start: ulimit -l, LimitMEMLOCK of slurmd, --ulimit memlock=-1 of a "
    "container",
}


class Conditions(NamedTuple):
    """The conditions of one rank."""

    allowed: int  # number of cores that it could run on if nothing had bound it
    rivals: int  # number of running processes that are bound to its cores
    threads: int  # threads that its environment asks for, 0 if it does not
    variable: int  # the variable that asks for them: its place in THREADS
    files: int  # number of files that it may still open
    pinned: int  # bytes that it may lock, if its machine has a network that needs that; -1: no limit


def collect() -> Conditions:
    """The conditions of this process."""
    cores = machine.affinity()
    allowed = _allowed(len(cores))
    threads = [_number(os.environ.get(name, "")) for name in THREADS]
    variable = threads.index(max(threads))
    rivals = len(_rivals(cores)) if len(cores) < allowed else 0
    return Conditions(allowed, rivals, threads[variable], variable, _files(), _pinned())


def _number(text: str) -> int:
    """The first number of a list such as ``8`` or ``4,2``; 0 if it does not begin with one."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isdecimal() and len(first) < 10 else 0


def _allowed(otherwise: int) -> int:
    """Number of cores that the system would let this process run on; the launcher may have bound it to fewer.

    A thread that lives for that asks for all, and gets those of its control group.
    """
    found = [otherwise]

    def ask() -> None:
        try:
            os.sched_setaffinity(0, range(max(1024, os.cpu_count() or 1)))  # of this thread alone
        except OSError:
            return
        found.append(len(os.sched_getaffinity(0)))

    thread = threading.Thread(target=ask)
    try:
        start_without_signals(thread)  # it may end a little after it is joined
    except RuntimeError:  # the limit of processes and threads is reached
        return otherwise
    thread.join()
    return found[-1]


def _rivals(cores: frozenset[int]) -> list[int]:
    """Processes that run, in two looks, and may run on ``cores`` only; neither this one nor the kernel's."""
    found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    found = [pid for pid in found if pid != os.getpid() and _bound_within(pid, cores) and _runs(pid)]
    if found:
        time.sleep(LOOKS)
    return [pid for pid in found if _runs(pid)]


def _bound_within(pid: int, cores: frozenset[int]) -> bool:
    try:
        return os.sched_getaffinity(pid) <= cores
    except OSError:
        return False


def _runs(pid: int) -> bool:
    """Whether ``pid`` is a process of a program that runs now, or would if it had a core."""
    try:
        fields = machine.stat(pid)
    except OSError:
        return False
    return fields[0] == "R" and not int(fields[6]) & _KERNEL_THREAD


def _files() -> int:
    """Number of files that this process may still open."""
    try:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/proc/self/fd"))
    except OSError:
        return 1 << 20


def _pinned() -> int:
    """Bytes that this process may lock, if the machine has InfiniBand or its like; -1 without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    free = any(Path("/dev/infiniband").glob("uverbs*")) and not _may_lock()
    return limit if free and limit != resource.RLIM_INFINITY else -1


def _may_lock() -> bool:
    """Whether limits on locked memory do not hold for this process."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    return any(bool(int(line.split()[1], 16) & _MAY_LOCK) for line in lines if line.startswith("CapEff:"))


# --- judgement ----------------------------------------------------------------------------------------------------


def advice(ranks: Sequence[int], masks: Sequence[int], found: Sequence[Conditions], size: int) -> Iterator[str]:
    """What is wrong with the start of a machine's ``ranks``, out of ``size``, and what to do: a text for each fault.

    ``masks`` are bit masks of the cores that the ranks may run on, ``found`` their conditions.
    """
    allowed = max(each.allowed for each in found)
    shared = crowd(masks, allowed)
    if shared:
        there = [rank for rank, mask in zip(ranks, masks, strict=True) if not mask & ~shared]
        yield (
            f"{_ranks(there)} may run on {_cores(shared)} only, although the system has {allowed} for the ranks of "
            f"this machine. {_REMEDY['cores']}"
        )
    else:
        yield from _of_other_programs(ranks, masks, found)
        yield from _of_threads(ranks, masks, found)
    yield from _of_limits(ranks, found, size)


def _of_other_programs(ranks: Sequence[int], masks: Sequence[int], found: Sequence[Conditions]) -> Iterator[str]:
    """The part of :func:`advice` that is about other programs on the ranks' cores."""
    pressed = [i for i, each in enumerate(found) if each.rivals >= masks[i].bit_count()]
    pressed = [i for i in pressed if sum(not mask & ~masks[i] for mask in masks) <= masks[i].bit_count()]
    if pressed:
        yield (
            f"other processes that are bound to {_cores(masks[pressed[0]])} keep {_ranks([ranks[i] for i in pressed])} "
            "from running there: perhaps two jobs were started side by side, and each was bound as if it were alone. "
            f"{_REMEDY['cores']}"
        )


def _of_threads(ranks: Sequence[int], masks: Sequence[int], found: Sequence[Conditions]) -> Iterator[str]:
    """The part of :func:`advice` that is about threads without cores."""
    few = [i for i, each in enumerate(found) if _too_few(each, masks[i].bit_count())]
    if few:
        first, name = found[few[0]], THREADS[found[few[0]].variable]
        alike = f", and {len(few) - 1} more ranks of this machine are bound likewise" if len(few) > 1 else ""
        yield (
            f"rank {ranks[few[0]]} may run on {_cores(masks[few[0]])} only, although {name} is {first.threads}{alike}. "
            f"{_REMEDY[name]}"
        )


def _too_few(each: Conditions, cores: int) -> bool:
    """Whether a rank has fewer cores than threads, and another command would give it more."""
    return cores < each.threads and (cores < each.allowed or THREADS[each.variable] == "SLURM_CPUS_PER_TASK")


def _of_limits(ranks: Sequence[int], found: Sequence[Conditions], size: int) -> Iterator[str]:
    """The part of :func:`advice` that is about limits."""
    far = size - len(ranks) if all(each.pinned < 0 for each in found) else 0  # a socket for each, if MPI uses TCP
    need = len(ranks) + far + RESERVE
    files = min(each.files for each in found)
    if files < need:
        yield (
            f"a rank may open {max(files, 0)} more files, and may need {need}: one for each other rank. "
            f"{_REMEDY['files']}"
        )
    pinned = [each.pinned for each in found if 0 <= each.pinned < PINNED]
    if pinned and size > len(ranks):
        yield (
            f"a rank may lock {min(pinned) >> 10} KiB of memory, which the network between the machines needs. "
            f"{_REMEDY['memory']}"
        )


def crowd(masks: Sequence[int], allowed: int) -> int:
    """The cores, as a mask, that too many ranks share while others are free; 0 if the ranks have all they could have.

    ``masks`` are bit masks of the cores that the ranks may run on, ``allowed`` is the number of cores that they could
    share. A maximum matching gives each rank a core of its own as far as possible (by augmenting paths). The cores that
    the search for a rank without one has reached are those that too many ranks share (Hall's theorem).
    """
    matching = _Matching(masks)
    shared = without = 0
    hopeless: set[int] = set()  # masks of ranks that got no core
    for rank, mask in enumerate(masks):
        reached = 0 if mask in hopeless else matching.add(rank)
        if reached or mask in hopeless:
            hopeless.add(mask)
            without += 1
            shared = shared or reached
    return shared if len(masks) - without < min(len(masks), allowed) else 0


class _Matching:
    """Ranks and cores of their own, under construction."""

    def __init__(self, masks: Sequence[int]):
        self._masks = masks
        self._taken = 0
        self._core: dict[int, int] = {}  # by rank
        self._owner: dict[int, int] = {}  # by core

    def add(self, rank: int) -> int:
        """Give ``rank`` a core, by moving others if need be; returns 0, or the cores that it would share."""
        queue, reached = [rank], 0
        gives: dict[int, int | None] = {rank: None}  # the rank to which a rank that is moved gives its core
        for each in queue:
            free = self._masks[each] & ~self._taken
            if free:
                self._move(each, (free & -free).bit_length() - 1, gives)
                return 0
            for core in _bits(self._masks[each] & ~reached):
                gives[self._owner[core]] = each
                queue.append(self._owner[core])
            reached |= self._masks[each]
        return reached

    def _move(self, rank: int | None, core: int | None, gives: dict[int, int | None]) -> None:
        """Give ``rank`` a free core, and its old one to the rank that waits for it, and so on."""
        while rank is not None and core is not None:
            self._taken |= 1 << core
            before = self._core.get(rank)
            self._core[rank], self._owner[core] = core, rank
            rank, core = gives[rank], before


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _cores(mask: int) -> str:
    cores = _bits(mask)
    shown = ", ".join(map(str, cores[:8])) + (f" and {len(cores) - 8} more" if len(cores) > 8 else "")
    return f"core{'s' if len(cores) > 1 else ''} {shown}"
