"""Derived datatypes: packed in pieces, compared by their basic types, and freed while a call needs them."""

from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from collectives.arguments import datatypes, packing, reductions
from collectives.arguments.calls import COLLECTIVES, Arguments
from collectives.arguments.datatypes import PAIRS, of_mpi
from collectives.arguments.packing import Packed


@pytest.fixture
def add():
    op = MPI.Op.Create(lambda a, b, _: np.add(np.frombuffer(a), np.frombuffer(b), out=np.frombuffer(b)), commute=True)
    yield op
    op.Free()


@pytest.mark.parametrize("most", [1, 24, 56, 1 << 30])
@pytest.mark.parametrize("extent", [24, -32])
def test_data_with_gaps_are_packed_in_pieces(monkeypatch, extent, most):
    """Of at most so many bytes, but of one element at least."""
    monkeypatch.setattr(packing, "MOST_AT_ONCE", most)
    kind = MPI.INT.Create_vector(2, 1, 2).Create_resized(0, extent).Commit()
    x, first = np.arange(100, dtype="i4"), 0 if extent > 0 else 96
    packed = Packed([(x[first:].ctypes.data, 10, of_mpi(kind, "")), (x[3:].ctypes.data, 3, of_mpi(MPI.INT, ""))], x)
    assert max(nbytes for *_, nbytes, datatype in packed._pieces if datatype is not None) <= max(8, most)
    packed.load()
    places = [first + i * extent // 4 + j for i in range(10) for j in (0, 2)] + [3, 4, 5]
    assert packed.bytes.view("i4").tolist() == places
    packed.bytes.view("i4")[:] = np.arange(23)
    x[:] = -1
    packed.store()
    assert x[places].tolist() == list(range(23))
    assert (x == -1).sum() == 100 - 23
    kind.Free()


@pytest.mark.parametrize("options", [{}, {"algorithm": "naive"}, {"algorithm": "mpi"}], ids=str)
def test_a_users_op_takes_one_datatype(comm, add, options):
    """Two of one length may have their data in different places; mpi4py refuses them, too."""
    gaps, run = MPI.DOUBLE.Create_vector(2, 1, 2).Commit(), MPI.DOUBLE.Create_contiguous(2).Commit()
    x, y = np.arange(12.0), np.zeros(12)
    for one, other in ((gaps, run), (run, gaps)):
        for call in (comm.Allreduce, comm.Reduce, comm.Scan, comm.Reduce_scatter_block, comm.Iallreduce):
            with pytest.raises(TypeError, match="^sendbuf is of a derived datatype, recvbuf of another$"):
                call([x, 3, one], [y, 3, other], add, **options)
    comm.Allreduce([x, 3, run], [y, 3, run], add, **options)
    assert y[:6].tolist() == [0, 1, 2, 3, 4, 5]
    gaps.Free()
    run.Free()


def test_the_datatypes_in_a_struct_are_freed():
    """MPI returns new handles of them, which would keep them for ever."""
    inner = MPI.INT.Create_contiguous(2)
    kind = SimpleNamespace(decode=lambda: (MPI.DATATYPE_NULL, "STRUCT", {"datatypes": [inner, MPI.INT]}))
    assert not datatypes._in_order(kind)
    assert inner == MPI.DATATYPE_NULL
    assert MPI.INT.Get_size() == 4


def test_a_datatype_that_is_freed_is_kept_for_a_users_op(add):
    """Its handle means the same until the end of the call."""
    pair, x = MPI.DOUBLE.Create_contiguous(2).Commit(), np.arange(4.0)
    made = reductions.draft(COLLECTIVES["allreduce"], Arguments(MPI.IN_PLACE, [x, 2, pair], add), None, 0, 1)
    handle = made.shape.op[2]
    pair.Free()
    others = [MPI.DOUBLE.Create_contiguous(3).Commit() for _ in range(50)]
    assert handle not in [other.handle for other in others]
    assert MPI.Datatype.fromhandle(handle).Get_size() == 16
    add.Reduce_local([x, 2, MPI.Datatype.fromhandle(handle)], [x.copy(), 2, MPI.Datatype.fromhandle(handle)])
    for other in others:
        other.Free()


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_is_a_value_and_an_index(comm, name):
    """As the standard has it, a struct of the two is of the same type."""
    of = {"float": MPI.FLOAT, "double": MPI.DOUBLE, "long": MPI.LONG, "two": MPI.INT, "short": MPI.SHORT,
          "long_double": MPI.LONG_DOUBLE}  # fmt: skip
    pair, value = PAIRS[name], of[name.removesuffix("_int")]
    place = pair.true_extent - 4
    struct = MPI.Datatype.Create_struct([1, 1], [0, place], [value, MPI.INT]).Create_resized(0, pair.extent).Commit()
    wrong = MPI.Datatype.Create_struct([1, 1], [0, place], [value, MPI.FLOAT]).Create_resized(0, pair.extent).Commit()
    assert of_mpi(pair, "").parts == of_mpi(struct, "").parts != ""
    x, y = (np.full(2 * pair.extent, mark, "u1") for mark in (1, 0))
    for one, other in ((pair, struct), (struct, pair), (pair, pair)):
        y[:] = 0
        comm.Allgather([x, 2, one], [y, 2, other])
        assert y.sum() == 2 * pair.size
    with pytest.raises(TypeError, match="^sendbuf is of .*, recvbuf of "):
        comm.Allgather([x, 2, pair], [y, 2, wrong])
    struct.Free()
    wrong.Free()
