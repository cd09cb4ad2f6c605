"""Communicators being made or freed: all ranks meet first, in waits that have a bound and a name.

What MPI has for this waits inside MPI, for as long as it takes: MPI_Comm_dup, MPI_Comm_split, MPI_Comm_free. So ranks
meet in a non-blocking barrier before it, and exchange what they must agree on by non-blocking collectives.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from . import _core, inquiry, lifetime
from .diagnosis import Answer, Call, position
from .mpiruns import MPIRun, MPIWaiting
from .reference import Messages, Walk
from .waiting import Wait, checked_timeout, stall_from_environment

__all__ = ["Making", "gather"]


class Stranger(MPIWaiting):
    """Waits for the ranks of a communicator that is not the library's yet; what fails here breaks no other one.

    ``known`` is the library's side of another communicator of the same ranks, through which they can be asked.
    """

    letters = None
    broken: str | None = None
    yield_at_once = False
    identity = ""

    def __init__(self, comm: MPI.Intracomm, known: MPIWaiting | None):
        self.internal = comm
        self.rank, self.size = comm.rank, comm.size
        self.neighbours, self.heard, self.left, self.waits = {}, {}, {}, []
        self._known = known
        if known is not None:
            self.identity, self.neighbours, self.letters = known.identity, known.neighbours, known.letters
            self.left, self.waits = known.left, known.waits
            self.yield_at_once = known.yield_at_once
        try:
            self.timeout = checked_timeout(float(os.environ.get("COLLECTIVES_TIMEOUT") or "nan"))
        except ValueError:  # rank 0's is looked at when all are there
            self.timeout = None
        try:
            self.stall = stall_from_environment()
        except ValueError:
            self.stall = None

    @property
    def begun(self) -> int:
        """Calls begun on the known communicator; this is none of them."""
        return 0 if self._known is None else self._known.begun

    def parties(self, run: Any, behind: list[int], again: bool = False) -> list[Answer]:
        """What this rank and the others do; alone, where nobody can be asked."""
        if self._known is not None:
            return super().parties(run, behind, again)
        return [Answer(self.rank, run.call(), self.begun, position(threading.get_ident()))]

    def note(self, run: Any, error: BaseException) -> None:
        """A run ended early; MPI_Finalize may not end for it, and the others see that nobody waits for them here."""
        lifetime.keep(run)
        if self.broken is None:
            self.broken = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            _core.broken(f"rank {self.rank} of {self.size}: {self.broken}")


def _same_ranks(comm: MPI.Intracomm) -> MPIWaiting | None:
    """The library's side of another communicator of the same ranks, which knows how to ask them; the oldest."""
    for context in inquiry.contexts():
        if isinstance(context, MPIWaiting) and context.broken is None and context.internal != MPI.COMM_NULL:
            if MPI.Comm.Compare(context.internal, comm) in (MPI.IDENT, MPI.CONGRUENT):
                return context
    return None


class Making:
    """``with Making("creating a communicator by Dup", comm, context) as making``: MPI's own calls do not wait in it.

    ``context`` is the library's side of ``comm``, where there is one: the call is one of its calls then. ``members``
    are the ranks that take part, where not all do; they meet by messages with a ``tag``. ``call`` describes it to the
    others, where it is more than ``what``.
    """

    def __init__(
        self, what: str, comm: MPI.Intracomm, context: Any = None, members: Sequence[int] | None = None, tag: int = 0,
        call: Call | None = None,
    ):  # fmt: skip
        self._known = context is not None
        self._context = context or Stranger(comm, _same_ranks(comm))
        self._comm = context.internal if self._known else comm
        self._what, self._members, self._tag = what, members, tag
        self._call = call or Call(None, what, "", 0, "", "", None)
        self._ranks = [rank for rank in members or range(comm.size) if rank != comm.rank]

    def __enter__(self) -> Making:
        context = self._context
        context.check()
        if self._known and self._members is None:
            context.count(1)
        number = context.begun if self._known and self._members is None else None
        self._call = self._call._replace(number=number)
        if self._members is None:
            self.wait(self._comm.Ibarrier())
        else:
            walk = Walk(self._rounds(self._members), self._call, 0, None)
            context.wait_for_mpi(walk)
        self._during = Wait(MPIRun(self._what, self._call))
        context.waits.append(self._during)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._context.waits.remove(self._during)

    def wait(self, request: MPI.Request, buffers: Any = None) -> None:
        """Wait for a part of it."""
        run = MPIRun(self._what, self._call, buffers)
        run.request, run.ranks = request, self._ranks
        self._context.wait_for_mpi(run)

    def gather(self, comm: MPI.Intracomm, obj: Any) -> list[Any]:
        """An object of every rank of a communicator, on all of them."""
        return gather(comm, obj, self.wait)

    def _rounds(self, members: Sequence[int]) -> Iterator[Messages]:
        """A barrier of some of the ranks, by dissemination."""
        place, size, token, step = members.index(self._comm.rank), len(members), bytearray(1), 1
        while step < size:
            there, here = members[(place + step) % size], members[(place - step) % size]
            receive = self._comm.Irecv([bytearray(1), MPI.BYTE], here, self._tag)
            yield [(self._comm.Isend([token, MPI.BYTE], there, self._tag), there), (receive, here)]
            step *= 2


def gather(comm: MPI.Intracomm, obj: Any, wait: Any) -> list[Any]:
    """An object of every rank, on all ranks; ``wait(request, buffers)`` waits."""
    mine = np.frombuffer(pickle.dumps(obj), np.uint8)
    length, lengths = np.array([len(mine)]), np.empty(comm.size, np.int64)
    wait(comm.Iallgather(length, lengths), (length, lengths))
    everything = np.empty(lengths.sum(), np.uint8)
    wait(comm.Iallgatherv(mine, [everything, lengths]), (mine, everything))
    ends = np.cumsum(lengths).tolist()
    return [pickle.loads(everything[end - n : end].data) for end, n in zip(ends, lengths.tolist(), strict=True)]
