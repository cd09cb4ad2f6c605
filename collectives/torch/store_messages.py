"""Point-to-point messages without MPI: by Gloo, whose ranks meet over the group's store."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import CollectiveError, PeerFailure
from ..runtime.context import Context
from .messages import Message
from .store import Exchange
from .tensors import Inward, Outward, write
from .work import Callbacks, run_aside

__all__ = ["StoreMessages"]

FOREVER = timedelta(seconds=1e8)
LAST_TAG = (1 << 31) - 2  # Gloo's own last tag is one more, with which nobody sends
LAST_WORDS = 0.3  # seconds that a message of a rank that has failed may still take: it may be on its way


class StoreMessages:
    """Messages by Gloo between processes of one node, which are connected when the group is made.

    If first messages made the connections, ranks would wait for each other in the call that begins a message.
    """

    def __init__(self, exchange: Exchange, context: Context, callbacks: Callbacks):
        """``callbacks`` runs those of messages' futures."""
        self.context, self.callbacks = context, callbacks
        self.sends = _InTurn()  # waits for those that the program dropped: there may be thousands
        self._own = _Own()
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = exchange.timeout
        store = dist.PrefixStore("messages", exchange.store)
        self._gloo = dist.ProcessGroupGloo(store, exchange.rank, exchange.size, options)

    def close(self) -> None:
        """Close the connections, as a wait that is too late does: Gloo uses no memory of messages any more."""
        with contextlib.suppress(RuntimeError):
            memory = [torch.empty(1, dtype=torch.uint8)]
            self._gloo.recv_anysource(memory, LAST_TAG + 1).wait(timedelta(milliseconds=1))

    def _check(self, tag: int) -> None:
        self.context.check()
        if not 0 <= tag <= LAST_TAG:
            raise ValueError(f"tag: {tag} is not between 0 and {LAST_TAG}")
        Message.dropped.look()

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> dist.Work:
        """Begin to send."""
        self._check(tag)
        source = Inward([tensor], "tensor")
        memory = _raw(source.flat if source.flat is not None else tensor)
        message = StoreMessage(self, f"send to rank {peer}", peer, source.owner, [tensor])
        if peer == self.context.rank:
            return self._own.begin(message, memory, tag)
        return message.begin(lambda: self._gloo.send([memory], peer, tag))

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> dist.Work:
        """Begin to receive; from any other rank if ``peer`` is None."""
        self._check(tag)
        target = Outward([tensor], "tensor")
        target.keep()  # Gloo takes a message shorter than the tensor, and does not say so
        memory = _raw(target.flat if target.flat is not None else tensor)
        words = "receive from any rank" if peer is None else f"receive from rank {peer}"
        message = StoreMessage(self, words, peer, target.owner, [tensor], target)
        if peer is None:
            return message.begin(lambda: self._gloo.recv_anysource([memory], tag))
        if peer == self.context.rank:
            return self._own.begin(message, memory, tag)
        return message.begin(lambda: self._gloo.recv([memory], peer, tag))


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, since Gloo knows only some types. A single element counts as contiguous
    whatever its stride is."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


