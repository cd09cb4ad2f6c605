"""Arguments that are refused: by which error, and before anything is begun; and odd ones that are served."""

import gc
import weakref

import numpy as np
import pytest
from mpi4py import MPI

IN_PLACE = MPI.IN_PLACE
#: Calls in place by their first argument, with the second argument of each.
SIMPLE = ("Allreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter_block", "Allgather", "Gather", "Alltoall",
          "Allgatherv", "Gatherv")  # fmt: skip
#: What may follow IN_PLACE in a list, though it has no effect.
RIGHT = [
    [3], [None], [0], ["d"], [MPI.DOUBLE], [3, "d"], [3, None], [0, MPI.DATATYPE_NULL], [99, MPI.INT], [(3, 0), "d"],
    [[3, 0], "d"], [3, 0, "d"],
]  # fmt: skip
WRONG = [
    (["zz"], TypeError, "cannot map"), ([-1, "zz"], (TypeError, ValueError), "cannot map|-1"),
    ([-1], ValueError, "negative: -1"), ([-1, "d"], ValueError, "negative: -1"),
    ([1.5], TypeError, "integer count, not float"), (["3", "d"], TypeError, "integer count, not str"),
    ([(3, 1), "d"], ValueError, "displacement 1"), ([3, -1, "d"], ValueError, "displacement -1"),
    ([3, 1.5, "d"], TypeError, "not float"), ([3, 5], TypeError, "5 is no MPI datatype"), ([[3], "d"], ValueError, "3"),
    ([3, 0, "d", 1], ValueError, "got 5 parts"), ([], ValueError, "got 1 parts"),
]  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"algorithm": "mpi"}], ids=str)
@pytest.mark.parametrize("rest", RIGHT)
def test_a_list_that_begins_with_in_place_means_in_place(comm, rest, options):
    for name in SIMPLE:
        x = np.arange(3.0)
        getattr(comm, name)((IN_PLACE, *rest), x, **options)
        assert x.tolist() == [0, 1, 2], name
    x = np.arange(3.0)
    comm.Scatter(x, [IN_PLACE, *rest], **options)
    comm.Scatterv(x, [IN_PLACE, *rest], **options)
    assert x.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("rest", "error", "message"), WRONG)
def test_the_rest_of_a_list_that_begins_with_in_place_is_checked(comm, rest, error, message):
    """As mpi4py does, but that it raises KeyError for unknown types."""
    x, spec = np.arange(3.0), [IN_PLACE, *rest]
    for name in SIMPLE:
        for call in (getattr(comm, name), getattr(comm, "I" + name.lower()), getattr(comm, name + "_init")):
            with pytest.raises(error, match=f"^sendbuf: .*({message})"):
                call(spec, x)
    for name in ("Scatter", "Scatterv"):
        with pytest.raises(error, match=f"^recvbuf: .*({message})"):
            getattr(comm, name)(x, spec)


@pytest.mark.parametrize("options", [{}, {"algorithm": "mpi"}], ids=str)
def test_all_to_alls_in_place_have_counts_for_all_ranks(comm, options):
    x = np.arange(3.0)
    for rest in ([3], [[3]], ["d"], [[3], "d"], [([3], [0]), "d"], [[3], [0], MPI.DOUBLE]):
        comm.Alltoallv([IN_PLACE, *rest], x, **options)
    for rest, error in (
        ([[3, 4], "d"], ValueError), ([[-3], "d"], ValueError), ([[1.5], "d"], TypeError), (["zz"], TypeError),
        ([([3], [0, 0]), "d"], ValueError), ([[3], ["0"], "d"], TypeError),
    ):  # fmt: skip
        with pytest.raises(error, match="^sendbuf: "):
            comm.Alltoallv([IN_PLACE, *rest], x, **options)
    received = [x, [3], [0], [MPI.DOUBLE]]
    for rest in ([[MPI.DOUBLE]], [[3], [0], [MPI.DOUBLE]], [([3], [0]), [MPI.DOUBLE]]):
        comm.Alltoallw([IN_PLACE, *rest], received, **options)
    for rest in (["d"], [[3], [0], []], [[3, 3], [0], ["d"]], [[3], [0], ["zz"]], [[-3], [0], ["d"]]):
        with pytest.raises((TypeError, ValueError), match="^sendbuf: "):
            comm.Alltoallw([IN_PLACE, *rest], received, **options)
    assert x.tolist() == [0, 1, 2]


