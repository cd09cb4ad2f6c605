"""Point-to-point messages without MPI: by Gloo, whose ranks meet over the group's store."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ..errors import CollectiveError
from ..runtime.context import Context
from ..waiting.watching import Watch
from .messages import Message
from .store import Exchange
from .tensors import Inward, Outward
from .work import Callbacks, run_aside

__all__ = ["StoreMessages"]

FOREVER = 1e8  # seconds
LAST_WORDS = 0.3  # seconds that a message of a rank that has failed may still take: it may be on its way


class _Waited:
    """The messages that threads wait for. The context has this, which does not have the context."""

    def __init__(self) -> None:
        self.messages: set[StoreMessage] = set()

    def interrupt(self, of: Callable[[StoreMessage], bool] = lambda message: True) -> None:
        """Let waits in Gloo end."""
        for message in list(self.messages):
            if of(message):
                message.interrupt()

    def after_news(self, rank: int) -> None:
        """Soon end the program's waits for a rank that has failed. Gloo ends them only if they began before it noticed
        that the rank has closed the connection."""
        timer = threading.Timer(LAST_WORDS, self.interrupt, [lambda message: message.needs([rank])])
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # no thread can be started
            timer.start()


class StoreMessages:
    """Messages by Gloo between processes of one node, which are connected when the group is made.

    If first messages made the connections, ranks would wait for each other in the call that begins a message.
    """

    def __init__(self, exchange: Exchange, context: Context, callbacks: Callbacks):
        """``callbacks`` runs those of messages' futures."""
        self.context, self.callbacks = context, callbacks
        self.waited = _Waited()
        context.after_news = self.waited.after_news  # type: ignore[method-assign]
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = exchange.timeout
        store = dist.PrefixStore("messages", exchange.store)
        self._gloo = dist.ProcessGroupGloo(store, exchange.rank, exchange.size, options)

    def interrupt(self) -> None:
        """Let the waits for messages end."""
        self.waited.interrupt()

    def _check(self) -> None:
        self.context.check()
        Message.dropped.look()

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> dist.Work:
        """Begin to send."""
        source = Inward([tensor], "tensor")
        self._check()
        memory = [_raw(source.flat if source.flat is not None else tensor)]
        message = StoreMessage(self, f"send to rank {peer}", peer, source.owner, [tensor])
        return message.begin(lambda: self._gloo.send(memory, peer, tag))

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> dist.Work:
        """Begin to receive; from any rank if ``peer`` is None."""
        target = Outward([tensor], "tensor")
        target.keep()  # Gloo takes a message shorter than the tensor, and does not say so
        memory = [_raw(target.flat if target.flat is not None else tensor)]
        self._check()
        words = "receive from any rank" if peer is None else f"receive from rank {peer}"
        message = StoreMessage(self, words, peer, target.owner, [tensor], target)
        if peer is None:
            return message.begin(lambda: self._gloo.recv_anysource(memory, tag))
        return message.begin(lambda: self._gloo.recv(memory, peer, tag))


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, since Gloo knows only some types. A single element counts as contiguous
    whatever its stride is."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


class _Ends:
    """Waits for messages that the program dropped, one after the other, in a thread: Gloo tells the end of a message
    only to who waits for it, and a wait that is too late ends those of all others."""

    def __init__(self) -> None:
        self._messages: deque[StoreMessage] = deque()
        self._lock = threading.Lock()
        self._serving = False

    def add(self, message: StoreMessage) -> None:
        """Wait for a message after those before it."""
        with self._lock:
            self._messages.append(message)
            start, self._serving = not self._serving, True
        if start:
            run_aside(self._serve)

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._serving = bool(self._messages)
                if not self._serving:
                    return
                message = self._messages.popleft()
            message.attend_to_the_end()


class StoreMessage(Message):
    """A message of Gloo under way."""

    _work: dist.Work
    _ends: ClassVar[_Ends] = _Ends()
    _over: bool | None = None  # None: nobody waits for the end

    def __init__(self, messages: StoreMessages, *about: Any):
        super().__init__(messages, *about)
        self._waited = messages.waited.messages

    def begin(self, send: Callable[[], dist.Work]) -> StoreMessage:
        """Let Gloo send or receive the message. If Gloo does not begin it, the error is handled like that of a wait."""
        try:
            self._work = send()
        except RuntimeError as e:
            self._ended = True
            self._context.fail(self, e)
        return self

    def is_over(self) -> bool:
        """Whether Gloo will not use the memory any more; another thread waits for that from the first call on."""
        if self._over is None:
            self._over = False
            self._ends.add(self)
        return self._over

    def attend_to_the_end(self) -> None:
        """Wait until Gloo has done with the message, well or with an error."""
        with contextlib.suppress(Exception):
            self._attend(FOREVER)
        self._over = True

    def needs(self, failed: Collection[int]) -> bool:
        """Whether the program waits for one of the ranks ``failed``; of those that might send, each counts."""
        return self._over is None and any(rank in failed for rank in self.waiting() or failed)

    def _wait(self, timeout: float | None) -> None:
        limit = self._context.timeout if timeout is None else timeout
        if self.needs(self._context.heard):
            limit = min(limit or LAST_WORDS, LAST_WORDS)
        try:
            self._attend(limit)
        except BaseException as e:
            cause = self._cause() if isinstance(e, Exception) else None
            self._context.fail(self, cause or e)

    def _cause(self) -> CollectiveError | None:
        """The error of a group that has been aborted, or of a rank that has failed and is waited for."""
        context = self._context
        try:
            context.meanwhile()
        except CollectiveError as e:
            return e
        heard = dict(context.heard)
        for rank in self.waiting() or heard:
            found = context.judged(self, heard[rank]) if rank in heard else None
            if found is not None:
                return context.error_of(self, *found, [rank])
        return None

    def interrupt(self) -> None:
        """Let waits in Gloo end: a wait that is too late ends those of other threads."""
        with contextlib.suppress(RuntimeError):
            self._work.wait(timedelta(milliseconds=1))

    def _attend(self, limit: float | None) -> None:
        """Wait in one thread at a time, and in Gloo once: a second wait there would be for another message."""
        end = None if limit is None else time.monotonic() + limit
        if not self._lock.acquire(timeout=-1 if limit is None else limit):
            self.interrupt()
            raise Watch(self._context, self).timed_out(limit or 0)
        try:
            if not self._ended:
                self._waited.add(self)
                self._work.wait(timedelta(seconds=0 if end is None else max(1e-3, end - time.monotonic())))
                self._finish()
        except RuntimeError as e:
            if "imed out" in str(e):
                raise Watch(self._context, self).timed_out(limit or 0) from None
            raise
        finally:
            self._waited.discard(self)
            self._lock.release()

    def is_completed(self) -> bool:
        """Whether the message has been received or sent, or has failed. Gloo knows of that only from a wait."""
        if not self._work.is_completed():
            return False
        with self._lock:  # until the thread that waited has finished
            return True

    def source_rank(self) -> int:
        """The rank that sent the message."""
        return self._work._source_rank()
