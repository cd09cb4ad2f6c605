"""The buffers of exchanges: all-to-allw, and the collectives of neighbours.

The classes have the parts of :class:`.workloads.Workload` that the engine uses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from .operands import difference, operand
from .workloads import Plan, in_turn, page_aligned, typed

__all__ = ["Exchange", "neighbours", "on_torus"]


def neighbours(rank: int, dims: Sequence[int], radius: int) -> list[int]:
    """The ranks up to ``radius`` away from ``rank`` along each dimension of a torus of ``dims``; each rank once."""
    place = np.unravel_index(rank, tuple(dims))
    found = set()
    for axis, length in enumerate(dims):
        reach = min(radius, length // 2)  # of a longer one the steps come round to the same ranks
        for step in range(-reach, reach + 1):
            there = list(place)
            there[axis] = (there[axis] + step) % length
            found.add(int(np.ravel_multi_index(tuple(there), tuple(dims))))
    return sorted(found - {rank})


def on_torus(comm: MPI.Intracomm, dimensions: int, radius: int) -> Any:
    """A graph communicator of the ranks of ``comm`` on a torus of up to 32 dimensions."""
    dims = MPI.Compute_dims(comm.size, dimensions)
    peers = neighbours(comm.rank, dims, radius)
    return comm.Create_dist_graph_adjacent(peers, peers)


class Exchange:
    """The buffers of a call in which ranks exchange a block with each of their peers, and the call.

    ``collective`` is ``alltoallw``, whose peers are all ranks, or one of the collectives of neighbours, for which
    ``comm`` has a topology. A block has ``count`` elements of ``dtype``; blocks are sent as bytes. ``algorithm`` is
    named in all calls; None leaves the choice to the library, and is for mpi4py's communicators.
    """

    def __init__(
        self, comm: Any, collective: str, count: int, *, dtype: Any = "int8", rotate: int = 1,
        algorithm: str | None = None,
    ):  # fmt: skip
        self.named = {} if algorithm is None else {"algorithm": algorithm}
        self.comm, self.collective, self.count, self.rotate = comm, collective, count, rotate
        self.dtype = typed(dtype)
        self.message = count * self.dtype.itemsize
        everybody = list(range(comm.size))
        self.sources: list[int] = everybody
        self.targets: list[int] = everybody
        if collective != "alltoallw":
            self.sources, self.targets = comm.inoutedges
        self.nbytes = self.message * len(self.sources)
        self.gathers = "allgather" in collective
        sent = 1 if self.gathers else len(self.targets)
        self._memory = [
            (page_aligned(count * sent, self.dtype), page_aligned(count * len(self.sources), self.dtype))
            for _ in range(rotate)
        ]
        for number in range(rotate):
            self._fill(number)

    def call(self, **keywords: Any) -> Callable[[], Any]:
        """A function without arguments that makes a blocking call with ``keywords``."""
        return in_turn(self._calls("call", keywords))

    def start(self) -> Callable[[], MPI.Request]:
        """A function without arguments that starts a non-blocking call and returns its request."""
        return in_turn(self._calls("start", {}))

    def plan(self) -> Plan:
        """Persistent requests for all sets of buffers. Collective."""
        return Plan(self._calls("plan", {}))

    def _calls(self, form: str, keywords: dict[str, Any]) -> list[Any]:
        method = self.collective.capitalize()
        name = {"call": method, "start": f"I{self.collective}", "plan": f"{method}_init"}[form]
        bound = functools.partial(getattr(self.comm, name), **self.named, **keywords)
        made = [functools.partial(bound, *self._arguments(number)) for number in range(self.rotate)]
        return [prepare() for prepare in made] if form == "plan" else made

    def _arguments(self, number: int) -> tuple[Any, Any]:
        send, recv = (array.view(np.uint8) for array in self._memory[number])
        if self.collective.endswith(("v", "w")):
            sent = send if self.gathers else self._listed(send, len(self.targets))
            return sent, self._listed(recv, len(self.sources))
        return send, recv

    def _listed(self, array: np.ndarray, blocks: int) -> list[Any]:
        """The buffer with counts and displacements of its blocks, and types if the call takes one for each."""
        counts, places = [self.message] * blocks, [i * self.message for i in range(blocks)]
        return [array, (counts, places), [MPI.BYTE] * blocks if self.collective.endswith("w") else MPI.BYTE]

    def _block(self, source: int, target: int, number: int) -> np.ndarray:
        """What rank ``source`` sends to rank ``target``."""
        first = 0 if self.gathers else target * self.count
        return operand(self.dtype, source, self.comm.size, first, first + self.count, number)

    def _fill(self, number: int) -> None:
        """Fill the result with wrong values, and the input with this rank's data."""
        send, recv = self._memory[number]
        for i in range(len(send) // max(1, self.count)):
            send[i * self.count : (i + 1) * self.count] = self._block(self.comm.rank, self.targets[i], number)
        for i, source in enumerate(self.sources):
            wrong = recv[i * self.count : (i + 1) * self.count].view(np.uint8)
            np.invert(self._block(source, self.comm.rank, number).view(np.uint8), out=wrong)

    def validate(self, form: str = "call", **keywords: Any) -> str | None:
        """Call once on every set of buffers, with fresh data; returns what is wrong here, or None. Collective."""
        found = None
        for number, call in enumerate(self._calls(form, keywords)):
            self._fill(number)
            if form == "plan":
                call.Start()
                call.Wait()
                call.Free()
            elif form == "start":
                call().Wait()
            else:
                call()
            found = found or self._difference(number)
        return found

    def _difference(self, number: int) -> str | None:
        recv = self._memory[number][1]
        for i, source in enumerate(self.sources):
            block = recv[i * self.count : (i + 1) * self.count]
            found = difference(block, self._block(source, self.comm.rank, number))
            if found is not None:
                return f"rank {self.comm.rank}: element {i * self.count + found[0]} is {found[1]}"
        return None
