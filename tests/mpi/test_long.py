"""Long elements, and long data in private memory."""

import numpy as np
import pytest
from forms import RANK, ROOT, SIZE, forms
from mpi4py import MPI

from collectives.arguments.calls import COLLECTIVES
from collectives.system import mpi_library

MOVING = [c for c in COLLECTIVES.values() if not c.reduces and c.name != "barrier"]


@pytest.mark.parametrize("nbytes", [8 << 10, 40 << 10, 200 << 10])
def test_elements_that_are_long(world, nbytes):
    """Where the places to stage in cannot hold them, a schedule serves the call."""
    datatype = MPI.INT64_T.Create_contiguous(nbytes // 8).Commit()

    def add(a, b, _):
        np.frombuffer(b, "i8")[:] += np.frombuffer(a, "i8")

    op = MPI.Op.Create(add, commute=True)
    count = 3 * SIZE
    vector = np.full(count * nbytes // 8, RANK + 1)
    for form in forms(world, COLLECTIVES["reduce_scatter_block"])[: 1 if mpi_library.locks_ops() else None]:
        result = np.zeros(3 * nbytes // 8, int)
        form([vector, datatype], [result, datatype], op)
        assert (result == SIZE * (SIZE + 1) // 2).all()
    result = np.zeros_like(vector)
    world.Allreduce([vector, datatype], [result, datatype], op)
    assert (result == SIZE * (SIZE + 1) // 2).all()
    assert (world.last.algorithm == "shm") == (nbytes <= 8 << 10)
    op.Free()
    datatype.Free()


@pytest.mark.parametrize("collective", MOVING, ids=lambda c: c.name)
def test_long_private_data_are_read_where_they_lie(world, collective):
    """Longer than the limit from which on ranks read each other's private memory; overwritten at once."""
    each = (7 << 20) // SIZE + 1
    pattern = lambda r, b: np.arange(each, dtype="u1") + np.uint8(16 * r + b)  # noqa: E731
    everything = np.concatenate([pattern(RANK, b) for b in range(SIZE)])
    column = np.concatenate([pattern(r, RANK) for r in range(SIZE)])
    diagonal = np.concatenate([pattern(r, r) for r in range(SIZE)])
    root = np.concatenate([pattern(ROOT, b) for b in range(SIZE)])
    counts = [each] * SIZE
    many, one = np.zeros(each * SIZE, "u1"), np.zeros(each, "u1")
    many_spec = [many, counts] if collective.vector else many
    source_spec = [everything, counts] if collective.vector else everything
    mine = pattern(RANK, RANK)
    call = getattr(world, collective.method)
    if collective.base == "bcast":
        buffer = everything if RANK == ROOT else many
        call(buffer, ROOT)
        result, expected = buffer.copy(), root
    elif collective.base == "allgather":
        call(mine, many_spec)
        result, expected = many, diagonal
    elif collective.base == "gather":
        call(mine, many_spec if RANK == ROOT else None, ROOT)
        result, expected = (many, diagonal) if RANK == ROOT else (many, np.zeros_like(many))
    elif collective.base == "scatter":
        call(source_spec if RANK == ROOT else None, one, ROOT)
        result, expected = one, pattern(ROOT, RANK)
    else:
        call(source_spec, many_spec)
        result, expected = many, column
    everything[:] = mine[:] = 0xEE
    world.Barrier()
    np.testing.assert_array_equal(result, expected)
