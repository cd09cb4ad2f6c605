"""One rank of one contestant of ``peers.py``: waits on a socket, and makes calls when it gets a command.

    python _peers_worker.py SOCKET KIND THREAD_LEVEL [RANK SIZE HOST:PORT]

KIND is ``mpi`` (an ordinary mpi4py program), ``ours``, ``gloo``, or ``torch`` (our backend of torch.distributed). The
last two have no launcher: rank, size and meeting point are arguments. Commands and answers are lines of JSON. Between
turns the rank sleeps in ``recv``.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import platform
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # not there if a launcher runs this file
import _peers_calls as calls_of  # noqa: E402
from _peers_collectives import form_of, lengths  # noqa: E402

PAGE = 4096
THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")

Given = tuple[Any, ...]  # the arguments of a call


class Group:
    """The interface of all contestants."""

    why_not = ""  # there are no heap arrays
    buffers: tuple[str, ...] = ("private",)

    def allocate(self, nbytes: int, buffers: str) -> np.ndarray:
        """Bytes of the kind of memory."""
        return np.empty(nbytes, np.uint8)

    def algorithm(self, collective: str, nbytes: int) -> tuple[str, str]:
        """The algorithm that ran last, and why, if they are known."""
        return "", ""


class MpiGroup(Group):
    """MPI.COMM_WORLD of mpi4py."""

    def __init__(self, level: str, *_: str):
        import mpi4py

        mpi4py.rc.thread_level = level
        from mpi4py import MPI

        self.level = THREAD_LEVELS[MPI.Query_thread()]
        self.MPI = MPI
        self.comm: Any = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.barrier = self.comm.Barrier
        self.in_place_of = lambda array: (MPI.IN_PLACE, array)
        library = MPI.Get_library_version().rstrip("\0").split("\n")[0].split(", ")[0].partition(" for ")[0]
        self.software = {"library": " ".join(library.split()), "mpi4py": mpi4py.__version__}

    def call(self, collective: str, in_place: bool) -> Callable[..., Any]:
        """The method to call; in the other forms, a function that starts a call and waits for it at once."""
        base, form = form_of(collective)
        if form == "{}":
            return getattr(self.comm, base.capitalize())
        if form == "i{}":
            start = getattr(self.comm, f"I{base}")
            return lambda *given: start(*given).Wait()

        def again(request: Any) -> None:
            request.Start()
            request.Wait()

        return again

    def given(self, collective: str, x: np.ndarray, y: np.ndarray, in_place: bool) -> Given:
        """The arguments of :meth:`call` to send x and receive y. In place there is the all-reduce only."""
        base, form = form_of(collective)
        given = self.in_place_of(y) if in_place else calls_of.arguments(self.MPI, base, x, y, self.size)
        return (getattr(self.comm, f"{base.capitalize()}_init")(*given),) if form == "{}_persistent" else given


class OurGroup(MpiGroup):
    """collectives.Communicator, and the passes over memory that its time is compared with."""

    def __init__(self, level: str, *_: str):
        super().__init__(level)
        import collectives

        self.comm = collectives.Communicator(self.comm)
        self.barrier = self.comm.Barrier
        self.software["collectives"] = collectives.__version__
        try:
            self.comm.empty(1, np.uint8)
        except (AttributeError, MemoryError) as error:
            self.why_not = str(error)
        else:
            self.buffers = ("private", "heap")

    def allocate(self, nbytes: int, buffers: str) -> np.ndarray:
        """Bytes of an ordinary array or on the heap."""
        return self.comm.empty(nbytes, np.uint8) if buffers == "heap" else super().allocate(nbytes, buffers)

    def algorithm(self, collective: str, nbytes: int) -> tuple[str, str]:
        """The algorithm that ran last, and why."""
        explained = self.comm.explain(form_of(collective)[0], nbytes)
        return self.comm.last.algorithm if self.comm.last else "", explained

    def limit(self, name: str, x: np.ndarray, y: np.ndarray) -> Callable[[Any, Any], Any]:
        """A pass over memory that reads and writes as many bytes as x has: see LIMITS in _peers_jobs."""
        from mpi4py import MPI

        from collectives.arguments import buffers, datatypes
        from collectives.core import _core

        kernels: Any = _core
        codes = datatypes.DTYPE_CODES["float32"], buffers.op_code(MPI.SUM)
        if name == "copy":
            return lambda _x, _y: np.copyto(y, x)
        if name == "triad":
            third = len(x) * 2 // 3 // 16 * 16
            left, right, target = x[:third], y[-third:], np.empty(third, np.float32)
            target.fill(0)
            return lambda _x, _y: kernels.reduce2(*codes, target, left, right)
        cut = len(x) // self.size // 16 * 16
        sources, targets = ([a[i * cut : (i + 1) * cut] for i in range(self.size)] for a in (x, y))
        return lambda _x, _y: kernels.reducep(*codes, targets, sources)


class GlooGroup(Group):
    """torch.distributed on Gloo over the loopback interface; its all-reduce is in place only."""

    level = "none"
    backend = "gloo"

    def __init__(self, _level: str, rank: str, size: str, meeting: str):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch: Any = importlib.import_module("torch")
        dist: Any = importlib.import_module("torch.distributed")
        torch.set_num_threads(1)
        self.torch, self.dist = torch, dist
        self.rank, self.size = int(rank), int(size)
        host, _, port = meeting.rpartition(":")
        store = dist.TCPStore(host, int(port), self.size, self.rank == 0)
        dist.init_process_group(self.backend, store=store, rank=self.rank, world_size=self.size)
        self.barrier = dist.barrier
        self.software = {"library": f"{self.backend} of torch {torch.__version__}"}

    def call(self, collective: str, in_place: bool) -> Callable[..., Any]:
        """The all-reduce of two tensors; out of place is a copy first."""
        all_reduce = self.dist.all_reduce
        if in_place:
            return lambda _, y: all_reduce(y)
        return lambda x, y: all_reduce(y.copy_(x))

    def given(self, collective: str, x: np.ndarray, y: np.ndarray, in_place: bool) -> Given:
        """The arguments of :meth:`call` for two arrays."""
        return self.torch.from_numpy(x), self.torch.from_numpy(y)


class TorchGroup(GlooGroup):
    """torch.distributed on our backend."""

    backend = "collectives"

    def __init__(self, *given: str):
        importlib.import_module("collectives.torch")
        super().__init__(*given)


GROUPS: dict[str, Any] = {"mpi": MpiGroup, "ours": OurGroup, "gloo": GlooGroup, "torch": TorchGroup}


def spend(call: Callable[..., Any], given: Sequence[Given], calls: int) -> float:
    """Seconds of a number of calls, on the same arrays or on several in turn."""
    if len(given) == 1 and len(given[0]) == 2:
        x, y = given[0]
        begin = time.perf_counter()
        for _ in itertools.repeat(None, calls):
            call(x, y)
        return time.perf_counter() - begin
    turns = itertools.islice(itertools.cycle(given), calls)
    begin = time.perf_counter()
    for arguments in turns:
        call(*arguments)
    return time.perf_counter() - begin


class Worker:
    """Carries out the coordinator's commands on one rank."""

    def __init__(self, group: Any):
        self.group = group
        self.memory: dict[str, np.ndarray] = {}
        self.own: dict[int, list[np.ndarray]] = {}
        self.views: dict[tuple, tuple] = {}

    def hello(self) -> dict[str, Any]:
        """A description of this rank: versions, cores."""
        software = {**self.group.software, "python": platform.python_version(), "numpy": version("numpy")}
        group = self.group
        return {
            "rank": group.rank, "size": group.size, "pid": os.getpid(), "level": group.level, "software": software,
            "buffers": group.buffers, "why_not": group.why_not, "cores": sorted(os.sched_getaffinity(0)),
        }  # fmt: skip

    def setup(self, buffers: str, nbytes: int) -> None:
        """Allocate memory on the heap for all sizes, once, and touch it."""
        if buffers == "heap" and buffers not in self.memory:
            self.memory[buffers] = self.paged(nbytes, buffers)

    def paged(self, nbytes: int, buffers: str) -> np.ndarray:
        """An array of bytes that begins on a page and has been touched."""
        raw = self.group.allocate(nbytes + PAGE, buffers)
        start = -raw.__array_interface__["data"][0] % PAGE
        raw[start : start + nbytes].fill(0)
        return raw[start : start + nbytes]

    def pieces(self, buffers: str, nbytes: int, number: int) -> list[np.ndarray]:
        """A number of arrays of one length. NumPy's arrays are allocated one by one, as in a program, so that short
        ones do not lie on the huge pages of a long one."""
        if buffers in self.memory:
            return [self.memory[buffers][i * nbytes : (i + 1) * nbytes] for i in range(number)]
        own = self.own.setdefault(nbytes, [])
        while len(own) < number:
            own.append(self.paged(nbytes, buffers))
        return own[:number]

    def arrays(self, buffers: str, collective: str, nbytes: int, sets: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """A number of pairs of input and output, each on pages of its own."""
        n = lengths(collective, self.group.rank, self.group.size, nbytes // 4)
        pieces = self.pieces(buffers, -(-4 * max(n) // PAGE) * PAGE, 2 * sets)
        each = [piece[: 4 * n[i % 2]].view(np.float32) for i, piece in enumerate(pieces)]
        return list(zip(each[::2], each[1::2], strict=True))

    def prepared(self, buffers: str, collective: str, nbytes: int, sets: int, in_place: bool, limit: str) -> tuple:
        """The call and its arguments, made once."""
        key = buffers, collective, nbytes, sets, in_place, limit
        if key not in self.views:
            arrays = self.arrays(buffers, collective, nbytes, sets)
            if limit:
                self.views[key] = self.group.limit(limit, *arrays[0]), arrays[:1]
            else:
                given = [self.group.given(collective, x, y, in_place) for x, y in arrays]
                self.views[key] = self.group.call(collective, in_place), given
        return self.views[key]

    def verify(self, buffers: str, collective: str, nbytes: int, sets: int, in_place: bool) -> float:
        """Call with each rank's own data, in the first and the last arrays, and compare; returns seconds of the last
        call."""
        call, given = self.prepared(buffers, collective, nbytes, sets, in_place, "")
        arrays = self.arrays(buffers, collective, nbytes, sets)
        expected = calls_of.expected(form_of(collective)[0], self.group.rank, self.group.size, nbytes // 4)
        for i in {0, sets - 1}:
            x, y = arrays[i]
            calls_of.fill(form_of(collective)[0], x, y, self.group.rank)
            if in_place:
                y[:] = x
            seconds = spend(call, [given[i]], 1)
            if len(y) and not np.array_equal(y, expected):
                where = int(np.argmax(y != expected))
                raise ValueError(f"wrong result: element {where} is {y[where]}, not {expected[where]}")
        return seconds

    def algorithm(self, collective: str, nbytes: int) -> tuple[str, str]:
        """The algorithm of the last call, and why, if they are known."""
        return self.group.algorithm(collective, nbytes)

    def measure(self, calls: int, warm: int, closed: bool, **what: Any) -> float:
        """Mean seconds of a call in one batch; ``closed``: of all ranks, as a root may be ahead of the others."""
        self.renew()
        call, given = self.prepared(**what)
        spend(call, given, warm)
        gc.disable()
        self.group.barrier()
        seconds = spend(call, given, calls)
        if closed:
            seconds += spend(self.group.barrier, [()], 1)
        gc.enable()
        return seconds / calls

    def renew(self) -> None:
        """Let go of NumPy's arrays: where in the cache one lies is chance, which shall not last all rounds."""
        for key in [key for key in self.views if key[0] not in self.memory]:
            _, given = self.views.pop(key)
            for request in itertools.chain.from_iterable(given) if "persistent" in key[1] else ():
                request.Free()
        self.own.clear()

    def serve(self, connection: socket.socket) -> None:
        """Answer commands until told to stop, or until the coordinator is gone."""
        lines = connection.makefile("rwb")
        reply: dict[str, Any] = self.hello()
        while True:
            lines.write(json.dumps(reply).encode() + b"\n")
            lines.flush()
            line = lines.readline()
            if not line:
                os._exit(1)
            command = json.loads(line)
            name = command.pop("do")
            if name == "stop":
                return
            try:
                reply = {"value": getattr(self, name)(**command)}
            except Exception as error:
                traceback.print_exc()
                reply = {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Join the group, then say hello and serve."""
    path, kind, level, *rest = sys.argv[1:]
    worker = Worker(GROUPS[kind](level, *rest))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        worker.serve(connection)


if __name__ == "__main__":
    main()
