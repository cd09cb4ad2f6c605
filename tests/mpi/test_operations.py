"""Operations that another package starts, without a request of MPI's; what is known of them while they are tested."""

from unittest import mock

import numpy as np
import pytest
from forms import settle
from mpi4py import MPI

from collectives.arguments.shape import Shape
from collectives.communicator import internal
from collectives.core import _core

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


def test_an_error_in_what_follows_a_call(world):
    """The exception of a function that is called at a call's end is the error of its wait, on that rank alone."""
    values = np.full(8, RANK + 1.0)
    shape = Shape("allreduce", 0, 8, 8, _core.DTYPES.index("float64"), _core.OPS.index("sum"), True)

    def fail():
        raise LookupError("no place for the result")

    own = world.Dup()
    draft = internal.drafted("allreduce", shape, values.ctypes.data, values.ctypes.data, values)
    operation = internal.start(own, draft, fail if RANK == 0 else lambda: None)
    if RANK == 0:
        with pytest.raises(LookupError, match="no place for the result"):
            operation.complete()
    else:
        operation.complete()
    assert (values == SIZE * (SIZE + 1) / 2).all()
    assert own.allreduce(1) == SIZE
    own.Free()


@pytest.mark.parametrize("fails", [False, True])
def test_calls_that_were_tested_are_not_watched_after_their_end(world, fails):
    """A watch keeps files open: it ends with the call, however that ends and whoever waited for it."""
    own = world.Dup()
    context = internal.side_of(own)
    values = np.full(8, RANK + 1.0)

    def then():
        if fails:
            raise LookupError("no place for the result")

    def start():
        if not fails:
            return own.Iallreduce(MPI.IN_PLACE, values)
        shape = Shape("allreduce", 0, 8, 8, _core.DTYPES.index("float64"), _core.OPS.index("sum"), True)
        return internal.start(
            own, internal.drafted("allreduce", shape, values.ctypes.data, values.ctypes.data, values), then
        )

    def finish():
        while not call.test():
            pass

    if RANK == SIZE - 1:
        world.Barrier()
    call = start()
    if RANK != SIZE - 1:
        assert not (call.test() if fails else call.Test())
        assert len(context.tested) == 1
        world.Barrier()
    if fails:
        with pytest.raises(LookupError):
            finish()
    else:
        MPI.Request.Waitall([call])
        settle()
    assert context.tested == {}
    assert (values == SIZE * (SIZE + 1) / 2).all()
    own.Free()


def test_plans_of_calls_that_were_under_way_at_once_are_kept(world):
    """Calls like earlier ones look for no plan in Python, as long as no more of them are under way than before."""
    own = world.Dup()
    values, sums = np.full((16, 4), RANK + 1.0), np.zeros((16, 4))
    looked = []
    context = internal.side_of(own)
    look = type(context).plan_for

    def batch():
        requests = [own.Iallreduce(values[i], sums[i], algorithm="recursive_doubling") for i in range(16)]
        MPI.Request.Waitall(requests)
        settle()

    with mock.patch.object(type(context), "plan_for", lambda *asked: looked.append(asked) or look(*asked)):
        batch()  # whose first call makes the plan that the others are like
        batch()
        first = len(looked)
        batch()
    assert (sums == SIZE * (SIZE + 1) / 2).all()
    assert first > 0
    assert len(looked) == first
    own.Free()