class _InTurn:
    """Runs jobs one after the other, in a thread."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._serving = False

    def run(self, job: Callable[[], None]) -> None:
        """Run a job after those before it."""
        with self._lock:
            self._jobs.append(job)
            start, self._serving = not self._serving, True
        if start:
            run_aside(self._serve)

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._serving = bool(self._jobs)
                if not self._serving:
                    return
                job = self._jobs.popleft()
            job()


class _Own:
    """Messages of this rank to itself, which Gloo does not carry: a receive takes the first send with its tag."""

    def __init__(self) -> None:
        self._alone: dict[int, deque[tuple[StoreMessage, torch.Tensor]]] = defaultdict(deque)  # by tag, of one kind
        self._lock = threading.RLock()  # a signal handler may begin one

    def begin(self, message: StoreMessage, memory: torch.Tensor, tag: int) -> StoreMessage:
        """Begin to send, or to receive; ValueError for a message that is longer than the tensor."""
        message.needs_no_thread()
        with self._lock:
            alone = self._alone[tag]
            if not alone or alone[0][0].receives == message.receives:
                alone.append((message, memory))
                return message
            other, theirs = alone[0]
            source, target = (theirs, memory) if message.receives else (memory, theirs)
            if len(source) > len(target):
                message.end(None)
                raise ValueError(f"tensor: {message} and {other}: the message is longer than the tensor")
            alone.popleft()
        write(target[: len(source)], source)
        message.end(None)
        other.end(None)
        return message


class StoreMessage(Message):
    """A message of Gloo under way. Gloo tells the end only to who waits for it, and such a wait cannot be left.

    So a thread beside the program's waits in Gloo, for ever, and the program waits for that thread.
    """

    _work: dist.Work
    _over: bool | None = None  # None: nobody waits for the end
    _error: Exception | None = None
    _failed_at = 0.0

    def __init__(self, messages: StoreMessages, *about: Any):
        super().__init__(messages, *about)
        self._messages = messages
        self._under_way = threading.Lock()  # not an Event: a signal handler may wait within a wait
        self._under_way.acquire()

    @property
    def receives(self) -> bool:
        """Whether this is a receive, and not a send."""
        return self._target is not None

    def begin(self, send: Callable[[], dist.Work]) -> StoreMessage:
        """Let Gloo send or receive the message. If Gloo does not begin it, the error is handled like that of a wait."""
        try:
            self._work = send()
        except RuntimeError as e:
            self.end(e)
            self.wait()
        return self

    def needs_no_thread(self) -> None:
        """Leave the end to a call of :meth:`end`."""
        self._over = False

    def end(self, error: Exception | None) -> None:
        """Note that nothing uses the memory any more, since the message has gone or come, or by ``error``."""
        self._error, self._failed_at, self._over = error, time.monotonic(), True
        self._under_way.release()

    def await_gloo(self) -> None:
        """Wait until Gloo has done with the message, well or with an error."""
        error = None
        try:
            self._work.wait(FOREVER)
        except Exception as e:
            error = e
        self.end(error)

    def _attend(self, run: Callable[[Callable[[], None]], None] = run_aside) -> None:
        """Have ``run`` wait in Gloo, once: a second wait there would be for another message."""
        with self._lock:
            begin = self._over is None
            if begin:
                self._over = False
        if begin:
            run(self.await_gloo)

    def is_over(self) -> bool:
        """Whether Gloo will not use the memory any more; another thread waits for that from the first call on."""
        self._attend(run_aside if self.receives else self._messages.sends.run)
        return bool(self._over)

    def _has_come(self, limit: float) -> bool:
        """Whether it has been received or sent within ``limit`` seconds."""
        self._attend()
        if not self._over and self._under_way.acquire(timeout=limit):
            self._under_way.release()
        if self._over and self._error is None:
            with self._lock:
                if not self._ended:
                    self._finish()
        return self._ended

    def _look(self, nap: float, limit: float) -> bool:
        if self._has_come(limit):
            return True
        self._context.check()
        if self._error is not None:  # whoever looks at the other ranks may soon know why
            if time.monotonic() > self._failed_at + LAST_WORDS:
                raise self._error
            time.sleep(limit)
        return False

    def _fails(self, error: BaseException) -> None:
        patience = LAST_WORDS if isinstance(error, PeerFailure) or self._context.heard else 0.0
        if isinstance(error, CollectiveError) and self._has_come(patience):
            self._context.leave(self)
            return
        try:
            self._context.fail(self, error)
        finally:
            self._messages.close()

    def source_rank(self) -> int:
        """The rank that sent the message."""
        if not self.receives:
            return super().source_rank()
        return self._work._source_rank() if self._peer is None else self._peer
