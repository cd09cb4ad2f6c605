"""Asynchronous training without a server: every rank sends its gradients to all others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives import PeerFailure

from ..counts import count
from ..flat.model import narrow
from ..loading import check_array, fields
from ..models.nn import Array
from ..server.lifeline import lifeline
from ..server.transfers import Pause
from .base import Strategy
from .finite import check_gradients
from .local import average
from .pattern import GRADIENTS, Pattern, Post
from .peers import Peer

if TYPE_CHECKING:
    from ..flat.model import Handle, Model


class PeerAsync(Strategy):
    """Peer-asynchronous: a step uses this rank's gradient and those of others that have come, and waits for nobody.

    Every rank sends each gradient to all others, which add it to that of their next step; every gradient counts 1 /
    ranks. So all ranks use each gradient once, sooner or later. With plain SGD at a constant rate their parameters
    differ only by gradients that are under way; with momentum or Adam, also by the order. (The update is that of
    Downpour SGD, Dean et al. 2012, sec. 4.1, with a copy of the parameters on every rank instead of a server; bounds on
    convergence assume bounded delays, as Lian et al. 2015 do.)

    For each other rank at most one message is under way, and gradients that it must wait for are added up: the memory
    is that of 4 gradients for each rank, however slow it is. A rank sends ``n (ranks - 1)`` bytes in a step, n those of
    the parameters, or fewer messages to slow ranks.

    `finish` exchanges what is left, uses it in a last step, and takes the mean of the ranks' parameters. If a rank dies
    under Open MPI's ``mpiexec --with-ft ulfm``, the others go on, and each keeps its own parameters in the end. `check`
    raises ValueError for parameters of 16 bits.
    """

    lockstep = False
    sends_parameters = False

    def __init__(self, *, bucket_bytes: int | None = None) -> None:
        self.bucket_bytes = None if bucket_bytes is None else count("bucket_bytes", bucket_bytes)
        self._late = 0  # gradients that have come since the last step
        self._finishing = self._closed = False

    def check(self, model: Model, handle: Handle, comm: Any) -> None:
        """Raise ValueError unless the parameters can be sent."""
        short = narrow(model)
        if short is not None:
            raise ValueError(f"parameter {short} has 16 bits; gradients are added up in float32 and float64")

    def saves_buckets(self, model: Model) -> bool:
        """True: those of gradients that were not used yet."""
        return True

    def setup(self, net: Any, opt: Any, comm: Any) -> None:
        """See `Strategy.setup`."""
        super().setup(net, opt, comm)
        messages = comm.Dup()
        self._lifeline = lifeline(comm, comm.rank % 2)
        data = [bucket.data for bucket in self.buckets.list]
        self._arrived = [np.zeros_like(array) for array in data]
        self._peers = {rank: Peer(messages, rank, data) for rank in range(comm.size) if rank != comm.rank}

    @property
    def instead(self) -> str | None:
        """None: gradients are this rank's own until its step. See `Strategy.instead`."""
        return None

    def before_step(self) -> bool:
        """Send this rank's gradient, and add those that have come to it. FloatingPointError if it is not finite,
        RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError("the ranks have parted; distribute a copy of the network with a new optimizer")
        if self._finishing:
            self.problem = None  # a step without a backward pass, for what came last
        if self.problem is not None:
            return False
        if not self._finishing:
            check_gradients([bucket for bucket in self.buckets.list if bucket.samples], self.comm.rank)
        for bucket in self.buckets.list:
            if bucket.samples and not self._finishing:
                bucket.grads *= bucket.dtype.type(1 / self.comm.size)
            else:
                bucket.grads.fill(0)  # the gradient of no samples may be NaN
        self._exchange(self._peers)
        if not self._finishing:
            for peer in self._peers.values():
                peer.give([bucket.grads for bucket in self.buckets.list])
        for bucket, arrived in zip(self.buckets.list, self._arrived, strict=True):
            bucket.grads += arrived
            arrived.fill(0)
        self._late = 0
        return True

    def _exchange(self, ranks: Iterable[int]) -> None:
        """Take what has come from `ranks`, and send them what can be sent."""
        self._lifeline.look()
        for rank in self._lifeline.dead & self._peers.keys():
            self._peers.pop(rank).close()
        for peer in [self._peers[rank] for rank in ranks if rank in self._peers]:
            for gradients in peer.arrived():
                for total, gradient in zip(self._arrived, gradients, strict=True):
                    total += gradient
                self._late += 1
            peer.advance()

    def _drain(self) -> None:
        """Exchange until nothing is under way, as after `close`. Collective."""
        if self._closed:
            return
        for peer in self._peers.values():
            peer.end()
        pause, left = Pause(), set(self._peers)
        while left:
            before = self._late
            self._exchange(left)
            left = {rank for rank in left & self._peers.keys() if not self._peers[rank].ended()}
            if self._late > before:
                pause.reset()
            elif left:
                pause.rest()

    def finish(self) -> None:
        """Use all gradients everywhere, and take the mean of the ranks' parameters. Collective."""
        if self._closed:
            return
        self._drain()
        if self._late:
            self._finishing = True
            self.opt.step()
            self._finishing = False
        means = [bucket.data.copy() for bucket in self.buckets.list]
        if self._lifeline.together(lambda comm: _average_unless_equal(comm, means)):
            for bucket, mean in zip(self.buckets.list, means, strict=True):
                bucket.data[...] = mean

    def close(self) -> None:
        """Finish, and part from the other ranks. Collective. A step is a RuntimeError afterwards."""
        if not self._closed:
            self.finish()
            pause = Pause()
            while not self._lifeline.leave():
                try:
                    self._exchange(self._peers)
                except PeerFailure:
                    if not self._lifeline.leave():  # else all have come here, and the others may have ended since
                        raise
                    break
                pause.rest()
            for peer in self._peers.values():
                peer.close()
            self._lifeline.close()
            self._closed = True

    def batches(self, ranks: int) -> int:
        """1: gradients come from parameters of any age, for which a rate that suits their mean is too long."""
        return 1

    def pattern(self, size: int) -> Pattern:
        """Gradients to all other ranks after each step."""
        others = [tuple(other for other in range(size) if other != rank) for rank in range(size)]
        return Pattern(lambda rank, step: (Post(others[rank], GRADIENTS),) if size > 1 else ())

    def state_dict(self) -> dict[str, Any]:
        """The gradients that this rank has not used yet. Collective."""
        self._drain()
        return {"ranks": self.comm.size, "late": self._late, "arrived": [array.copy() for array in self._arrived]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. Of another number of ranks, gradients that were not used yet are left out."""
        what = type(self).__name__
        ranks, late, arrived = fields(what, state, ranks=int, late=int, arrived=list)
        if ranks == self.comm.size:
            if len(arrived) != len(self._arrived):
                raise ValueError(f"{what}: the state has {len(arrived)} buckets, the network {len(self._arrived)}")
            for array, saved in zip(self._arrived, arrived, strict=True):
                check_array(f"{what}: a bucket", saved, array.shape)
            self._late = late
            for array, saved in zip(self._arrived, arrived, strict=True):
                array[...] = saved


def _average_unless_equal(comm: Any, arrays: Sequence[Array]) -> None:
    """Replace the arrays by the ranks' mean, unless they have the same bits on all ranks. Collective.

    The mean of equal numbers may be rounded to another one.
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.view(np.uint8).data)
    if len(set(comm.allgather(digest.digest()))) > 1:
        average(comm, arrays)
