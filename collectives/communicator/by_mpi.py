"""Blocking calls that the MPI library serves, and that are equal to an earlier one: they need none of its checks."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arguments import movement
from ..arguments.buffers import in_place
from ..arguments.calls import Arguments, Draft
from ..core import _core
from ..waiting.mpi_calls import MPIRun

__all__ = ["Repeated", "method_of"]


@functools.cache
def method_of(name: str) -> Any:
    """mpi4py's own method of this name."""
    return getattr(MPI.Intracomm if hasattr(MPI.Intracomm, name) else MPI.Topocomm, name)


class Repeated:
    """Serves calls that the fast path finds equal to that of ``draft`` and ``arguments``, but for their memory.

    ``as_bytes``: data that are only moved go to the MPI library as bytes, as in the earlier call. Calls under a timeout
    are not served.
    """

    def __init__(self, draft: Draft, as_bytes: bool, elements: list[Any] | None):
        self._collective, self._shape = draft.collective, draft.shape
        self._call = draft.shape.call("mpi")._replace(collective=draft.collective.name)
        self._blocking, self._as_bytes = method_of(draft.collective.method), as_bytes
        self._elements = elements

    @classmethod
    def of(cls, draft: Draft, arguments: Arguments, as_bytes: bool) -> Repeated | None:
        """What serves such calls; None if it cannot be told which other calls are equal."""
        if draft.collective.reduces or as_bytes:
            return cls(draft, as_bytes, None)
        # The fast path compares the elements of reductions, but of other calls their sizes alone.
        elements = _elements(arguments)
        return None if elements is None else cls(draft, as_bytes, elements)

    def run(
        self, comm: Any, source: int, target: int, sendbuf: Any, recvbuf: Any, op: Any, root: int,
        recvcounts: Any,
    ) -> bool:  # fmt: skip
        """Run a call; False, with nothing done, if it differs from the earlier one in more than its memory.

        ``source`` and ``target`` are the addresses of input and vector.
        """
        tick, context = _core.ticks(), comm._enter()
        given = Arguments(sendbuf, recvbuf, op, root, recvcounts)
        alike = self._elements is None or self._elements == _elements(given)
        if context.timeout is not None or not alike:
            return False
        if self._as_bytes:
            place = source, target, context.rank, context.size
            given = movement.as_bytes(self._collective, self._shape, *place)
        context.take_turn()
        try:
            context.count_mpi(self._described)
            run = MPIRun(self._collective.name, self._call._replace(number=context.begun), (sendbuf, recvbuf))
            context.by_mpi(run, self._blocking.__get__(comm), None, given.of(self._collective), None)
        finally:
            context.turn.give()
        context.ended(self._collective.name, "mpi", self._shape.nbytes, root, tick)
        return True

    def _described(self) -> Any:
        return self._call


def _elements(arguments: Arguments) -> list[Any] | None:
    """The types of the elements of both buffers; None if one is neither an array nor a list that begins with one."""
    found = []
    for buffer in (arguments.sendbuf, arguments.recvbuf):
        if buffer is None or in_place(buffer):
            found.append(())
            continue
        array, *more = buffer if isinstance(buffer, (list, tuple)) else (buffer,)
        if type(array) is not np.ndarray:
            return None
        found.append((array.dtype, *(part for part in more if isinstance(part, MPI.Datatype))))
    return found
