"""Non-blocking calls with Python objects: ``ibcast``, ``iallreduce`` and the like.

An object is pickled when the call is made. A thread then moves lengths first and bytes after them, by the non-blocking
calls with buffers: it sleeps while the progress thread works. Objects are made of the bytes, and folded, in ``wait``.
One fold is made in the thread of rank 0: that of ``iallreduce`` by an op whose results may differ between ranks.
The calls of a communicator go by a duplicate of it, one after the other. So the second step of a call, which a rank
makes when its first step has ended, never meets another call of the program.
"""

from __future__ import annotations

import functools
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arguments.calls import checked_root
from ..core import _core
from ..waiting.asleep import Asleep
from .objects import Objects, fold, folds_alike, sendable

__all__ = ["ObjectRequest", "StartedObjects"]

Op = MPI.Op | Callable[[Any, Any], Any]
_LENGTH = np.int64


class ObjectRequest:
    """A non-blocking call with objects; :meth:`wait` returns what the blocking method would return."""

    def __init__(self, move: Callable[[], Any], result: Callable[[Any], Any]):
        """``move()`` moves the bytes, in another thread; ``result`` makes of what it returns the result, in wait."""
        self._move = move
        self._result: Callable[[Any], Any] | None = result
        self._moved, self._lock = threading.Event(), threading.RLock()
        self._maker: int | None = None  # the thread that makes the result just now
        self._found: Any = None
        self._error: BaseException | None = None

    def _run(self) -> None:
        try:
            self._found = self._move()
        except BaseException as e:
            self._error = e
        del self._move  # which has the bytes that were sent
        self._moved.set()

    def wait(self) -> Any:
        """Wait until the call is complete and return its result; raises the error that ended it early.

        RuntimeError in a signal handler, or an op, that has interrupted this thread while it makes the result.
        """
        self._moved.wait()
        if self._error is not None:
            raise self._error
        if self._makes_now():
            raise RuntimeError("wait: this thread is making the result of this very call")
        with self._lock:
            self._maker = threading.get_ident()  # first: a handler that comes after the look finds that
            try:
                if self._result is not None:
                    self._found, self._result = self._result(self._found), None
            finally:
                self._maker = None
        return self._found

    def test(self) -> tuple[bool, Any]:
        """Whether the call is complete, and then its result; else None."""
        return (True, self.wait()) if self._moved.is_set() and not self._makes_now() else (False, None)

    def _makes_now(self) -> bool:
        return self._maker == threading.get_ident()

    @staticmethod
    def waitall(requests: Iterable[ObjectRequest]) -> list[Any]:
        """Wait for all ``requests``; returns their results in order."""
        return [request.wait() for request in requests]


class _Mover:
    """The thread that moves the bytes of a communicator's calls, and the duplicate on which it does so."""

    def __init__(self, comm: Any):
        self.comm = comm
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._begin(None)

    def _begin(self, before: threading.Thread | None) -> None:
        """Start the thread, which makes calls once the thread ``before`` it has ended."""
        args = self._calls, before
        self._thread = threading.Thread(target=_serve, args=args, name="collectives objects", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._calls.put, None)

    def start(self, move: Callable[..., Any], *args: Any, result: Callable[[Any], Any]) -> ObjectRequest:
        request = ObjectRequest(functools.partial(_move, self.comm, move, *args), result)
        self.put(request._run)
        return request

    def put(self, call: Callable[[], None]) -> None:
        """Let the thread make a call after those before it."""
        if not self._end.alive:  # an exception ended `free`, and the communicator goes on
            self._begin(self._thread)
        self._calls.put(call)

    def free(self) -> None:
        """Complete all calls, and free the duplicate; collective."""
        self._end()
        self._thread.join()
        self.comm.Free()


def _serve(calls: queue.SimpleQueue[Callable[[], None] | None], before: threading.Thread | None) -> None:
    if before is not None:
        before.join()
    while (call := calls.get()) is not None:
        call()
        del call  # or this frame would keep the last call's bytes


def _move(comm: Any, move: Callable[..., Any], *args: Any) -> Any:
    """The result of ``move(comm, *args)``, whose steps all ranks make.

    After an exception between two steps, such as a MemoryError, other ranks would wait for the next one: they are told.
    """
    try:
        return move(comm, *args)
    except BaseException as e:
        context = comm._context
        if context is not None and context.broken is None:
            context.torn(f"i{move.__name__.strip('_')}", e)
        raise


