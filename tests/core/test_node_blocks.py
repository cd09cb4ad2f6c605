"""All-to-alls of the node-local engine whose blocks lie anywhere, or are empty: ranks in one process, in turns."""

import mmap

import numpy as np
from node_groups import joined

from collectives.arguments.shape import Shape
from collectives.core import _core
from collectives.system import heap

BYTES = 100_000
#: Mapped when this file is read, before any test makes the heap: it lies above the heap, as later memory does not.
EARLY = np.frombuffer(mmap.mmap(-1, BYTES), np.uint8)


def begun(rank, sent, lengths, starts, target, arriving):
    """An all-to-allw of bytes that has begun; ``sent`` is the address from which ``starts`` count."""
    cuts, input_cuts = (tuple(map(int, np.cumsum([0, *each]))) for each in (arriving, lengths))
    shape = Shape("alltoall", 0, cuts[-1], 1, -1, None, False, cuts, input_cuts, "alltoallw", cuts[:-1], tuple(starts))
    operation = _core.Operation(rank[0], _core.NodePlan(rank[1], shape))
    operation.start(sent, _core.address(target), 0, target)
    return operation


def end(operations):
    """Progress the operations in turns until they have ended; those that have not after many turns."""
    left = list(operations)
    for _ in range(300):
        left = [operation for operation in left if not operation.wait(True, 0)]
    return left


def test_blocks_in_arrays_of_which_only_the_first_is_on_the_heap():
    """The lowest address counts as where the input is, but what other ranks read is beyond the heap."""
    ranks = joined(2)
    on_heap, whole = heap.empty(BYTES, np.uint8), np.arange(2 * BYTES) % 251
    on_heap[:], EARLY[:] = 1, 2
    base = _core.address(on_heap)
    assert base < _core.address(EARLY)
    assert _core.address(EARLY) not in heap.process_heap()
    other = whole.astype(np.uint8)
    into = np.zeros((2, 2 * BYTES), np.uint8)
    each, distance = [BYTES, BYTES], _core.address(EARLY) - base
    for of_rank_0, theirs in (([0, distance], 2), ([distance, 0], 1)):  # for rank 1: a private array, the heap's
        into[:] = 0
        calls = [
            begun(ranks[0], base, each, of_rank_0, into[0], each),
            begun(ranks[1], _core.address(other), each, [0, BYTES], into[1], each),
        ]
        assert end(calls) == []
        assert (into[1, :BYTES] == theirs).all()
        assert (into[0, :BYTES] == 3 - theirs).all()
        assert (into[0, BYTES:] == other[:BYTES]).all()


def test_nobody_waits_for_a_rank_that_it_sends_nothing():
    """Two ranks exchange blocks, the third one comes later: on the heap, and in more data than the ring holds."""
    ranks = joined(3)
    for make, n in ((heap.empty, BYTES), (np.empty, 8 << 20)):
        x, y = [make(n, np.uint8) for _ in range(2)], [np.zeros(n, np.uint8) for _ in range(2)]
        calls = []
        for rank in range(2):
            x[rank][:] = rank + 1
            lengths, starts = [0, 0, 0], [0, 0, 0]
            lengths[1 - rank] = n
            calls.append(begun(ranks[rank], _core.address(x[rank]), lengths, starts, y[rank], lengths))
            if rank == 0:
                assert end(calls) == calls
                assert calls[0].plan.waiting() == [1]
        assert end(calls) == []
        assert (y[0] == 2).all()
        assert (y[1] == 1).all()
        third, nothing = np.zeros(1, np.uint8), [0, 0, 0]
        assert end([begun(ranks[2], _core.address(third), nothing, nothing, third, nothing)]) == []
