"""Point-to-point messages without MPI: through the memory that the processes of one node share."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from ..core import _core
from ..errors import CollectiveMismatch
from ..runtime.local import LocalContext
from ..waiting import ending
from .messages import Message
from .tensors import Inward, Outward
from .work import Callbacks

__all__ = ["NodeMessages"]

LAST_TAG = (1 << 31) - 1  # torch's tags are C's int
BRIEF = 1e-4  # s


class NodeMessages:
    """Messages between the processes of one node (csrc/p2p/p2p.h)."""

    def __init__(self, context: LocalContext, channel: _core.PointToPoint, callbacks: Callbacks):
        """``callbacks`` runs those of messages' futures."""
        self.context, self._channel, self.callbacks = context, channel, callbacks

    def _check(self, tag: int) -> None:
        self.context.check()
        if not 0 <= tag <= LAST_TAG:
            raise ValueError(f"tag: {tag} is not between 0 and {LAST_TAG}")
        NodeMessage.dropped.look()

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> dist.Work:
        """Begin to send."""
        self._check(tag)
        source = Inward([tensor], "tensor")
        request = self._channel.send(source.address, tensor.nbytes, peer, tag)
        return NodeMessage(self, request, peer, source.owner, [tensor])

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> dist.Work:
        """Begin to receive; from any rank if ``peer`` is None."""
        self._check(tag)
        target = Outward([tensor], "tensor")
        request = self._channel.receive(target.address, tensor.nbytes, peer, tag)
        return NodeMessage(self, request, peer, target.owner, [tensor], target)


class NodeMessage(Message):
    """A message under way in shared memory."""

    def __init__(self, messages: NodeMessages, request: _core.PointToPointMessage, *about: Any):
        super().__init__(messages, *about)
        self._request = request

    def _is_over(self) -> bool:
        return self._request.done

    def withdraw(self) -> int:
        """Give the message up, unless it has gone or come; 0, since none can come any more."""
        self._request.withdraw()
        return 0

    def _has_come(self, limit: float) -> bool:
        try:
            come = self._request.wait(self._context.yield_at_once, int(limit * 1e9))
        except _core.MismatchError:
            found = self._request.received
            what = "shorter" if found < self._bytes else "longer"
            self._error = CollectiveMismatch(f"{self}: the message is {what} than the tensor, {found} bytes")
            raise self._error from None
        except _core.GivenUpError:
            self._context.meanwhile()  # raises the error of a group that has been aborted
            self._context.check()  # or of one in which a call has failed
            raise
        if come:
            with self._lock:
                if not self._ended:
                    self._finish()
        return come

    def _look(self, nap: float, limit: float) -> bool:
        if nap:  # the progress thread moves the message
            end = time.monotonic() + limit
            while not self._request.done and time.monotonic() < end:
                time.sleep(nap)
        if self._has_come(0.0 if nap else limit):
            return True
        self._context.check()
        return False

    def _wait(self, timeout: float | None) -> None:
        """Look for a moment before the wait that others can see, which costs more than a short message takes."""
        ending.refuse_if_forked()
        try:
            come = self._has_come(BRIEF if timeout is None else min(BRIEF, timeout))
        except BaseException as e:
            self._fails(e)
        if not come or self._context.some_gave_up or self._polling is not None:
            super()._wait(timeout)

    def _fails(self, error: BaseException) -> None:
        if error is self._error:
            self._context.leave(self)  # the group goes on
            raise error
        self._context.fail(self, error)

    def source_rank(self) -> int:
        """The rank that sent the message."""
        if self._target is None:
            return super().source_rank()
        return self._request.source
