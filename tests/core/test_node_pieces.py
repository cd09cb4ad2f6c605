"""Long calls of the node-local engine return now and then, so that whoever waits looks at signals and at the clock."""

import numpy as np
import pytest
from node_groups import joined

from collectives.arguments.shape import Shape
from collectives.core import _core
from collectives.system import heap

NBYTES = 160 << 20  # of the whole vector
AT_ONCE = 32 << 20  # bytes, as in csrc/node/internal.h
MOST = 1000  # looks
#: The vector's bytes, divided by those that a rank of two takes from the other one, or reads to fold them.
SHARES = {
    "allreduce": 1, "bcast": 1, "reduce": 0.5, "scan": 0.5, "reduce_scatter": 1, "allgather": 2, "alltoall": 2,
    "gather": 2, "scatter": 2,
}  # fmt: skip


def begun(rank, shape, source, target):
    """A call that has begun, on the heap."""
    operation = _core.Operation(rank[0], _core.NodePlan(rank[1], shape))
    operation.start(_core.address(source), _core.address(target), 0, (source, target))
    return operation


def shape_of(collective):
    if collective in ("allreduce", "reduce", "scan", "reduce_scatter"):
        codes = _core.DTYPES.index("float64"), _core.OPS.index("sum")
        return Shape(collective, 0, NBYTES // 8, 8, *codes, in_place=False)
    return Shape(collective, 0, NBYTES, 1, -1, None, in_place=False)


def expected(collective, rank):
    """What stands at each end of a rank's result; None: nothing that counts. The inputs are 1 and 2."""
    if collective in ("allreduce", "reduce_scatter"):
        return 3, 3
    if collective in ("reduce", "gather") and rank == 1:
        return None
    results = {"bcast": (1, 1), "scatter": (1, 1), "reduce": (3, 3), "scan": (1 + 2 * rank, 1 + 2 * rank)}
    return results.get(collective, (1, 2))


@pytest.mark.parametrize("collective", SHARES)
def test_a_look_at_a_long_call_is_short(collective):
    """Arrays on heaps, which need no synchronisation, used to be folded or copied as a whole within one look."""
    shape = shape_of(collective)
    kind = np.float64 if shape.itemsize == 8 else np.uint8
    arrays = [[heap.empty(shape.elements, kind) for _ in range(2)] for _ in range(2)]
    for rank, (source, target) in enumerate(arrays):
        source[:], target[:] = rank + 1, 0
        if collective == "bcast":
            target[:] = rank + 1
    calls = [begun(rank, shape, *arrays[i]) for i, rank in enumerate(joined(2))]
    left, looks = calls, 0
    while left and looks < MOST:
        looks += 1
        left = [call for call in left if not call.wait(True, 0)]
    assert not left
    assert looks >= int(NBYTES / SHARES[collective]) // AT_ONCE
    for rank, (_, target) in enumerate(arrays):
        half = collective in ("reduce_scatter", "scatter")
        last = target[target.size // 2 - 1 if half else -1]
        assert expected(collective, rank) in (None, (target[0], last))
