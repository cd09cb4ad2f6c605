"""Ranks that make a call together compare what they are about to do."""

import numpy as np
import pytest

from collectives import CollectiveMismatch
from collectives.cuda.peers import RECORD, Call, Peers


def one_of_two():
    made = object.__new__(Peers)
    made.rank, made.size = 0, 2
    return made


def call(cuts):
    """A call of many blocks, of whose boundaries its words name the first ones."""
    return Call("allgatherv, blocks from 0 ...", "allgather", 0, cuts, (0, 0), (0, 0), 0, -1, 4, False)


def test_blocks_that_differ_behind_what_the_words_name_are_a_mismatch():
    peers, cuts = one_of_two(), list(range(0, 400, 4))
    records = np.concatenate([peers._record(call(cuts)), peers._record(call([*cuts[:-2], 390, cuts[-1]]))])
    assert records.dtype == RECORD
    with pytest.raises(CollectiveMismatch, match="the ranks make different calls on arrays of GPUs"):
        peers._compare(call(cuts), records)
    peers._compare(call(cuts), records[[0, 0]])
