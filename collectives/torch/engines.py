"""What runs the calls of a group: a communicator if there is MPI, else the node-local engine alone."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import secrets
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from ..core import _core
from ..errors import CollectiveError
from ..runtime.context import Context
from ..runtime.local import LocalContext
from ..system import lifetime
from .calls import Call
from .messages import MPIMessages
from .node_messages import NodeMessages
from .store import Exchange
from .work import Callbacks

if TYPE_CHECKING:
    from ..communicator import Communicator

__all__ = ["Engine", "engine_for", "world"]

#: Variables that launchers of MPI programs set in the environment of each process.
LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_ID", "MPI_LOCALRANKID")

#: Collectives of the fast path, by the names of calls.
FAST_KINDS = {name: _core.kind_number(name) for name in ("allreduce", "bcast", "allgather", "reduce_scatter_block")}


class Messages(Protocol):
    """Point-to-point."""

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> dist.Work:
        """Begin to send."""

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> dist.Work:
        """Begin to receive; from any rank if ``peer`` is None."""


class Engine(Protocol):
    """Runs calls. All ranks of a group have an engine of the same kind."""

    @property
    def context(self) -> Context:
        """The context, which waits for the engine's calls."""

    @property
    def messages(self) -> Messages:
        """Point-to-point."""

    @property
    def callbacks(self) -> Callbacks:
        """What runs the callbacks of its calls' futures."""

    def run(self, call: Call, timeout: float | None) -> None:
        """Run a blocking call; ``timeout`` in seconds, None: the group's."""

    def run_on_gpu(self, call: Call, number: int, stream: int, timeout: float | None) -> None:
        """Run a blocking call on memory of the GPU ``number``, in the order of its ``stream``."""

    def start(self, call: Call, then: Callable[[], Any]) -> _core.Operation | None:
        """Start a call that progresses by itself, and calls ``then`` at its end. None, with nothing done, if it
        cannot."""


class MPIEngine:
    """Runs calls over a communicator of this library, which belongs to this engine alone."""

    def __init__(self, comm: Communicator, timeout: timedelta, callbacks: Callbacks):
        self._comm, self.callbacks = comm, callbacks
        self._internal = importlib.import_module("..communicator.internal", __package__)  # which needs MPI
        self.context = self._internal.side_of(comm)
        self.context.timeout = timeout.total_seconds()
        self.messages = MPIMessages(comm, self.context, callbacks)
        self._blocking_only = self.context.obstacle_to_threads(False) is not None

    def _seen(self, call: Call, starts: bool) -> Any:
        """The key and the addresses by which the fast path knows a call, so that the next call like it takes the fast
        path; None if the fast path does not serve such calls, or would not see that the call is in place."""
        shape, kind = call.shape, FAST_KINDS.get(call.name)
        if kind is None or shape.cuts is not None or not isinstance(shape.op, int | None):
            return None
        if shape.in_place != (call.source == call.target):  # an all-gather from within the target
            return None
        count, op = (shape.nbytes, -1) if shape.op is None else (shape.elements, shape.op)
        where = call.source, call.target
        key = _core.memory_key(self.context, starts, kind, *where, count, shape.dtype, op, shape.root)
        return None if key is None else (key, *where)

    def _draft(self, call: Call) -> Any:
        return self._internal.drafted(call.name, call.shape, call.source, call.target, call.owners)

    def run(self, call: Call, timeout: float | None) -> None:
        """Run a blocking call; ``timeout`` in seconds, None: the group's."""
        self._internal.run(self._comm, self._draft(call), timeout, self._seen(call, False))

    def run_on_gpu(self, call: Call, number: int, stream: int, timeout: float | None) -> None:
        """Run a blocking call on memory of the GPU ``number``, in the order of its ``stream``."""
        self._internal.run_on_gpu(self._comm, self._draft(call), number, stream, timeout)

    def start(self, call: Call, then: Callable[[], Any]) -> _core.Operation | None:
        """Start a call that progresses by itself; None below MPI.THREAD_MULTIPLE."""
        if self._blocking_only:
            return None
        return self._internal.start(self._comm, self._draft(call), then, self._seen(call, True))


