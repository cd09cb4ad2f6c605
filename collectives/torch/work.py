"""What an asynchronous call gives back: Works, and the threads that fulfil their futures."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ..core import _core
from ..waiting.waiting import Waiting
from . import failed

__all__ = ["DONE", "Callbacks", "Done", "Job", "OperationWork", "lateness", "run_aside", "seconds"]

#: ns that a call for a future waits itself: a thread that wakes for it, and wakes its caller, takes about as long.
SOON = 200_000
UNSET = timedelta(0)  # what torch hands over where the group's timeout is meant


def lateness(limit: float) -> str:
    """Words for a call that has taken too many seconds: torch's, by which programs know a timeout."""
    return f"Timed out waiting {limit * 1e3:g}ms"


def seconds(timeout: timedelta | None) -> float | None:
    """A timeout of torch's; None where the group's is meant."""
    return None if timeout is None or timeout <= UNSET else timeout.total_seconds()


class _Threads:
    """Threads for what may block: callbacks of futures may wait for other futures, so there are as many as needed."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0

    def run(self, job: Callable[[], None]) -> None:
        """Have a thread of its own run a job."""
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

    A callback may make calls of its own, which ranks must make in the same order: not among the calls of the program,
    whose place in time differs from rank to rank, but in a lane of their own (see :class:`.group.ProcessGroup`), where
    the order is that of the callbacks.
    """

    running: dict[int, str] = {}  # by thread: whose callback it is running now
    failure: BaseException | None = None  # what ended the first call early of those whose callbacks these are

    def __init__(self, name: str):
        self.name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    def run(self, job: Callable[[], None]) -> None:
        """Do it when those before are done; at once, where the group has been given up."""
        if self._closed:
            job()
            return
        self._jobs.put(job)
        with self._lock:  # several threads may attach the first one
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="collectives-callbacks", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """There will be no more."""
        self._closed = True
        self._jobs.put(None)

    def _serve(self) -> None:
        ident = threading.get_ident()
        while (job := self._jobs.get()) is not None:
            self.running[ident] = self.name
            job()
            del self.running[ident]

    def catch_up(self, done: Callable[[], bool]) -> None:
        """Where a callback waits for a later one: run those between, and it, within.

        Their order stays that of the program. RuntimeError where there are none: it waits for itself.
        """
        if threading.current_thread() is not self._thread:
            return
        while not done():
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                raise RuntimeError("a callback of a future waits for what is to come after itself") from None
            if job is None:
                self._jobs.put(None)
                return
            job()


