"""The communicator people use: mpi4py's, with the algorithm chosen per call."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from . import _core, heap, lifetime, reference
from .buffers import AVG, DTYPE_CODES, Buffer, op_code, parse
from .context import Context, Shape, ShortCall, schedule_of
from .registry import find
from .request import Flight, PersistentRequest, Request
from .select import Choice

__all__ = ["Cartcomm", "Communicator", "Distgraphcomm", "Graphcomm", "Record"]


@dataclass(frozen=True)
class Record:
    """What the last collective did: the algorithm that ran, bytes of the vector, seconds until it returned."""

    collective: str
    algorithm: str
    nbytes: int
    seconds: float


@dataclass(slots=True)
class _Call:
    """A collective call, checked, before anything is sent."""

    choice: Choice
    shape: Shape
    source: int
    target: Buffer
    owners: Any


class Communicator(MPI.Intracomm):
    """An mpi4py intracommunicator whose collectives are this library's.

    Made from any intracommunicator, by all its ranks together; it works on duplicates, so that the messages of program
    and library never meet. What it does not override is mpi4py's.
    """

    _context: Context | None = None
    _node: _core.Node | None = None  # where the short way is open
    _owned = False  # whether MPI's communicator dies with this object
    _last: tuple[str, str, int, float] | None = None

    def __new__(cls, comm: MPI.Intracomm | None = None) -> Communicator:
        """Duplicate ``comm``; the null communicator stays null. TypeError for anything but an intracommunicator."""
        if comm is None or comm == MPI.COMM_NULL:
            return super().__new__(cls)
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"expected an mpi4py.MPI.Intracomm, not {type(comm).__name__}")
        return cls._adopt(MPI.Intracomm(comm).Dup())

    @classmethod
    def _adopt(cls, plain: MPI.Comm) -> Any:
        """Make an MPI communicator ours without duplicating it once more; null stays null."""
        self = MPI.Intracomm.__new__(cls, plain)
        if plain != MPI.COMM_NULL:
            self._owned = True
            self._enter()
        return self

    def _enter(self) -> Context:
        """The library's side of the communicator; set up, by all ranks together, where there is none yet."""
        context = self._context
        if context is None:
            if self == MPI.COMM_NULL:
                raise MPI.Exception(MPI.ERR_COMM)
            plain = MPI.Intracomm(self)
            self._context = context = Context(plain)
            self._node = context.node
            handles = [context.internal, plain] if self._owned else [context.internal]
            self._finalizer = lifetime.watch(self, context, handles)
        context.check()
        return context

    @property
    def last(self) -> Record | None:
        """Record of the last collective on this communicator that this rank began."""
        if self._node is not None and self._node.last is not None:
            return Record("allreduce", "shm", *self._node.last)
        return None if self._last is None else Record(*self._last)

    def _record(self, collective: str, algorithm: str, nbytes: int, begin: float) -> None:
        self._last = collective, algorithm, nbytes, time.perf_counter() - begin
        if self._node is not None:
            self._node.forget()

    def explain(self, collective: str, nbytes: int, dtype: Any = "float32", op: Any = MPI.SUM) -> str:
        """Which algorithm would run for a vector of ``nbytes`` bytes, and why."""
        del dtype  # no rule depends on it yet
        commutes = op_code(op) is not None or op.Is_commutative()
        return str(self._enter().choose(collective, nbytes, None, commutes, False))

    # Arrays on the heap

    def empty(self, shape: Any, dtype: Any = np.float64) -> np.ndarray:
        """A new array in memory that the ranks of this node share, so that collectives on it copy nothing.

        A local call; the array works in every communicator. MemoryError where shared memory is full.
        """
        return heap.empty(shape, dtype)

    def zeros(self, shape: Any, dtype: Any = np.float64) -> np.ndarray:
        """As :meth:`empty`, filled with zeros."""
        return heap.empty(shape, dtype, zero=True)

    def full(self, shape: Any, fill_value: Any, dtype: Any = None) -> np.ndarray:
        """As :meth:`empty`, filled with a value; of its type where ``dtype`` is None."""
        array = heap.empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype)
        array[...] = fill_value
        return array

    # All-reduce

    def _allreduce(
        self, sendbuf: Any, recvbuf: Any, op: Any, algorithm: str | None, deterministic: bool | None,
        timeout: float | None, stream: Any, engine: str | None,
    ) -> None:  # fmt: skip
        """Reduce over all ranks, and give all ranks the result.

        ``sendbuf`` (or ``MPI.IN_PLACE``) and ``recvbuf`` are buffers of the same number of elements; ``op`` an mpi4py
        op or ``collectives.AVG``. ``algorithm`` is a name of ``collectives.algorithms("allreduce")``;
        ``deterministic`` demands a fold in rank order; ``timeout`` is in seconds; ``engine="python"`` runs the schedule
        in the readable executor. Raises TypeError or ValueError, before anything is sent, for arguments that cannot be
        served, and CollectiveTimeout when the time is over.
        """
        begin = time.perf_counter()
        call = self._prepare(sendbuf, recvbuf, op, algorithm, deterministic, stream, engine)
        name = call.choice.algorithm.name
        if call.choice.algorithm.name == "mpi":
            self._enter().by_mpi("allreduce", super().Allreduce, super().Iallreduce, call.owners, timeout)
        elif engine == "python":
            self._reference(call, timeout)
        else:
            self._blocking(call, timeout)
        self._record("allreduce", name, call.target.nbytes, begin)

    Allreduce = _core.short_way(MPI.SUM, _allreduce)

    def Iallreduce(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> MPI.Request:  # fmt: skip
        """Non-blocking :meth:`Allreduce`; the request also works in ``MPI.Request.Waitall`` and its kin.

        Needs ``MPI.THREAD_MULTIPLE`` (mpi4py's default); below that it is the MPI library's own.
        """
        begin = time.perf_counter()
        call = self._prepare(sendbuf, recvbuf, op, algorithm, deterministic, stream, None, threads=True)
        self._record("allreduce", call.choice.algorithm.name, call.target.nbytes, begin)
        if call.choice.algorithm.name == "mpi":
            return super().Iallreduce(sendbuf, recvbuf, op)
        return Request(self._launch(call))

    def Allreduce_init(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, info: MPI.Info = MPI.INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> MPI.Prequest:  # fmt: skip
        """Persistent :meth:`Allreduce`: ``Start`` and ``Wait`` any number of times, then ``Free``."""
        call = self._prepare(sendbuf, recvbuf, op, algorithm, deterministic, stream, None, threads=True)
        if call.choice.algorithm.name == "mpi":
            return super().Allreduce_init(sendbuf, recvbuf, op, info)
        context = self._enter()
        tag, node = context.persistent_tag(), None
        if call.choice.algorithm.name == "shm":  # ranks may start their persistent calls in different orders
            node = context.another_node()
            if node is None:
                call.choice = context.choose("allreduce", call.target.nbytes, None, False, False, schedule=True)
        return PersistentRequest(lambda: self._launch(call, tag, node))

    def Barrier(self, *, algorithm: str | None = None, timeout: float | None = None) -> None:
        """Return when all ranks have called it."""
        context = self._enter()
        begin = time.perf_counter()
        choice = context.choose("barrier", 1, algorithm, True, False)
        if choice.algorithm.name == "mpi":
            context.by_mpi("barrier", super().Barrier, super().Ibarrier, (), timeout)
        else:
            token = parse(np.zeros(1, np.uint8), "token", True)
            shape = Shape(1, 1, DTYPE_CODES["uint8"], op_code(MPI.BOR), True)
            self._blocking(_Call(choice, shape, token.address, token, token), timeout)
        self._record("barrier", choice.algorithm.name, 0, begin)

    # The way of a call

    def _finish(self, sendbuf: Any, recvbuf: Any) -> None:
        """Wait for a call that the short way began."""
        context, node = self._context, self._node
        assert context is not None
        assert node is not None
        call = ShortCall(node, (sendbuf, recvbuf))
        try:
            context.wait(call, node)
        except BaseException as e:
            context.fail(call, e)

    def _prepare(
        self, sendbuf: Any, recvbuf: Any, op: Any, algorithm: str | None, deterministic: bool | None, stream: Any,
        engine: str | None, threads: bool = False,
    ) -> _Call:  # fmt: skip
        """Check an all-reduce and choose its algorithm."""
        context = self._enter()
        if stream is not None:
            raise ValueError("stream: this build moves arrays in host memory only")
        if engine not in (None, "c", "python"):
            raise ValueError(f"engine: {engine!r} is not one of 'c', 'python'")
        target = parse(recvbuf, "recvbuf", True)
        in_place = sendbuf is MPI.IN_PLACE
        source = target if in_place else parse(sendbuf, "sendbuf", False)
        _match(source, target)
        code = op_code(op)
        obstacle = _obstacle(target, op, code)
        if obstacle is None and threads:
            obstacle = context.obstacle_to_threads(code is None)
        forced = algorithm
        if obstacle is not None:
            forced = _hand_over(obstacle, algorithm, op, target)
        commutes = code is not None or op.Is_commutative()
        choice = context.choose(
            "allreduce", target.nbytes, forced, commutes, bool(deterministic), schedule=engine == "python"
        )
        if choice.algorithm.name == "mpi":
            _check_mpi(target, op, engine, obstacle)
        applied: Any = code
        if code is None and obstacle is None and target.datatype is not None:
            applied = (context.library, op.handle, target.datatype.handle)
        dtype = target.dtype if target.dtype is not None else -1
        same = in_place or (source.address == target.address and target.count > 0)
        shape = Shape(target.count, target.itemsize, dtype, applied, same)
        return _Call(choice, shape, source.address, target, (sendbuf, recvbuf, op))

    def _blocking(self, call: _Call, timeout: float | None) -> None:
        context = self._enter()
        run = context.acquire(call.choice, call.shape)
        try:
            run.start(call.source, call.target.address, context.tag(), call.owners)
            context.wait(run, run.plan, timeout)
        except BaseException as e:
            context.fail(run, e)
        run.release()

    def _launch(self, call: _Call, tag: int | None = None, node: _core.Node | None = None) -> Flight:
        context = self._enter()
        run = context.acquire(call.choice, call.shape, node)
        try:
            run.start(call.source, call.target.address, context.tag() if tag is None else tag, call.owners)
            return Flight(context, run, self)
        except BaseException as e:
            context.fail(run, e)

    def _reference(self, call: _Call, timeout: float | None) -> None:
        """The same call in the readable executor: the same segments, one after the other."""
        context, shape = self._enter(), call.shape
        if not isinstance(shape.op, int):
            raise ValueError("engine: 'python' applies the predefined ops only")
        if timeout is not None:
            raise ValueError("timeout: engine='python' has none")
        run = context.acquire(call.choice, shape)
        source, target = (
            np.asarray(MPI.buffer.fromaddress(address, call.target.nbytes))
            for address in (call.source, call.target.address)
        )
        schedule = schedule_of(call.choice.algorithm, context.rank, context.size)
        cuts = [i * shape.itemsize for i in _core.partition(shape.elements, run.plan.segments)]
        tag = context.tag()
        try:
            for segment, (a, b) in enumerate(itertools.pairwise(cuts)):
                reference.execute(
                    schedule, context.internal, source[a:b], target[a:b], shape.itemsize,
                    lambda dst, left, right: _core.reduce2(shape.dtype, shape.op, dst, left, right),
                    tag + segment % run.plan.depth,
                )  # fmt: skip
        except BaseException as e:
            context.fail(run, e)
        run.release()
        if _core.OPS[shape.op] == "avg":
            _core.scale(shape.dtype, target, target, context.size)

    # Communicators made from this one, and its end

    def Dup(self, info: MPI.Info | None = None) -> Communicator:
        """Duplicate, keeping our type."""
        return type(self)._adopt(MPI.Intracomm(self).Dup(info))

    Clone = Dup

    def Dup_with_info(self, info: MPI.Info) -> Communicator:
        """Duplicate with hints, keeping our type."""
        return self.Dup(info)

    def Idup(self, info: MPI.Info | None = None) -> tuple[Communicator, MPI.Request]:
        """Non-blocking duplicate, keeping our type; the library's side is set up by its first collective."""
        plain, request = MPI.Intracomm(self).Idup(info)
        duplicate = MPI.Intracomm.__new__(type(self), plain)
        duplicate._owned = True
        return duplicate, request

    Idup_with_info = Idup

    def Split(self, color: int = 0, key: int = 0) -> Communicator:
        """Split by color and key, keeping our type."""
        return Communicator._adopt(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Communicator:
        """Split by what ranks share, keeping our type."""
        return Communicator._adopt(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Communicator:
        """A communicator of a subgroup, keeping our type."""
        return Communicator._adopt(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Communicator:
        """A communicator of a subgroup, made by its members only, keeping our type."""
        return Communicator._adopt(super().Create_group(group, tag))

    def Create_cart(self, dims: Any, periods: Any = None, reorder: bool = False) -> Cartcomm:
        """A Cartesian communicator, keeping our collectives."""
        return Cartcomm._adopt(super().Create_cart(dims, periods, reorder))

    def Create_graph(self, index: Any, edges: Any, reorder: bool = False) -> Graphcomm:
        """A graph communicator, keeping our collectives."""
        return Graphcomm._adopt(super().Create_graph(index, edges, reorder))

    def Create_dist_graph_adjacent(self, *args: Any, **kwargs: Any) -> Distgraphcomm:
        """A distributed graph communicator, keeping our collectives."""
        return Distgraphcomm._adopt(super().Create_dist_graph_adjacent(*args, **kwargs))

    def Create_dist_graph(self, *args: Any, **kwargs: Any) -> Distgraphcomm:
        """A distributed graph communicator, keeping our collectives."""
        return Distgraphcomm._adopt(super().Create_dist_graph(*args, **kwargs))

    def Free(self) -> None:
        """Complete what is under way and free the communicator with its duplicate; collective."""
        context, self._context, self._node = self._context, None, None
        if context is not None:
            self._finalizer.detach()
            if context.broken is not None:  # its messages may be under way for ever: MPI's communicators stay
                _core.write_handle(MPI._addressof(self), MPI._sizeof(self), MPI.COMM_NULL.handle)
                return
            context.check()
            context.free()
        super().Free()

    def Disconnect(self) -> None:
        """As :meth:`Free`, after all communication on it."""
        self.Free()


class Cartcomm(Communicator, MPI.Cartcomm):
    """mpi4py's Cartesian communicator with our collectives."""

    def Sub(self, remain_dims: Any) -> Cartcomm:
        """Lower-dimensional communicators, keeping our type."""
        return Cartcomm._adopt(super().Sub(remain_dims))


class Graphcomm(Communicator, MPI.Graphcomm):
    """mpi4py's graph communicator with our collectives."""


class Distgraphcomm(Communicator, MPI.Distgraphcomm):
    """mpi4py's distributed graph communicator with our collectives."""


_core.know(
    MPI.IN_PLACE,
    [(op, op_code(op)) for op in (
        MPI.SUM, MPI.MAX, MPI.MIN, MPI.PROD, MPI.LAND, MPI.LOR, MPI.LXOR, MPI.BAND, MPI.BOR, MPI.BXOR, AVG,
    )],
    [(np.dtype(name).num, DTYPE_CODES[name]) for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
        "float64", "complex64", "complex128",
    )] + [(np.dtype(c).num, DTYPE_CODES[np.dtype(c).name]) for c in "qQlL"],
)  # fmt: skip


def _match(source: Buffer, target: Buffer) -> None:
    if source.count != target.count:
        raise ValueError(f"sendbuf has {source.count} elements, recvbuf {target.count}")
    if source.itemsize != target.itemsize or source.dtype != target.dtype:
        raise TypeError(f"sendbuf is of {source.type_name}, recvbuf of {target.type_name}")
    apart = abs(source.address - target.address)
    if 0 < apart < target.nbytes:
        raise ValueError("sendbuf and recvbuf overlap; pass MPI.IN_PLACE to reduce in place")


def _obstacle(target: Buffer, op: Any, code: int | None) -> str | None:
    """Why our own algorithms cannot serve a call, or None."""
    if not target.dense:
        return "a derived datatype with gaps"
    if code is None and target.datatype is None:
        return f"a user-defined op on {target.type_name}, which MPI does not know"
    if code is None:
        return None
    if target.dtype is None:
        return f"no kernel for {target.type_name}"
    if not _core.has_kernel(target.dtype, code):
        name = "avg" if op is AVG else _core.OPS[code]
        raise TypeError(f"op: {name} does not apply to {target.type_name}")
    return None


def _hand_over(obstacle: str, algorithm: str | None, op: Any, target: Buffer) -> str:
    """The MPI library serves what we cannot, unless an algorithm of ours was asked for."""
    if algorithm not in (None, "mpi"):
        find("allreduce", algorithm)
        raise ValueError(f"algorithm {algorithm!r} cannot serve this call: {obstacle}")
    return "mpi"


def _check_mpi(target: Buffer, op: Any, engine: str | None, obstacle: str | None) -> None:
    """Refuse what the MPI library cannot serve; ``obstacle`` is why it should."""
    why = f" (and ours cannot: {obstacle})" if obstacle else ""
    if op is AVG:
        raise ValueError(f"algorithm 'mpi' cannot serve collectives.AVG, which MPI does not know{why}")
    if target.datatype is None:
        raise TypeError(f"algorithm 'mpi' cannot serve {target.type_name}, which MPI does not know{why}")
    if engine is not None:
        raise ValueError(f"engine: the MPI library serves this call; engine={engine!r} runs schedules{why}")