class StoreEngine:
    """Runs calls without MPI, on one node; the ranks meet over torch's store."""

    def __init__(self, exchange: Exchange, timeout: timedelta, callbacks: Callbacks):
        self.callbacks = callbacks
        self.context = LocalContext(exchange.rank, exchange.size, exchange, timeout.total_seconds())
        self.messages = NodeMessages(self.context, self.context.open_messages(exchange), callbacks)
        lifetime.watch(self, self.context, [])

    def run(self, call: Call, timeout: float | None) -> None:
        """Run a blocking call; ``timeout`` in seconds, None: the group's."""
        with self.context.in_turn():
            self.context.run(self._operation(call), call.source, call.target, call.owners, timeout)

    def run_on_gpu(self, call: Call, number: int, stream: int, timeout: float | None) -> None:
        """TypeError: without MPI tensors on GPUs are not served."""
        raise TypeError("tensors on GPUs need MPI: start the ranks by mpiexec (docs/torch.md)")

    def start(self, call: Call, then: Callable[[], Any]) -> _core.Operation | None:
        """Start a call that progresses by itself."""
        self.context.check_turn()
        operation = self._operation(call)
        return self.context.queue(operation, call.source, call.target, call.owners, self, then=then)

    def _operation(self, call: Call) -> _core.Operation:
        return self.context.operation(self.context.choose(call.shape.collective), call.shape)


def world() -> Any:
    """mpi4py's MPI if an MPI launcher started this process or mpi4py.MPI has been imported already; else None.

    Children of torchrun, and of torch.multiprocessing, inherit the environment of the process that started them, but
    they are no ranks of MPI.
    """
    is_child = "TORCHELASTIC_RUN_ID" in os.environ or multiprocessing.parent_process() is not None
    launched = any(name in os.environ for name in LAUNCHERS) and not is_child
    if not launched and "mpi4py.MPI" not in sys.modules:
        return None
    try:
        MPI = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError):  # not installed; installed without an MPI library
        return None
    return MPI if MPI.Is_initialized() and not MPI.Is_finalized() else None


class _Member(NamedTuple):
    """What a rank of a group says of itself: its rank in an MPI program, the program's size and its library; random
    names of the process and of the program, the latter empty as long as it has none."""

    place: tuple[int, int, str] | None
    process: str
    program: str


class _Names:
    """Random names: of this process, and of its MPI program, which programs of one size need to be told apart."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self.process, self.program = secrets.token_hex(8), ""

    def agree(self, MPI: Any, members: list[_Member], mine: _Member) -> None:
        """Give the program a name if all its ranks are among the members of a group, which all call this.

        Several programs without names may be among the members: then each rank is there as often as each other one.
        """
        size, like = MPI.COMM_WORLD.size, mine.place and mine.place[1:]
        found = Counter(m.place[0] for m in members if m.place and m.place[1:] == like and not m.program)
        if not mine.program and len(found) == size and len(set(found.values())) == 1:
            name = bytearray(self.process.encode())
            MPI.COMM_WORLD.Bcast([name, MPI.BYTE], 0)
            self.program = name.decode()


_names = _Names()


def engine_for(exchange: Exchange, name: str, timeout: timedelta) -> Engine:
    """The engine of a group, made by all its ranks together: over MPI if all of them are ranks of one MPI program.

    CollectiveError if MPI makes no communicator for the group.
    """
    MPI = world()
    place = None if MPI is None else (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, MPI.Get_library_version())
    mine = _Member(place, _names.process, _names.program)
    theirs: list[_Member] = exchange(mine)
    callbacks = Callbacks(name, frozenset(member.process for member in theirs))
    if MPI is not None:
        _names.agree(MPI, theirs, mine)
    ranks = [member.place[0] for member in theirs if member.place is not None]
    programs = {member.place and (*member.place[1:], member.program) for member in theirs}
    if MPI is None or len(programs) > 1 or len(set(ranks)) < exchange.size:
        return StoreEngine(exchange, timeout, callbacks)
    internal = importlib.import_module("..communicator.internal", __package__)
    limit = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    group = MPI.COMM_WORLD.Get_group()
    members = group.Incl(ranks)
    try:
        plain = MPI.COMM_WORLD.Create_group(members, zlib.crc32(name.encode()) % (limit + 1))
    except MPI.Exception as e:
        raise CollectiveError(f"MPI makes no communicator for the group {name!r}: {e}") from e
    finally:
        members.Free()
        group.Free()
    return MPIEngine(internal.adopt(plain), timeout, callbacks)
