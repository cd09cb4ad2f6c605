"""Moves against their definitions, and each pair against the definition of a derivative."""

import numpy as np
import pytest

from collectives import train
from collectives.train.tensor import Cut, pairs

WHOLE = (3, 7, 2)
CUTS = {1: (7,), 2: (4, 3), 3: (1, 4, 2), 4: (3, 0, 2, 2)}
#: Of each pair: whether its input and its output are replicated, a part of the whole, or the rank's own.
KINDS = {
    "COPY": ("replicated", "own"),
    "REDUCE": ("own", "replicated"),
    "SPLIT": ("replicated", "part"),
    "GATHER": ("part", "replicated"),
    "GATHER_PARTIAL": ("part", "own"),
    "REDUCE_SCATTER": ("own", "part"),
}


def drawn(kind, cut, rank, seed):
    """What `rank` has of some numbers."""
    whole = np.random.default_rng([seed, rank if kind == "own" else 9]).standard_normal(WHOLE)
    return cut.part(whole, rank) if kind == "part" else whole


def product(kind, comm, a, b):
    """The scalar product of two arrays that the ranks have together: of replicated ones, one counts."""
    return sum(comm.allgather(float((a * b).sum()))[: 1 if kind == "replicated" else None])


@pytest.mark.parametrize("ranks", CUTS)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("axis", [1, -2])
def test_backward_is_the_derivative_of_forward(name, ranks, axis):
    """Moves are linear, so the backward one must be the transpose: <forward(x), g> = <x, backward(g)>."""
    before, after = KINDS[name]
    pair, cut = getattr(pairs, name), Cut(axis, CUTS[ranks])

    def work(comm):
        x, g = drawn(before, cut, comm.rank, 1), drawn(after, cut, comm.rank, 2)
        y, below = pair.forward(x, comm, cut), pair.backward(g, comm, cut)
        assert y.shape == g.shape
        assert below.shape == x.shape
        return product(after, comm, y, g), product(before, comm, x, below)

    for forward, backward in train.threads.run(ranks, work):
        assert forward == pytest.approx(backward, abs=1e-12)
        assert abs(forward) > 1e-3


@pytest.mark.parametrize("ranks", CUTS)
def test_moves_do_what_they_say(ranks):
    cut = Cut(1, CUTS[ranks])
    every = [np.random.default_rng(rank).standard_normal(WHOLE) for rank in range(ranks)]

    def work(comm):
        mine = every[comm.rank]
        kept = mine.copy()
        found = [move(mine, comm, cut) for move in (pairs.identity, pairs.all_reduce, pairs.split)]
        found.append(pairs.reduce_scatter(mine, comm, cut))
        found.append(pairs.all_gather(cut.part(every[0], comm.rank), comm, cut))
        np.testing.assert_array_equal(mine, kept)
        assert not np.shares_memory(found[2], mine)
        return found

    total = sum(every)
    for rank, (same, reduced, part, scattered, gathered) in enumerate(train.threads.run(ranks, work)):
        np.testing.assert_array_equal(same, every[rank])
        np.testing.assert_allclose(reduced, total, atol=1e-14)
        np.testing.assert_array_equal(part, cut.part(every[rank], rank))
        np.testing.assert_allclose(scattered, cut.part(total, rank), atol=1e-14)
        np.testing.assert_array_equal(gathered, every[0])


def test_arrays_that_do_not_fit():
    def work(comm):
        cut = Cut(0, (2, 3))
        with pytest.raises(ValueError, match=r"has 4 elements of axis 0, not \d"):
            pairs.all_gather(np.zeros(4), comm, cut)
        for move in (pairs.split, pairs.reduce_scatter):
            with pytest.raises(ValueError, match="should have 5 elements"):
                move(np.zeros(4), comm, cut)

    train.threads.run(2, work)