def _end(request: Any) -> None:
    """Sleep until a request of a collective is complete."""
    operation = getattr(request, "_operation", None)
    if operation is not None:
        Asleep(operation).wait_for(operation.context, None)
    request.Wait()


def _bytes(stream: Any) -> np.ndarray:
    return np.frombuffer(stream, np.uint8)


def _parts(data: np.ndarray, lengths: Iterable[int]) -> list[np.ndarray]:
    return np.split(data, np.cumsum([*lengths])[:-1])


def _bcast(comm: Any, stream: bytes | None, root: int) -> np.ndarray:
    length = np.array([len(stream or b"")], _LENGTH)
    _end(comm.Ibcast(length, root))
    data = np.empty(length[0], np.uint8) if stream is None else _bytes(stream)
    _end(comm.Ibcast(data, root))
    return data


def _gather(comm: Any, stream: bytes, root: int) -> list[np.ndarray] | None:
    here = comm.rank == root
    lengths = np.zeros(comm.size if here else 0, _LENGTH)
    _end(comm.Igather(np.array([len(stream)], _LENGTH), lengths if here else None, root))
    data = np.empty(lengths.sum(), np.uint8)
    _end(comm.Igatherv(_bytes(stream), [data, lengths] if here else None, root))
    return _parts(data, lengths) if here else None


def _allgather(comm: Any, stream: bytes) -> list[np.ndarray]:
    lengths = np.zeros(comm.size, _LENGTH)
    _end(comm.Iallgather(np.array([len(stream)], _LENGTH), lengths))
    data = np.empty(lengths.sum(), np.uint8)
    _end(comm.Iallgatherv(_bytes(stream), [data, lengths]))
    return _parts(data, lengths)


def _allreduce(comm: Any, stream: bytes, op: Op) -> np.ndarray:
    """The stream of rank 0's outcome of the fold: a pair of value and error."""
    found = _gather(comm, stream, 0)
    return _bcast(comm, None if found is None else _outcome(op, found), 0)


def _outcome(op: Op, streams: list[np.ndarray]) -> bytes:
    """The pickled pair of the objects of these streams, folded, and None; or of None and an error."""
    try:
        return MPI.pickle.dumps((_folded(op, streams), None))
    except Exception as e:
        return MPI.pickle.dumps((None, sendable(e)))


def _opened(stream: Any) -> Any:
    """The value of an outcome; raises its error."""
    value, error = MPI.pickle.loads(stream)
    if error is not None:
        raise error
    return value


def _scatter(comm: Any, streams: list[bytes] | None, root: int) -> np.ndarray:
    length, lengths = np.zeros(1, _LENGTH), np.array([len(stream) for stream in streams or ()], _LENGTH)
    _end(comm.Iscatter(lengths if streams else None, length, root))
    data = np.empty(length[0], np.uint8)
    _end(comm.Iscatterv([_bytes(b"".join(streams)), lengths] if streams else None, data, root))
    return data


def _alltoall(comm: Any, streams: list[bytes]) -> list[np.ndarray]:
    sent, lengths = np.array([len(stream) for stream in streams], _LENGTH), np.zeros(comm.size, _LENGTH)
    _end(comm.Ialltoall(sent, lengths))
    data = np.empty(lengths.sum(), np.uint8)
    _end(comm.Ialltoallv([_bytes(b"".join(streams)), sent], [data, lengths]))
    return _parts(data, lengths)


def _loaded(streams: Sequence[Any] | None) -> list[Any] | None:
    return None if streams is None else [MPI.pickle.loads(stream) for stream in streams]


