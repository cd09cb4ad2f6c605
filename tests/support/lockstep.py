"""Several ranks in one thread: generators that yield requests (train's compressions), run in lockstep.

Collectives are executed when all ranks have begun them. Until then a receive buffer holds garbage, and a send buffer
must stay as it is, as MPI demands.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from mpi4py import MPI

import collectives


@dataclass
class Call:
    """A collective that one rank has begun."""

    kind: str
    send: np.ndarray
    receive: np.ndarray
    op: Any = None
    given: np.ndarray = field(init=False)

    def __post_init__(self):
        self.given = self.send.copy()
        if self.receive is not self.send:
            assert not np.shares_memory(self.send, self.receive)
        self.receive.view(np.uint8)[...] = 0xFF


class Rank:
    """One rank's communicator, with the collectives that compressions use."""

    def __init__(self, world: "World", rank: int):
        self.world, self.rank, self.size = world, rank, world.size
        self.empty = np.empty

    def _begin(self, call: Call) -> Call:
        assert self.world.calls[self.rank] is None
        self.world.calls[self.rank] = call
        return call

    def Iallreduce(self, send, receive, op):
        return self._begin(Call("allreduce", receive if send is MPI.IN_PLACE else send, receive, op))

    def Iallgather(self, send, receive):
        assert receive.size == self.size * send.size
        return self._begin(Call("allgather", send, receive))

    def Ialltoall(self, send, receive):
        assert receive.size == send.size
        return self._begin(Call("alltoall", send, receive))


class World:
    """The communicators of `size` ranks, `ranks`."""

    def __init__(self, size: int):
        self.size = size
        self.ranks = [Rank(self, rank) for rank in range(size)]
        self.calls: list[Call | None] = [None] * size

    def run(self, generators: Iterable[Iterator[Any]]) -> None:
        """Run one generator of each rank to its end; all of them must begin the same collectives."""
        generators = list(generators)
        while True:
            begun = [next(generator, None) for generator in generators]
            assert begun == self.calls
            if all(call is None for call in begun):
                return
            self.complete()

    def complete(self) -> None:
        """Execute the collective that all ranks have begun."""
        calls = [call for call in self.calls if call is not None]
        assert len(calls) == self.size
        assert len({(call.kind, id(call.op), call.send.size, call.send.dtype) for call in calls}) == 1
        for call in calls:
            if call.receive is not call.send:
                np.testing.assert_array_equal(call.send, call.given)
        given = np.stack([call.given for call in calls])
        for rank, call in enumerate(calls):
            if call.kind == "allreduce":
                call.receive[...] = reduced(given, call.op)
            elif call.kind == "allgather":
                call.receive[...] = given.reshape(-1)
            else:
                call.receive[...] = given.reshape(self.size, self.size, -1)[:, rank].reshape(-1)
        self.calls = [None] * self.size


def reduced(given: np.ndarray, op: Any) -> np.ndarray:
    """The sum or mean over the ranks, of 16-bit types in float32 and rounded once."""
    wide = given.astype(np.promote_types(given.dtype, np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(wide, axis=0)
        return (total / len(given) if op is collectives.AVG else total).astype(given.dtype)


def bucket(grads: np.ndarray, shapes: Iterable[tuple[int, ...]] = (), index: int = 0) -> SimpleNamespace:
    """A bucket with a copy of `grads`, which hold parameters of these shapes; default: one vector."""
    pieces, start = [], 0
    for number, shape in enumerate(list(shapes) or [(grads.size,)]):
        size = int(np.prod(shape))
        pieces.append(SimpleNamespace(name=f"{index}.{number}", shape=shape, size=size, start=start))
        start += size
    assert start == grads.size
    return SimpleNamespace(index=index, grads=grads.copy(), parameters=pieces)


def exchange(
    compressions: list[Any], grads: np.ndarray, shapes: Iterable[tuple[int, ...]] = (), world: World | None = None,
    index: int = 0,
) -> np.ndarray:  # fmt: skip
    """Exchange one bucket of each rank, the rows of `grads`, by its compression; the rows of results."""
    world = World(len(grads)) if world is None else world
    buckets = [bucket(row, shapes, index) for row in grads]
    world.run(c.exchange(b, comm) for c, b, comm in zip(compressions, buckets, world.ranks, strict=True))
    return np.stack([b.grads for b in buckets])


def residuals(compressions: list[Any], index: int = 0) -> np.ndarray:
    """What each rank keeps of a bucket; rows."""
    return np.stack([c.state_dict()[str(index)]["residual"] for c in compressions])