@pytest.mark.parametrize("item", [None, np.dtype("f8"), float, 5], ids=repr)
def test_every_item_of_a_list_of_datatypes_is_one(comm, item):
    """Before the first call that is right, and after it, when others take the fast path."""
    x, y = np.arange(3.0), np.zeros(3)
    right, wrong = ([[y if writable else x, ([3], [0]), [kind]] for writable in (False, True)]
                    for kind in (MPI.DOUBLE, item))  # fmt: skip
    for _ in range(3):
        for call in (comm.Alltoallw, comm.Ialltoallw, comm.Alltoallw_init):
            with pytest.raises(TypeError, match="^sendbuf: .* is no MPI datatype"):
                call(wrong[0], right[1])
            with pytest.raises(TypeError, match="^recvbuf: .* is no MPI datatype"):
                call(right[0], wrong[1])
        assert not y.any()
        comm.Alltoallw(*right)
        assert y.tolist() == [0, 1, 2]
        y[:] = 0


def test_in_place_where_nothing_is_in_place(comm):
    x = np.zeros(0)
    for spec in (IN_PLACE, [IN_PLACE, 0], [IN_PLACE, 0, "d"], [IN_PLACE, 3, "d"], [IN_PLACE, "d"]):
        for call in (
            lambda s=spec: comm.Bcast(s), lambda s=spec: comm.Allreduce(x, s), lambda s=spec: comm.Gather(x, s),
            lambda s=spec: comm.Allgatherv(x, s), lambda s=spec: comm.Scatter(s, x), lambda s=spec: comm.Alltoall(x, s),
        ):  # fmt: skip
            with pytest.raises(TypeError, match="expected a buffer, not MPI.IN_PLACE"):
                call()
    with pytest.raises(TypeError, match="^recvcounts: needed"):
        comm.Reduce_scatter(spec, x)


@pytest.mark.parametrize("value", ["no", "", 0, 1.0, np.int64(1)], ids=repr)
def test_deterministic_is_a_bool_or_none(comm, value):
    x, y = np.ones(3), np.zeros(3)
    for call in (comm.Allreduce, comm.Iallreduce, comm.Allreduce_init, comm.Scan, comm.Reduce):
        with pytest.raises(TypeError, match="^deterministic: expected a bool, not "):
            call(x, y, deterministic=value)
    assert not y.any()
    for right in (None, False, True, np.False_, np.True_):
        comm.Allreduce(x, y, deterministic=right)


@pytest.mark.parametrize("options", [{}, {"algorithm": "ring"}, {"algorithm": "shm"}], ids=str)
def test_buffers_whose_elements_have_no_bytes(comm, options):
    """Like others of a type that Python's format letters do not name; the buffer is let go of."""
    array = np.zeros(3, "V0")
    empty, gone = memoryview(array), weakref.ref(array)
    for call in (lambda: comm.Bcast(empty), lambda: comm.Allgather(empty, empty, **options)):
        with pytest.raises(TypeError, match="buf: expected a buffer, not memoryview"):
            call()
    for spec in (array, [empty, MPI.BYTE], [empty, 0, "d"]):
        comm.Allgather(spec, np.zeros(0), **options)
    del array, call, spec
    empty.release()  # BufferError while somebody has a view of it
    empty = None
    gc.collect()
    assert gone() is None


def test_a_grouped_broadcast_counts_as_writing_its_buffer(comm):
    """On the root, too: a call that the other ranks refuse is refused there."""
    x, y = np.ones(3), np.zeros(3)
    for call, message in (
        (lambda: [comm.Bcast(x), comm.Allreduce(x, y)], "^Allreduce: its memory is that of another call"),
        (lambda: [comm.Allreduce(x, y), comm.Bcast(x)], "^Bcast: its memory is that of another call"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message), comm.group():
            call()
    with comm.group():
        comm.Allreduce(x, y)
        comm.Reduce(x, np.zeros(3))
    assert y.tolist() == [1, 1, 1]