class StartedObjects(Objects):
    """The non-blocking lower-case methods of :class:`collectives.Communicator`, which derives from this class.

    The first of these calls on a communicator waits for the other ranks, since it makes a duplicate. All of them need
    MPI.THREAD_MULTIPLE, else they raise RuntimeError. Objects that cannot be pickled raise at the call.
    """

    _moving: _Mover | None = None

    def _mover(self, name: str) -> _Mover:
        """What moves bytes for the method ``name``; made by the first call, which all ranks make together."""
        self._refuse_in_group(name)
        context = self._enter()
        if (obstacle := context.obstacle_to_threads(False)) is not None:
            raise RuntimeError(f"{name}: {obstacle}")
        if self._moving is None:
            self._moving = _Mover(self.Split(0, self.rank))  # Dup would copy attributes, too
        self._moving.comm.timeout = context.timeout
        return self._moving

    def _free_mover(self) -> None:
        if self._moving is not None:
            self._moving.free()
            self._moving = None

    def _for_all(self, objects: Any) -> list[bytes]:
        """The pickled objects of a sequence that has one for each rank; ValueError if it has not."""
        return [MPI.pickle.dumps(each) for each in _core.one_for_each(objects, self._enter().size)]

    def ibarrier(self) -> MPI.Request:
        """Non-blocking :meth:`barrier`: the request is complete when all ranks have made the call."""
        return self.Ibarrier()

    def ibcast(self, obj: Any, root: int = 0) -> ObjectRequest:
        """Non-blocking :meth:`bcast`; the object is pickled now, and the request's ``wait()`` returns it.

        The first such call on a communicator waits for all ranks. RuntimeError below MPI.THREAD_MULTIPLE.
        """
        context = self._enter()
        root = checked_root(root, context.size)
        stream = MPI.pickle.dumps(obj) if context.rank == root else None
        return self._mover("ibcast").start(_bcast, stream, root, result=MPI.pickle.loads)

    def igather(self, sendobj: Any, root: int = 0) -> ObjectRequest:
        """Non-blocking :meth:`gather`; the object is pickled now, and ``wait()`` returns the list, or None."""
        root, stream = checked_root(root, self._enter().size), MPI.pickle.dumps(sendobj)
        return self._mover("igather").start(_gather, stream, root, result=_loaded)

    def iallgather(self, sendobj: Any) -> ObjectRequest:
        """Non-blocking :meth:`allgather`; the object is pickled now, and ``wait()`` returns the list."""
        stream = MPI.pickle.dumps(sendobj)
        return self._mover("iallgather").start(_allgather, stream, result=_loaded)

    def iscatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> ObjectRequest:
        """Non-blocking :meth:`scatter`; objects are pickled now, and ``wait()`` returns this rank's."""
        context = self._enter()
        root = checked_root(root, context.size)
        streams = self._for_all(sendobj) if context.rank == root else None
        return self._mover("iscatter").start(_scatter, streams, root, result=MPI.pickle.loads)

    def ialltoall(self, sendobj: Sequence[Any]) -> ObjectRequest:
        """Non-blocking :meth:`alltoall`; objects are pickled now, and ``wait()`` returns those received."""
        streams = self._for_all(sendobj)
        return self._mover("ialltoall").start(_alltoall, streams, result=_loaded)

    def ireduce(self, sendobj: Any, op: Op = MPI.SUM, root: int = 0) -> ObjectRequest:
        """Non-blocking :meth:`reduce`; the object is pickled now, and ``wait()`` folds on the root."""
        root, stream = checked_root(root, self._enter().size), MPI.pickle.dumps(sendobj)
        return self._mover("ireduce").start(_gather, stream, root, result=lambda found: _folded(op, found))

    def iallreduce(self, sendobj: Any, op: Op = MPI.SUM) -> ObjectRequest:
        """Non-blocking :meth:`allreduce`; the object is pickled now, and ``wait()`` folds in rank order.

        If ``op`` is no predefined MPI.Op, a thread of rank 0 folds for all ranks, which get copies.
        """
        stream = MPI.pickle.dumps(sendobj)
        if folds_alike(op):
            return self._mover("iallreduce").start(_allgather, stream, result=lambda found: _folded(op, found))
        return self._mover("iallreduce").start(_allreduce, stream, op, result=_opened)

    def iscan(self, sendobj: Any, op: Op = MPI.SUM) -> ObjectRequest:
        """Non-blocking :meth:`scan`; the object is pickled now, and ``wait()`` folds in rank order."""
        stream, end = MPI.pickle.dumps(sendobj), self._enter().rank + 1
        return self._mover("iscan").start(_allgather, stream, result=lambda found: _folded(op, found[:end]))

    def iexscan(self, sendobj: Any, op: Op = MPI.SUM) -> ObjectRequest:
        """Non-blocking :meth:`exscan`; the object is pickled now, and ``wait()`` folds; None on rank 0."""
        stream, end = MPI.pickle.dumps(sendobj), self._enter().rank
        return self._mover("iexscan").start(_allgather, stream, result=lambda found: _folded(op, found[:end]))


def _folded(op: Op, streams: Sequence[Any] | None) -> Any:
    """The objects of these streams, folded in order; None if there are none."""
    return fold(op, _loaded(streams) or ()) if streams else None
