"""Plans whose blocks lie anywhere in memory, over in-process mailboxes."""

import random

import numpy as np
import pytest
from calls import interleave, program

from collectives.core import _core
from collectives.schedules import registry


@pytest.mark.parametrize("name", ["linear", "pairwise"])
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_blocks_that_lie_anywhere(name, size):
    """With gaps between them, in an order of their own, and of which some are empty."""
    chance, algorithm = np.random.default_rng(size), registry.find("alltoall", name)
    for segments in (1, 3):
        lengths = chance.integers(0, 5, (size, size))  # of the blocks from each rank to each
        group, plans, sent, got, wanted = _core.InProcess(size), [], [], [], []
        for rank in range(size):
            out, into = _scattered(chance, lengths[rank]), _scattered(chance, lengths[:, rank])
            cuts, starts = zip(into, out, strict=True)
            sent.append(chance.integers(0, 99, 50 * size))
            got.append(np.full(50 * size, -1))
            made = program(algorithm, rank, size, False)
            end = group.endpoint(rank)
            wanted.append((into[1], out[1]))
            plans.append(_core.Plan(made, end, int(cuts[0][-1]), 8, -1, None, segments, 2, *cuts, *starts))
            plans[-1].start(sent[-1].ctypes.data, got[-1].ctypes.data, 0)
        interleave(plans, random.Random(size))
        for rank in range(size):
            expected = np.full(50 * size, -1)
            for q in range(size):
                n, to, at = lengths[q, rank], wanted[rank][0][q], wanted[q][1][rank]
                expected[to : to + n] = sent[q][at : at + n]
            assert got[rank].tolist() == expected.tolist()


def _scattered(chance, lengths):
    """Boundaries of blocks, and where they lie."""
    starts, at = [0] * len(lengths), 0
    for i in chance.permutation(len(lengths)):
        at += int(chance.integers(0, 4))
        starts[i], at = at, at + int(lengths[i])
    return [0, *map(int, np.cumsum(lengths))], starts


def test_places_that_are_none_are_refused():
    end, cuts = _core.InProcess(4).endpoint(0), [0, 1, 2, 3, 4]
    made = program(registry.find("alltoall", "linear"), 0, 4, False)
    for starts in ([0, 1, 2], [0, -1, 2, 3], [0, 1, 2, 1 << 60]):
        for sides in ((starts, cuts[:4]), (cuts[:4], starts)):
            with pytest.raises(ValueError, match=r"places|out of range"):
                _core.Plan(made, end, 4, 8, -1, None, 1, 1, cuts, cuts, *sides)
    with pytest.raises(ValueError, match="out of range"):  # without boundaries
        _core.Plan(made, end, 4, 8, -1, None, 1, 1, None, None, cuts[:4])
    with pytest.raises(ValueError, match="out of range"):  # steps of several blocks
        _core.Plan(program(registry.find("alltoall", "bruck"), 0, 4, False), end, 4, 8, -1, None, 1, 1, cuts, cuts,
                   cuts[:4], cuts[:4])  # fmt: skip
