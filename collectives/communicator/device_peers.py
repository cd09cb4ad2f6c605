"""Which calls on arrays of GPUs are made by peers, that is by ranks of a node that read each other's memory."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import numpy as np

from ..arguments.calls import COLLECTIVES, Arguments, Draft, Options
from ..core import _cuda
from ..cuda.lanes import Lane
from ..cuda.moves import ROUNDS, blocks
from ..cuda.ordering import Order
from ..cuda.peers import LEAST, Call, Peers
from ..cuda.staging import Side
from ..errors import CollectiveError, CollectiveMismatch, PeerFailure
from ..runtime.mpi_context import MPIContext
from ..selection.policy import Choice

__all__ = ["Gather", "foresee", "may_serve", "run"]

#: What is added to an error, and to a mismatch.
PART = "(in {}, {} bytes, on arrays of GPUs"
ALIKE = ", which all ranks must pass, or none: docs/gpu.md"


class Gather:
    """All-gathers of small records on the host, as parts of a call of ``comm``."""

    def __init__(self, comm: Any, context: MPIContext):
        # The context keeps this object, and the finalizer of the communicator keeps the context.
        self._comm, self._context = weakref.proxy(comm), context
        self._made: dict[Any, tuple[np.ndarray, np.ndarray, Draft, Choice]] = {}

    def __call__(self, mine: np.ndarray, timeout: float | None) -> np.ndarray:
        """What all ranks gave, in rank order."""
        known = self._made.get(mine.dtype)
        if known is None:
            one, every = np.zeros(1, mine.dtype), np.zeros(self._context.size, mine.dtype)
            draft = self._comm._draft(
                self._context, COLLECTIVES["allgather"], Arguments(one.view(np.uint8), every.view(np.uint8))
            )
            known = one, every, draft, self._comm._choose(draft, Options(), None, mpi="never")
            self._made[mine.dtype] = known
        one, every, draft, choice = known
        one[:] = mine
        self._comm._run_parts(draft, choice, Options(timeout=timeout))
        return every.copy()


class _Path:
    """What a communicator keeps for its calls: the peers, and how they meet."""

    def __init__(self, comm: Any, context: MPIContext, lane: Lane, deadline: float | None):
        self.gather = Gather(comm, context)
        self.peers = Peers(
            lane, context.rank, context.size, self.gather, functools.partial(_check, context), deadline
        )  # fmt: skip

    def leave(self) -> None:
        self.peers.leave()

    def free(self) -> None:
        self.peers.free()


def _check(context: MPIContext) -> None:
    """Raise PeerFailure if a rank has died: one that ends by itself lets its GPU do its part before."""
    for rank in context.dead(0.0):
        raise PeerFailure(f"rank {rank} died ({context.end_of(rank)}), and its GPU may not have done its part")


def may_serve(context: MPIContext, draft: Draft, options: Options) -> bool:
    """Whether peers may make a call, as far as all ranks know it before they have met."""
    shape, collective = draft.shape, draft.collective
    if context.apart is not None or not 1 < context.size <= _cuda.SOURCES:
        return False
    if collective.base not in ROUNDS or not collective.agreed or shape.nbytes < LEAST:
        return False
    rule = context.rules.forced_for(collective.name)
    if options.algorithm is not None or options.engine is not None or rule is not None:
        return False
    return not collective.reduces or isinstance(shape.op, int) and _cuda.no_kernel(shape.dtype, shape.op) is None


def run(
    comm: Any, context: MPIContext, draft: Draft, sides: tuple[Side | None, Side | None], order: Order,
    deadline: float | None,
) -> bool:  # fmt: skip
    """Make a call that peers :func:`may_serve`; False, on all ranks, if it must go through the host."""
    try:
        path = context.gpu
        if path is None:
            path = context.gpu = _Path(comm, context, order.lane, deadline)
        if not path.peers.serves(draft.collective.base):
            return False
        done: bool = path.peers.run(_call(context, draft, sides, order.lane is path.peers.lane), order, path.gather,
                                    deadline)  # fmt: skip
    except CollectiveError as e:
        alike = ALIKE if isinstance(e, CollectiveMismatch) else ""
        e.args = (f"{e}\n  {PART.format(draft.collective.name, draft.nbytes)}{alike})",)
        raise
    return done


def _call(context: MPIContext, draft: Draft, sides: tuple[Side | None, Side | None], same_gpu: bool) -> Call:
    shape, collective = draft.shape, draft.collective
    places = [(0, 0) if side is None else (side.address, side.blocks * side.block) for side in sides]
    told = shape.call("peers")._replace(number=context.begun + 1)
    if not collective.reduces:
        told = told._replace(dtype="")  # bytes match elements of any type
    within = "" if shape.cuts is None else f" in blocks that end at {str(shape.cuts[1:])[:60]}"
    return Call(
        f"{told}{within}", collective.base, shape.root, _cuts(context.size, draft), places[0], places[1], shape.dtype,
        shape.op if isinstance(shape.op, int) else -1, shape.itemsize,
        same_gpu and not draft.loads and not draft.stores and all(side is None or side.on_device for side in sides),
    )  # fmt: skip


def _cuts(size: int, draft: Draft) -> list[int]:
    """The boundaries of the blocks of a call's vector in bytes."""
    shape = draft.shape
    if draft.collective.base in ("allreduce", "bcast"):
        return blocks(shape.nbytes, shape.itemsize, size)
    if shape.cuts is not None:
        return [cut * shape.itemsize for cut in shape.cuts]
    return [shape.nbytes // size * r for r in range(size + 1)]


def foresee(context: MPIContext, draft: Draft) -> tuple[str, bool]:
    """What ``explain`` says of peers in a call, and whether the call may go through the host.

    Nothing if its length or kind rule them out.
    """
    if not may_serve(context, draft, Options()):
        return "", True
    if context.gpu is None:
        return "peers, who read each other's GPU memory, if the first such call finds that they can; else ", True
    peers = context.gpu.peers
    if peers.serves(draft.collective.base):
        return "peers, who read each other's GPU memory", False
    return f"(no peers, since {peers.why or peers.no_folds})", True
