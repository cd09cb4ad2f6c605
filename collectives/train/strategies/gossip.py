"""Messages between neighbours in a graph."""

from __future__ import annotations

import atexit
import functools
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..deaths import die_if_raised, naming_the_dead, survives
from ..models.nn import Array
from ..server.lifeline import Lifeline, lifeline
from ..server.transfers import Pause
from ..under_way import hold, release, settle
from .base import with_parameters
from .finite import check_parameters
from .graphs import Graph, Mixing, named
from .local import Local, average
from .pattern import Pattern, neighbours

if TYPE_CHECKING:
    from ..flat.model import Handle, Model


LONG = 1.0  # seconds of a wait after which a rank looks whether the others are there


class Exchange:
    """Exchanges `array`, of shape (n,), with neighbours. Between `start` and `mix` it must not be changed.

    `most` is the largest number of neighbours that send; there is room for so many arrays. `tag` is that of messages.
    ``look()`` is called in a long wait; it raises if a neighbour has ended the program.
    """

    def __init__(self, comm: Any, array: Array, most: int, tag: int, look: Callable[[], None]) -> None:
        self._comm, self._array, self._tag, self._look = comm, array, tag, look
        self._room = [np.empty_like(array) for _ in range(most)]
        self._received: dict[int, Array] = {}
        self._requests: list[Any] = []
        self._held = -1  # a number of no memory

    def start(self, sources: Iterable[int], targets: Iterable[int]) -> None:
        """Begin to receive from ranks `sources`, and to send to ranks `targets`."""
        self._received, self._requests = dict(zip(sources, self._room, strict=False)), []
        self._held = hold(self._room, self._array)
        for source, room in self._received.items():
            self._requests.append(self._comm.Irecv(room, source=source, tag=self._tag))
        for target in targets:
            self._requests.append(self._comm.Isend(self._array, target, tag=self._tag))

    def wait(self) -> dict[int, Array]:
        """Wait for the messages; the neighbours' arrays by rank. PeerFailure if one of them will not come."""
        pause, begin = Pause(), time.monotonic()
        with naming_the_dead(self._comm):
            while not all([request.Test() for request in self._requests]):
                pause.rest()
                if time.monotonic() > begin + LONG:
                    self._look()
        release(self._held)
        return self._received

    def abandon(self) -> None:
        """Let go of the messages, whose communicator was revoked."""
        settle(self._held, self._requests)

    def mix(self, parts: Mapping[int, float]) -> None:
        """Go from the own array x to ``x + sum_j parts[j] (x_j - x)``; `parts` has the part of each neighbour j.

        In this form equal arrays stay as they are, to the bit. Ranks come in the order in which they were `sources`.
        """
        received = self.wait()
        for source, theirs in received.items():
            theirs -= self._array
            theirs *= theirs.dtype.type(parts[source])
        for theirs in received.values():
            self._array += theirs


