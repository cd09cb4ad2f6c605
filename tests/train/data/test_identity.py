"""Ranks whose data sets differ, of which the first one can tell nothing of its own."""

import numpy as np
import pytest
from thread_ranks import on_ranks

from collectives import train


def samples(count, length):
    return [(np.full(length, float(i)), i) for i in range(count)]


def errors(sets, **how):
    """What each rank raises; `how` has one value for each rank."""

    def make(comm, mine):
        train.Loader(mine, 2, comm=comm, **{name: values[comm.rank] for name, values in how.items()})

    return on_ranks(len(sets), make, sets)


def test_ranks_are_compared_beside_one_without_samples():
    sets = [[], samples(4, 2), samples(5, 2)]
    assert errors(sets, placement=["local"] * 3) == [None] * 3
    found = errors([*sets[:2], samples(5, 3)], placement=["local"] * 3)
    assert len({str(error) for error in found}) == 1
    with pytest.raises(ValueError, match=r"fields is .*\[3\].* on rank 2, .*\[2\].* on rank 1"):
        raise found[0]


def test_ranks_are_compared_beside_one_that_does_not_look_at_its_content():
    arrays = [(np.arange(9) + rank,) for rank in (0, 0, 1)]
    found = errors(arrays, check_content=[False, True, True])
    assert len({str(error) for error in found}) == 1
    with pytest.raises(ValueError, match="content is .* on rank 2, .* on rank 1"):
        raise found[0]
