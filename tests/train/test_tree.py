"""allreduce_tree in one process; between ranks: programs/torch_traps.py."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from mpi4py import MPI

from collectives import train

Point = namedtuple("Point", "x y")


class Foreign:
    """An array of a library that has DLPack and the array API, and nothing of NumPy's."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    @classmethod
    def asarray(cls, array):
        return cls(array)

    def __array_namespace__(self):
        return Foreign


def test_a_tree_keeps_its_structure_and_kinds():
    tree = OrderedDict(b=Point(np.ones(2), [np.zeros((0, 3)), None]), a=(Foreign(np.full(2, 3.0)), np.arange(3)))
    got = train.allreduce_tree(tree, MPI.COMM_SELF)
    assert list(got) == ["b", "a"]
    assert type(got) is OrderedDict
    assert type(got["b"]) is Point
    assert got["b"].y[0].shape == (0, 3)
    assert got["b"].y[1] is None
    assert isinstance(got["a"][0], Foreign)
    assert got["a"][0].array.tolist() == [3.0, 3.0]
    assert got["a"][1].dtype == np.arange(3).dtype
    got["b"].x[:] = 7
    assert tree["b"].x.tolist() == [1.0, 1.0]


def test_there_is_one_message_for_each_type():
    calls = []

    class Spy:
        rank, size = 0, 1

        def Allreduce(self, *args, **kwargs):
            MPI.COMM_SELF.Allreduce(*args, **kwargs)

        def Iallreduce(self, where, flat, **kwargs):
            calls.append((flat.dtype.name, flat.size))
            return MPI.COMM_SELF.Iallreduce(where, flat, **kwargs)

    tree = [np.ones(3), np.ones(2, np.float32), {"k": np.ones((2, 2))}]
    train.allreduce_tree(tree, Spy())
    assert calls == [("float64", 7), ("float32", 2)]


@pytest.mark.parametrize("leaf", ["text", 3.0, object()])
def test_other_leaves_are_errors(leaf):
    with pytest.raises(TypeError, match=r"tree\[0\]\['k'\] is a \w+, not an array"):
        train.allreduce_tree([{"k": leaf}], MPI.COMM_SELF)


def test_a_masked_array_is_an_error():
    """What is masked would be added up."""
    with pytest.raises(TypeError, match="masked array"):
        train.allreduce_tree({"a": np.ma.masked_array([1.0, 2.0], mask=[0, 1])}, comm=MPI.COMM_SELF)