class Gossip(Local):
    """Averages with neighbours, by the mixing matrices of a graph (see `Mixing`).

    With `final_average` (default: True), `finish` replaces the parameters by the mean of all ranks.

    If a rank raises or dies, those that wait for it raise PeerFailure, and then those that wait for them. Under Open
    MPI's ``mpiexec --with-ft ulfm``, in a run with ``elastic``, they all go on. Without `Run`, all ranks call `finish`
    after the last step.
    """

    _lifeline: Lifeline | None = None

    def __init__(self, graph: str | Graph | Array, final_average: bool = True) -> None:
        super().__init__()
        self.graph, self.final_average = named(graph), final_average

    def check(self, model: Model, handle: Handle, comm: Any) -> None:
        """Raise ValueError unless the network can be averaged and the graph serves these ranks."""
        super().check(model, handle, comm)
        self._digest = self._place(comm)

    def _place(self, comm: Any) -> str:
        """Find this rank's neighbours; returns the digest of the graph."""
        mixing = Mixing(self.graph, comm.size)
        self.take_graph(mixing, comm.rank)
        return mixing.digest

    def take_graph(self, mixing: Mixing, rank: int) -> None:
        """Keep what this rank needs of the matrices. ValueError if the strategy does not work with them."""
        self._rows, self._targets = mixing.rows(rank), mixing.targets(rank)

    def setup(self, net: Any, opt: Any, comm: Any) -> None:
        """See `Strategy.setup`."""
        super().setup(net, opt, comm)
        self._connect()

    def _connect(self) -> None:
        """Make a communicator for these messages, which meet no others there. Collective."""
        self.messages = self.comm.Dup()
        if survives(self.comm):
            atexit.register(die_if_raised)  # MPI tells those that wait for this rank
        self.prepare()

    def prepare(self) -> None:
        """Make room for the messages."""
        self._exchanges = [self.exchange_of(data, tag) for tag, data in enumerate(self.parameters)]

    def exchange_of(self, array: Array, tag: int) -> Exchange:
        """The exchange of an array with the neighbours."""
        return Exchange(self.messages, array, max(map(len, self._rows)), tag, self._look_at_others)

    def _look_at_others(self) -> None:
        if self._lifeline is not None:
            self._lifeline.look()

    def start(self, exchange: Exchange) -> None:
        """Start an exchange with the neighbours of this step."""
        if self._lifeline is None and _only_collectives_tell(self.comm):
            self._lifeline = lifeline(self.comm, self.comm.rank % 2)
            self._at_exit = functools.partial(_end_process, self._lifeline)
            atexit.register(self._at_exit)
        exchange.start(self.row, self._targets[self.steps % len(self._targets)])

    @property
    def row(self) -> dict[int, float]:
        """The neighbours that send in this step, with the parts of their arrays that this rank takes."""
        return self._rows[self.steps % len(self._rows)]

    @with_parameters
    def finish(self) -> None:
        """Replace the parameters by the ranks' mean, unless that is not wanted. Collective."""
        check_parameters(self.buckets.list, self.comm.rank)
        self._part()
        if self.final_average:
            self.merge()

    def merge(self) -> None:
        """Replace the parameters by the ranks' mean."""
        average(self.comm, self.parameters)

    def close(self) -> None:
        """Part from the other ranks. Collective."""
        self._part()

    def _part(self) -> None:
        if self._lifeline is not None:
            pause = Pause()
            while not self._lifeline.leave():
                pause.rest()
            self._lifeline.close()
            self._lifeline = None
            atexit.unregister(self._at_exit)

    def _abandon(self) -> None:
        """Let go of the messages under way, after `give_up`."""
        for exchange in self._exchanges:
            exchange.abandon()

    def give_up(self) -> None:
        """End the exchanges under way on all ranks: those that are no neighbours of a dead rank learn of it so."""
        self.messages.Revoke()

    def resize(self, comm: Any) -> None:
        """Go on with the ranks of `comm`, and with the graph for so many ranks. ValueError if there is none."""
        self._place(comm)
        self._abandon()
        super().resize(comm)
        self._connect()

    def pattern(self, size: int) -> Pattern:
        """Parameters along the links of the graph after each step. ValueError for a graph that does not serve."""
        mixing = Mixing(self.graph, size)
        self.take_graph(mixing, 0)
        rows, targets = ([of(rank) for rank in range(size)] for of in (mixing.rows, mixing.targets))
        return neighbours(
            lambda rank, step: targets[rank][step % len(targets[rank])],
            lambda rank, step: rows[rank][step % len(rows[rank])],
        )

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "graph": self._digest, "final_average": self.final_average}


def _only_collectives_tell(comm: Any) -> bool:
    """Whether a rank that waits for a message does not learn that another has ended, as it does in a collective.

    Under ULFM it learns that from MPI, and of threads in any call. MPI's own communicators never tell.
    """
    return getattr(comm, "why_no_shrink", None) is not None


def _end_process(lifeline: Lifeline) -> None:
    """The program ends without `finish`: begin to part, unless an exception has ended it."""
    if getattr(sys, "last_value", None) is None:
        lifeline.leave()
