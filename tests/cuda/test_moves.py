"""What ranks copy and fold by reading each other's memory: the results, whatever the order of the ranks in a round."""

import random

import numpy as np
import pytest

from collectives.cuda.moves import ROUNDS, blocks, rounds

BASE, SPACE = 1000, 1 << 20  # a rank's memory begins at a multiple of SPACE; input and result lie in it
TARGET = SPACE // 2


class Memory:
    """The memory of all ranks, in which a move writes the sum of its sources."""

    def __init__(self, size):
        self.bytes = np.zeros(size * SPACE, np.uint8)
        self.written = np.zeros(size * SPACE, bool)

    def make(self, rank, move):
        here = slice(move.target, move.target + move.nbytes)
        assert here.start // SPACE == (here.stop - 1) // SPACE == rank, "a rank writes its own memory only"
        self.bytes[here] = sum(self.bytes[at : at + move.nbytes].astype(int) for at in move.sources)
        self.written[here] = True


def make(base, size, cuts, inputs, in_place, seed):
    """Run a call of all ranks in a random order of ranks and moves; each rank's memory from its result on."""
    memory = Memory(size)
    sources = [r * SPACE + BASE for r in range(size)]
    targets = [r * SPACE + (BASE if in_place else TARGET) for r in range(size)]
    if in_place and base == "allgather":
        sources = [target + cuts[r] for r, target in enumerate(targets)]
    for r, data in enumerate(inputs):
        memory.bytes[sources[r] : sources[r] + len(data)] = data
    every = [rounds(base, r, size - 1, cuts, sources, targets) for r in range(size)]
    assert {len(one) for one in every} == {ROUNDS[base]}
    generator = random.Random(seed)
    for i in range(ROUNDS[base]):
        todo = [(r, move) for r in range(size) for move in every[r][i]]
        generator.shuffle(todo)
        for r, move in todo:
            memory.make(r, move)
    return [memory.bytes[target : (target // SPACE + 1) * SPACE] for target in targets]


def data(size, length):
    return [np.random.default_rng(r).integers(0, 20, length).astype(np.uint8) for r in range(size)]


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_collective(size, in_place, seed):
    for nbytes in (0, 1, 1000, 30_001):
        cuts = blocks(nbytes, 1, size)
        inputs = data(size, nbytes)
        assert all((got[:nbytes] == sum(inputs)).all() for got in make("allreduce", size, cuts, inputs, in_place, seed))
        found = make("bcast", size, cuts, inputs, True, seed)
        assert all((got[:nbytes] == inputs[-1]).all() for got in found)
    cuts = [0, *np.cumsum([(r * 37) % 50 for r in range(size)]).tolist()]  # one block is empty
    own = [data(size, cuts[-1])[r][cuts[r] : cuts[r + 1]] for r in range(size)]
    found = make("allgather", size, cuts, own, in_place, seed)
    assert all((got[: cuts[-1]] == np.concatenate(own)).all() for got in found)
    inputs = data(size, cuts[-1])
    for r, got in enumerate(make("reduce_scatter", size, cuts, inputs, False, seed)):
        assert (got[: cuts[r + 1] - cuts[r]] == sum(inputs)[cuts[r] : cuts[r + 1]]).all()
    cuts = [10 * r for r in range(size + 1)]
    inputs = data(size, cuts[-1])
    for r, got in enumerate(make("alltoall", size, cuts, inputs, False, seed)):
        assert (got[: cuts[-1]] == np.concatenate([one[cuts[r] : cuts[r + 1]] for one in inputs])).all()


@pytest.mark.parametrize("size", [2, 3, 5, 128])
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_blocks_of_a_vector_begin_where_vectors_of_elements_do(size, itemsize):
    for count in (0, 1, 15, 1000, 123_457):
        cuts = blocks(count * itemsize, itemsize, size)
        assert (cuts[0], cuts[-1], len(cuts)) == (0, count * itemsize, size + 1)
        assert all(cut % 16 == 0 and cut % itemsize == 0 for cut in cuts[:-1])
        assert all(a <= b for a, b in zip(cuts, cuts[1:], strict=False))
        if count > 100 * size:
            lengths = np.diff(cuts)
            assert lengths.max() - lengths.min() <= 32 * itemsize * 16
