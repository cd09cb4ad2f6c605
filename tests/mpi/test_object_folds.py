"""Reductions of objects by ops of the program: one result for all ranks, and along a tree for long objects."""

import weakref

import numpy as np
import pytest
from mpi4py import MPI

import collectives
from collectives.communicator import objects

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
SCHEDULES = (
    "bcast=binomial,allgather=ring,allgatherv=ring,gatherv=linear,scatter=linear,scatterv=linear,alltoall=linear,"
    "alltoallv=pairwise"
)
LETTERS = [chr(97 + rank) for rank in range(SIZE)]


@pytest.fixture(scope="module", params=["node", "schedules"])
def comm(request):
    """A communicator whose objects go through the node-local engine, and one as between nodes."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "schedules":
            patch.setenv("COLLECTIVES_ALGORITHM", SCHEDULES)
        made = collectives.Communicator(MPI.COMM_WORLD)
    yield made
    made.Free()


@pytest.fixture
def tree(monkeypatch):
    """All objects are long."""
    monkeypatch.setattr(objects, "LONG", 0)


def marked(a, b):
    """The sum, and the rank that has made it."""
    return a[0] + b[0], RANK


def fails(a, b):
    raise ZeroDivisionError


class Odd(Exception):
    """It cannot be pickled: unpickling gives its one argument to a function of two."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def odd(a, b):
    raise Odd(1, 2)


def paired(texts):
    """What a fold along the tree makes of ``texts`` by an op that writes parentheses."""
    step = 1
    texts = list(texts)
    while step < len(texts):
        for i in range(0, len(texts) - step, 2 * step):
            texts[i] = f"({texts[i]}{texts[i + step]})"
        step *= 2
    return texts[0]


def test_all_ranks_have_the_result_of_one_fold(comm):
    expected = (SIZE * (SIZE + 1) // 2, 0) if SIZE > 1 else (1, 7)
    assert comm.allreduce((RANK + 1, 7), marked) == expected
    assert comm.iallreduce((RANK + 1, 7), marked).wait() == expected


def test_rank_0_has_a_copy_too(comm):
    kept = []

    def first(a, b):
        kept.append(a)
        return a

    for found in (comm.allreduce([RANK], first), comm.iallreduce([RANK], first).wait()):
        found.append("more")
        assert found == [0, "more"]
    assert all(each == [0] for each in kept)


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(("op", "error"), [
    (fails, ZeroDivisionError), (odd, RuntimeError), (lambda a, b: lambda: 0, Exception),
])  # fmt: skip
def test_all_ranks_raise_what_the_one_fold_raises(comm, monkeypatch, op, error, long):
    """Also what pickling the result raises. The communicator is as good as before."""
    if long:
        monkeypatch.setattr(objects, "LONG", 0)
    if SIZE == 1:
        pytest.skip("one rank folds nothing")
    for call in (lambda: comm.allreduce(1, op), lambda: comm.iallreduce(1, op).wait()):
        with pytest.raises((error, Odd) if RANK == 0 else error):
            call()
    assert comm.allreduce(2) == 2 * SIZE


def test_the_root_of_a_tree_raises_what_any_rank_raises(comm, tree):
    if SIZE == 1:
        pytest.skip("one rank folds nothing")
    for root in range(SIZE):
        if root == RANK:
            with pytest.raises(ZeroDivisionError):
                comm.reduce(1, fails, root)
        else:
            assert comm.reduce(1, fails, root) is None
    assert comm.allreduce(2) == 2 * SIZE


@pytest.mark.parametrize("length", [0, 600, 3000])
def test_a_tree_folds_in_rank_order(comm, tree, length):
    """With arrays beside the streams, and with streams that a frame does not hold."""

    def op(a, b):
        return f"({a[0]}{b[0]})", a[1] + b[1], a[2]

    mine = LETTERS[RANK], np.full(length, RANK + 1.0), "x" * (length * (RANK % 2))
    expected, total = paired(LETTERS), SIZE * (SIZE + 1) / 2
    found = comm.allreduce(mine, op)
    assert found[0] == expected
    assert (found[1] == total).all()
    for root in range(SIZE):
        found = comm.reduce(mine, op, root)
        assert (found is None) == (root != RANK)
        assert found is None or (found[0] == expected and (found[1] == total).all() and len(found[1]) == length)
    assert comm.allreduce(RANK, MPI.MAX) == SIZE - 1
    assert (comm.reduce(np.full(length, 1.0), MPI.SUM, SIZE - 1) is None) == (RANK < SIZE - 1)
    assert mine[0] == LETTERS[RANK]
    assert (mine[1] == RANK + 1).all()


def test_an_op_along_a_tree_does_not_change_the_objects_given(comm, tree):
    mine = [RANK], np.full(3000, RANK)

    def op(a, b):
        a[0].extend(b[0])
        np.add(a[1], b[1], out=a[1])
        return a

    found = comm.allreduce(mine, op)
    assert found[0] == list(range(SIZE))
    assert (found[1] == SIZE * (SIZE - 1) // 2).all()
    assert mine[0] == [RANK]
    assert (mine[1] == RANK).all()


class Counted:
    """An object of which one knows how many there are in this process."""

    there = weakref.WeakSet()
    most = 0

    def __init__(self, data):
        self.data = data
        Counted.there.add(self)
        Counted.most = max(Counted.most, len(Counted.there))

    def __reduce__(self):
        return Counted, (self.data,)

    def __add__(self, other):
        return Counted(self.data + other.data)


@pytest.mark.parametrize("add", [MPI.SUM, lambda a, b: a + b])
def test_no_rank_holds_long_objects_of_all_ranks(comm, monkeypatch, add):
    """Its own, a copy of it, one that has come, and their sum; whatever the number of ranks."""
    monkeypatch.setattr(objects, "LONG", 8 * 5000 * SIZE - 1)
    Counted.most = 0
    mine = Counted(np.full(5000, RANK + 1.0))
    assert (comm.allreduce(mine, add).data == SIZE * (SIZE + 1) / 2).all()
    found = comm.reduce(mine, add, SIZE - 1)
    assert RANK < SIZE - 1 or (found.data == SIZE * (SIZE + 1) / 2).all()
    assert Counted.most <= 5
