"""Copies of states in memory, and sharded leaves from the pieces of several ranks."""

import numpy as np
import pytest

from collectives.train.checkpoint import Shard
from collectives.train.run.commits import LostState, copied, loadable, put_together, shards


def shard(start, stop, total=10):
    return Shard(np.arange(start, stop, dtype=np.float32), start, total)


def piece(start, stop, total=10):
    return ("net", "w"), shard(start, stop, total)


def test_a_copy_does_not_change_with_the_state():
    state = {"a": np.ones(3), "b": [1, "x", None, {"c": np.zeros(2)}], 7: (True, 2.5)}
    copy = copied(state)
    state["a"][0] = state["b"][3]["c"][0] = 9
    state["b"][1] = "y"
    assert copy["a"].tolist() == [1, 1, 1]
    assert copy["b"][:3] == [1, "x", None]
    assert copy["b"][3]["c"].tolist() == [0, 0]
    assert copy[7] == [True, 2.5]


def test_what_is_loaded_may_change_without_the_commit():
    commit = copied({"a": np.ones(3)})
    loadable(commit, {})["a"][0] = 5
    assert commit["a"].tolist() == [1, 1, 1]


def test_shards_are_found_and_put_in_their_places():
    commit = copied({"opt": {"m": [shard(2, 5), 3]}, "x": shard(0, 1)})
    assert [path for path, _ in shards(commit)] == [("opt", "m", 0), ("x",)]
    wholes = put_together([[(("m", 0), Shard(np.arange(4.0), 0, 4))]])
    state = loadable({"m": [commit["x"], 3]}, wholes)
    assert state["m"][1] == 3
    leaf = state["m"][0]
    assert leaf.shape == (4,)
    assert leaf.dtype == np.float64
    assert leaf.read(1, 3).tolist() == [1, 2]
    assert np.asarray(leaf).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "held",
    [
        [[piece(0, 4)], [piece(4, 10)]],
        [[piece(0, 4), piece(6, 10)], [piece(4, 6), piece(0, 4)]],  # copies of neighbours
        [[piece(0, 5)], [piece(5, 10)], [piece(0, 3), piece(3, 6), piece(6, 10)]],  # two cuts
        [[piece(0, 0), piece(0, 10)], [piece(10, 10)]],
        [[piece(0, 10)], [piece(0, 0)]],
    ],
)
def test_shards_that_cover_the_whole(held):
    whole = put_together(held)["net", "w"]
    assert np.asarray(whole).tolist() == list(range(10))
    assert whole.dtype == np.float32


@pytest.mark.parametrize(("held", "first"), [([[piece(0, 4)], [piece(5, 10)]], 4), ([[piece(1, 10)]], 0),
                                             ([[piece(0, 9)]], 9)])  # fmt: skip
def test_missing_elements_are_named(held, first):
    with pytest.raises(LostState, match=rf"net\.w: elements from {first} on were on ranks that died together"):
        put_together(held)


def test_a_leaf_without_elements():
    assert np.asarray(put_together([[piece(0, 0, total=0)]])["net", "w"]).tolist() == []
