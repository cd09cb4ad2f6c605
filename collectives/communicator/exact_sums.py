"""The linear algorithms of exact sums: each rank receives all operands of one block and adds them up.

Accumulators of partial sums are 14 (float32) or 35 (float64) times as long as the elements. If all operands of a block
are on one rank, no accumulators are sent: an all-to-all, then a fold of p operands that rounds once and, for an
all-reduce, an all-gather. A rank sends 2n(p-1)/p bytes for n bytes, as in a bandwidth-optimal all-reduce.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from mpi4py import MPI

from ..arguments.calls import COLLECTIVES, Arguments, Collective, Draft, Options
from ..arguments.packing import region
from ..core import _core
from ..selection.policy import Choice
from .wide_accumulation import MOST, needed

__all__ = ["run", "serves"]

Part = tuple[int, list[tuple[int, int]]]  # first element; for each rank's block, its first element and their number
Run = Callable[[Collective, Arguments, Options], None]  # runs a call as a part of the current one


def serves(draft: Draft, choice: Choice, options: Options) -> bool:
    """Whether a blocking call is to be run by :func:`run`."""
    sums = draft.collective.base in ("allreduce", "reduce", "reduce_scatter") and needed(draft.shape, False)
    return sums and choice.algorithm.name == "linear" and options.engine is None


def run(make: Run, rank: int, size: int, draft: Draft, timeout: float | None) -> None:
    """Run a blocking call, at most ``MOST`` bytes at a time; ``make`` runs the collectives that it consists of."""
    item = draft.shape.itemsize
    options = Options(timeout=timeout)
    scatters = draft.collective.base == "reduce_scatter"
    position = draft.target
    for first, blocks in _parts(draft, size):
        own = blocks[rank][1]
        mine = region(position, own * item) if scatters else np.empty(own * item, np.uint8)
        _meet(make, draft, blocks, rank, mine, options)
        position += own * item
        if not scatters:
            _spread(make, draft, first, [count * item for _, count in blocks], mine, options)
    draft.store()


def _parts(draft: Draft, size: int) -> Iterator[Part]:
    shape = draft.shape
    number = max(1, -(-shape.nbytes // MOST))
    if draft.collective.base != "reduce_scatter":
        for first, end in itertools.pairwise(_core.partition(shape.elements, number)):
            cuts = _core.partition(end - first, size)
            yield first, [(first + a, b - a) for a, b in itertools.pairwise(cuts)]
        return
    cuts = list(shape.cuts or _core.partition(shape.elements, size))
    inner = [_core.partition(end - begin, number) for begin, end in itertools.pairwise(cuts)]
    for i in range(number):
        yield 0, [(cuts[r] + c[i], c[i + 1] - c[i]) for r, c in enumerate(inner)]


def _meet(
    make: Run, draft: Draft, blocks: list[tuple[int, int]], rank: int, mine: np.ndarray, options: Options
) -> None:
    """All-to-all the operands; add up those of this rank's block in ``mine``."""
    item, own = draft.shape.itemsize, len(mine)
    source = region(draft.source, draft.nbytes)
    sent = [count * item for _, count in blocks], [first * item for first, _ in blocks]
    operands = np.empty(own * len(blocks), np.uint8)
    received = [own] * len(blocks), [r * own for r in range(len(blocks))]
    arguments = Arguments([source, sent, MPI.BYTE], [operands, received, MPI.BYTE])
    make(COLLECTIVES["alltoallv"], arguments, options)
    if own:
        _core.reducep(draft.shape.dtype, draft.shape.op, [mine], list(operands.reshape(len(blocks), own)))


def _spread(
    make: Run, draft: Draft, first: int, counts: list[int], mine: np.ndarray, options: Options
) -> None:  # fmt: skip
    """Gather the sums ``mine`` of all blocks on the root, or on all ranks."""
    result = None
    if draft.target:
        where = region(draft.target + first * draft.shape.itemsize, sum(counts))
        result = [where, (counts, None), MPI.BYTE]
    name = "gatherv" if draft.collective.name == "reduce" else "allgatherv"
    make(COLLECTIVES[name], Arguments([mine, MPI.BYTE], result, root=draft.shape.root), options)