class Future(failed.Future):
    """A future whose callbacks run one after the other, always in the thread of its :class:`Callbacks`.

    Those of torch run where and when the future is fulfilled, or at once: which differs from rank to rank.
    """

    def __init__(self, callbacks: Callbacks, of_callback: bool = False):
        """``of_callback``: its value is what a callback returns."""
        super().__init__()
        self._callbacks, self._of_callback = callbacks, of_callback

    def wait(self) -> Any:
        """Its value, once it is there; raises what came in its place."""
        if self._of_callback:
            self._callbacks.catch_up(self.done)
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """A future of what the callback returns, which is called with this one when it is fulfilled."""
        made = Future(self._callbacks, of_callback=True)

        def job() -> None:
            try:
                try:
                    self.wait()
                except Exception:  # the callback asks for the value, and sees the failure
                    if not self.done():
                        raise
                made.set_result(callback(self))
            except BaseException as e:
                made.set_exception(e)

        self._callbacks.run(job)
        return made

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call it with this future when it is fulfilled."""
        self.then(callback)


class Job(dist.Work):
    """A Work whose end somebody has to wait for; what is common to all of them."""

    #: Those that the program let go of without asking how they end. torch may still do so, in C++ (DDP's ``join``),
    #: where the methods are found only as long as the Python object lives. It does so soon.
    _let_go: ClassVar[deque[Job]] = deque(maxlen=64)
    _asked = False

    def __init__(self, results: list[Any]):
        super().__init__()
        self._results = results
        self._future: torch.futures.Future | None = None
        self._failure: BaseException | None = None

    def __del__(self) -> None:
        if not self._asked:
            self._let_go.append(self)

    def wait(self, timeout: timedelta = UNSET) -> bool:
        """Wait for the end, up to a timeout (default: the group's); raises what ended the call early."""
        self._asked = True
        try:
            self._wait(seconds(timeout))
        except BaseException as e:
            self._has_failed(e)
            raise
        return True

    def _has_failed(self, error: BaseException) -> None:
        """Note what ended the call early, before anybody sees it."""
        self._failure = error

    def _wait(self, timeout: float | None) -> None:
        raise NotImplementedError

    def _wait_aside(self) -> None:
        """The same, in a thread beside those of the program."""
        self._wait(None)

    def is_completed(self) -> bool:
        """Whether the call has ended."""
        raise NotImplementedError

    def is_success(self) -> bool:
        """Whether the call has ended, and not early."""
        return self._failure is None and self.is_completed()

    def exception(self) -> BaseException | None:
        """What ended the call early, as far as somebody has waited for it."""
        return self._failure

    def result(self) -> list[Any]:
        """The tensors with the result, as in the future."""
        return self._results

    def synchronize(self) -> None:
        """Wait for the end."""
        self.wait()

    def get_future(self) -> torch.futures.Future:
        """A future of the tensors with the result; its callbacks run in a thread of this library.

        Its value is a list with the tensor, or of the tensors of a coalesced call; with the list of tensors of an
        ``all_gather``, so that ``value()[0][rank]`` is that of a rank.
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
        """Whether the call has ended, or does so before a thread aside would have begun to wait for it."""
        return self.is_completed()

    def _new_future(self) -> torch.futures.Future:
        return failed.Future()

    def _fulfil(self, wait: Callable[[], Any]) -> None:
        assert self._future is not None
        try:
            wait()
        except BaseException as e:
            self._has_failed(e)
            self._future.set_exception(e)
        else:
            self._future.set_result([_value(result) for result in self._results])

    def source_rank(self) -> int:
        """Whose message it was, of a receive from any rank."""
        raise RuntimeError("source_rank: only a receive has one")

    def _source_rank(self) -> int:
        return self.source_rank()


def _value(result: Any) -> Any:
    """What a future has: of tensors gathered from all ranks one of one dimension more, as NCCL's has and torch's
    quantization hooks expect, where they are alike."""
    if isinstance(result, list) and len({tensor.shape for tensor in result}) == 1:
        return torch.stack(result)
    return result


class Done(Job):
    """A call that has ended."""

    def _wait(self, timeout: float | None) -> None:
        return

    def is_completed(self) -> bool:
        """True."""
        return True


DONE = Done([])  # of calls whose result nobody asks for


class OperationWork(Job):
    """Collectives under way, one or several of one call of torch's."""

    def __init__(
        self, results: list[Any], operations: list[_core.Operation], callbacks: Callbacks, limit: float | None
    ):  # fmt: skip
        """``limit`` is what the call itself may take, in seconds; None: what the group's calls may."""
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
            if not operation.done:
                _Asleep(operation).wait_for(operation.context, self._limit)

    def is_completed(self) -> bool:
        """Whether the calls have ended, in one way or the other; moves them on."""
        return self._ends_within(0)

    def _is_completed_soon(self) -> bool:
        return self._ends_within(SOON)

    def _ends_within(self, limit: int) -> bool:
        try:
            return all(o.done or o.wait(limit > 0 and o.context.yield_at_once, limit) for o in self.operations)
        except (RuntimeError, ValueError):  # which the next wait raises, in words
            return True


class _Asleep:
    """Waiting for an operation that others move on: the progress thread, and whoever waits for it actively."""

    def __init__(self, operation: _core.Operation):
        self.operation = operation

    def wait_for(self, context: Waiting, limit: float | None) -> None:
        """Sleep until the end; what is known about the other ranks is looked at as in any wait."""
        try:
            context.wait(self.operation, limit, self)
        except BaseException as e:
            context.fail(self.operation, e)

    def wait(self, yield_at_once: bool, limit: int) -> bool:
        """Sleep for up to ``limit`` ns; whether the operation is complete."""
        return self.operation.sleep(limit)
