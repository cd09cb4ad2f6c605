"""The Works that asynchronous calls return, and the threads that complete their futures."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist

from ..core import _core
from ..system import lifetime
from ..waiting.asleep import Asleep
from . import failed

__all__ = ["Callbacks", "Done", "Dropped", "Future", "Job", "OperationWork", "lateness", "run_aside", "seconds"]

#: ns that ``get_future`` waits itself; waking a thread that then wakes the caller takes about as long.
SOON = 200_000
SMALL = 1 << 14  # bytes; the results of older dropped Works are kept up to this size
MANY = 64  # dropped Works that are not looked at, since there are so few
UNSET = timedelta(0)  # torch passes this for the group's timeout


def lateness(limit: float) -> str:
    """The words for a call that has taken more than ``limit`` seconds: torch's, by which programs recognise a
    timeout."""
    return f"Timed out waiting {limit * 1e3:g}ms"


def seconds(timeout: timedelta | None) -> float | None:
    """A timeout of torch's in seconds; None for the group's."""
    return None if timeout is None or timeout <= UNSET else timeout.total_seconds()


class _Threads:
    """Threads for jobs that may block. A job may wait for another one, so there are as many threads as jobs."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0

    def run(self, job: Callable[[], None]) -> None:
        """Run a job in a thread of its own."""
        with self._lock:
            self._idle -= 1
            start = self._idle < 0
        self._jobs.put(job)
        if start:
            threading.Thread(target=self._serve, name="collectives-futures", daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            self._jobs.get()()


_threads = _Threads()
run_aside = _threads.run


class Callbacks:
    """Runs the callbacks of futures in a thread, in the order in which the program attached them.

    A callback may make collective calls, which all ranks must make in the same order. Such calls cannot be ordered with
    the calls of the program, since callbacks run at different times on different ranks. So they have an ordered queue
    of their own (:class:`.queues.Queue`), whose order is that of the callbacks.
    """

    running: dict[int, Callbacks] = {}  # by thread: whose callback the thread runs now
    failure: BaseException | None = None  # the error of the first failed call of this queue

    def __init__(self, name: str, members: frozenset[str] = frozenset()):
        """``name`` is that of the queue of calls, ``members`` the names of its processes."""
        self.name, self.members = name, members
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # a signal handler may attach a callback while one is attached
        self._closed, self._unstarted = False, True

    def run(self, job: Callable[[], None]) -> None:
        """Run a job when all jobs before it are done; at once if the group has been given up."""
        with self._lock:  # so that no job comes behind the end of the queue
            closed = self._closed
            if not closed:
                self._jobs.put(job)
                start, self._unstarted = self._unstarted, False
                if start:
                    self._thread = threading.Thread(target=self._serve, name="collectives-callbacks", daemon=True)
                    self._thread.start()
        if closed:
            job()

    def close(self) -> None:
        """Take no more jobs."""
        with self._lock:
            self._closed = True
            self._jobs.put(None)

    def _serve(self) -> None:
        ident = threading.get_ident()
        while (job := self._jobs.get()) is not None:
            self.running[ident] = self
            job()
            del self.running[ident], job  # futures, which must not be freed in C++ while the interpreter ends

    def catch_up(self, done: Callable[[], bool]) -> None:
        """Called when a callback waits for a later one: run the callbacks up to that one, within the first.

        Their order stays that of the program. RuntimeError if no job is left: then the callback waits for itself.
        """
        if threading.current_thread() is not self._thread:
            return
        while not done():
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                raise RuntimeError(
                    "a callback of a future waits for a call that can end only after the callback"
                ) from None
            if job is None:
                self._jobs.put(None)
                return
            job()


class Future(failed.Future):
    """A future whose callbacks run one after the other, always in the thread of its :class:`Callbacks`.

    torch runs callbacks where and when the future is completed, or at once: that differs from rank to rank.
    """

    def __init__(self, callbacks: Callbacks, of_callback: bool = False):
        """``of_callback``: the value of this future is what a callback returns."""
        super().__init__()
        self._callbacks, self._of_callback = callbacks, of_callback

    def wait(self) -> Any:
        """Wait for the value and return it; raises the error of a future that has failed."""
        if self._of_callback:
            self._callbacks.catch_up(self.done)
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """Call ``callback`` with this future when it is complete; returns a future of what the callback returns."""
        made = Future(self._callbacks, of_callback=True)

        def job() -> None:
            try:
                try:
                    self.wait()
                except Exception:  # the callback reads the value, and gets the error
                    if not self.done():
                        raise
                made.set_result(callback(self))
            except BaseException as e:
                made.set_exception(e)

        self._callbacks.run(job)
        return made

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback`` with this future when it is complete."""
        self.then(callback)


class Job(dist.Work):
    """The base class of this backend's Works: a call whose end must be waited for."""

    #: Works that the program dropped without asking how they end. torch may still ask soon, in C++ (DDP's ``join``),
    #: where the methods are found only while the Python object lives. So the latest 64 are kept, but large results
    #: only of the latest 4.
    _let_go: ClassVar[deque[Job]] = deque(maxlen=64)
    _asked = False

    def __init__(self, results: list[Any]):
        super().__init__()
        self._results: list[Any] | None = results
        self._future: torch.futures.Future | None = None
        self._failure: BaseException | None = None

    def __del__(self) -> None:
        if not self._asked:
            self._let_go.append(self)
            if len(self._let_go) > 4:
                self._let_go[-5]._shed()

    def _shed(self) -> None:
        """Let go of large results."""
        if self._results is not None and sum(map(_nbytes, self._results)) > SMALL:
            self._results = None

    def wait(self, timeout: timedelta = UNSET) -> bool:
        """Wait for the end of the call, up to a timeout (default: the group's); raises the error of a failed call."""
        self._asked = True
        if isinstance(self._failure, Exception):
            raise self._failure
        try:
            self._wait(seconds(timeout))
        except BaseException as e:
            self._has_failed(e)
            raise
        return True

    def _has_failed(self, error: BaseException) -> None:
        """Note the error of the call, before it is raised."""
        self._failure = error

    def _wait(self, timeout: float | None) -> None:
        raise NotImplementedError

    def _wait_aside(self) -> None:
        """Wait for the end in a thread that is not the program's."""
        self._wait(None)

    def is_completed(self) -> bool:
        """Whether the call has ended."""
        raise NotImplementedError

    def is_success(self) -> bool:
        """Whether the call has ended without an error."""
        return self.is_completed() and self._failure is None

    def exception(self) -> BaseException | None:
        """The error of a failed call, once a wait for it or :meth:`is_completed` has found the error; else None."""
        return self._failure

    def result(self) -> list[Any]:
        """The tensors with the result, as in the value of the future."""
        if self._results is None:
            raise RuntimeError("the results of a Work that was dropped are no longer kept")
        return self._results

    def synchronize(self) -> None:
        """Wait for the end."""
        self.wait()

    def get_future(self) -> torch.futures.Future:
        """A future of the result. Its callbacks run in a thread of this library.

        Its value is a list of the tensors with the result: of one tensor, or of several for a coalesced call. For an
        ``all_gather`` the list has one item for the tensors of all ranks, so that ``value()[0][rank]`` is a rank's.
        """
        self._asked = True
        if self._future is None:
            self._future = self._new_future()
            if self._is_completed_soon():
                self._fulfil(lambda: self.wait())
            else:
                _threads.run(lambda: self._fulfil(self._wait_aside))
        return self._future

    def _is_completed_soon(self) -> bool:
        """Whether the call has ended, or ends before another thread could begin to wait for it."""
        return self.is_completed()

    def _new_future(self) -> torch.futures.Future:
        return failed.Future()

    def _fulfil(self, wait: Callable[[], Any]) -> None:
        assert self._future is not None
        try:
            wait()
            values = [_value(result) for result in self.result()]
        except BaseException as e:
            self._has_failed(e)
            self._future.set_exception(e)
        else:
            self._future.set_result(values)

    def source_rank(self) -> int:
        """The rank that sent the message that a receive got. RuntimeError for other calls."""
        raise RuntimeError("source_rank: only a receive has one")

    def _source_rank(self) -> int:
        return self.source_rank()


def _value(result: Any) -> Any:
    """A result as a future's value. Tensors of one shape gathered from all ranks become one tensor with a dimension
    more, as with NCCL; torch's quantization hooks expect that."""
    if isinstance(result, list) and len({tensor.shape for tensor in result}) == 1:
        return torch.stack(result)
    return result


def _nbytes(result: Any) -> int:
    return sum(map(_nbytes, result)) if isinstance(result, list) else result.numel() * result.element_size()


class _Lasting(Protocol):
    """A Work whose call may go on when nobody waits for it."""

    def is_over(self) -> bool:
        """Whether nothing reads or writes the memory of the call any more."""


class Dropped:
    """Works that the program dropped before their calls were over. They are kept until then, for their memory's sake.

    MPI is finalized after the interpreter has freed its modules, so they may have to outlive these.
    """

    def __init__(self) -> None:
        self._works: dict[int, _Lasting] = {}  # by id; filled by the garbage collector, without a lock
        self._many = MANY
        lifetime.keep(self)

    def add(self, work: _Lasting) -> None:
        """Keep a Work. Its ``__del__`` may call this, which Python calls once."""
        self._works[id(work)] = work

    def look(self) -> None:
        """Let go of the Works that are over, if there are many, and twice as many as the last look has left."""
        if len(self._works) < self._many:
            return
        for key in list(self._works):
            work = self._works.get(key)
            if work is not None and work.is_over():
                self._works.pop(key, None)
        self._many = max(MANY, 2 * len(self._works))


class Done(Job):
    """A call that has ended."""

    def _wait(self, timeout: float | None) -> None:
        return

    def is_completed(self) -> bool:
        """True."""
        return True


class OperationWork(Job):
    """The Work of one call of torch's, which is one collective under way or several."""

    def __init__(
        self, results: list[Any], operations: list[_core.Operation], callbacks: Callbacks, limit: float | None
    ):  # fmt: skip
        """``limit`` is the call's own timeout in seconds; None: the group's."""
        super().__init__(results)
        self.operations = operations
        self._callbacks = callbacks
        self._limit = limit

    def _new_future(self) -> torch.futures.Future:
        if (
            not self.operations
        ):  # below MPI.THREAD_MULTIPLE: complete on all ranks, and no thread but this one may call MPI
            return super()._new_future()
        return Future(self._callbacks)

    def _wait(self, timeout: float | None) -> None:
        for operation in self.operations:
            operation.complete(self._limit if timeout is None else timeout)

    def _has_failed(self, error: BaseException) -> None:
        super()._has_failed(error)
        self._callbacks.failure = self._callbacks.failure or error

    def _wait_aside(self) -> None:
        for operation in self.operations:
            if operation.done:
                operation.complete(self._limit)  # raises its error, if it ended by one
            else:
                Asleep(operation).wait_for(operation.context, self._limit)

    def is_completed(self) -> bool:
        """Whether the collectives have ended, well or with an error, which the next wait raises.

        Progresses them, and looks at the other ranks as a wait does.
        """
        if self._failure is None:
            try:
                return all(o.test() for o in self.operations)
            except Exception as e:
                self._has_failed(e)
        return True

    def _is_completed_soon(self) -> bool:
        try:
            return all(o.done or o.wait(o.context.yield_at_once, SOON) for o in self.operations)
        except (RuntimeError, ValueError):  # the next wait raises it, with a full message
            return True
