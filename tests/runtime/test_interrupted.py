"""A signal's handler raises where a call has failed and nobody has recorded it yet (in programs: tests/attack)."""

from types import SimpleNamespace

import numpy as np
import pytest
from node_groups import joined

from collectives.arguments.shape import Shape
from collectives.core import _core
from collectives.runtime.context import Context

COUNT = 1000


def operations():
    """Two ranks' calls of the engine that differ in length; the operations, and their arrays."""
    made = []
    for rank, (calls, engine) in enumerate(joined(2)):
        codes = _core.DTYPES.index("float64"), _core.OPS.index("sum")
        plan = _core.NodePlan(engine, Shape("allreduce", 0, COUNT + rank, 8, *codes, in_place=False))
        made.append((_core.Operation(calls, plan), np.ones(COUNT + rank), np.zeros(COUNT + rank)))
    return made


def start(operation, x, y):
    operation.start(_core.address(x), _core.address(y), 0, (x, y))


def fails(operation):
    """Whether the operation has ended with an error, after another look."""
    try:
        operation.wait(True, 0)
        return False
    except _core.MismatchError:
        return True


def recorder(**more):
    """What a context does here, and a list of what it records."""
    told = []
    return SimpleNamespace(broken=None, note=lambda run, error: told.append((run, error)), **more), told


def test_a_failure_that_is_not_recorded_is():
    (first, *arrays), (second, *others) = operations()
    context, told = recorder()
    start(first, *arrays)
    assert not fails(first)
    Context.interrupted(context, first, KeyboardInterrupt())
    assert [run for run, _ in told] == [first]  # it is under way
    start(second, *others)
    assert fails(second)
    assert fails(first)
    for operation in (first, second):
        Context.interrupted(context, operation, KeyboardInterrupt())
    assert [run for run, _ in told] == [first, first, second]
    context.broken = "by that"
    Context.interrupted(context, first, KeyboardInterrupt())
    assert len(told) == 3


def test_a_blocking_operation_that_fails_is_recorded_once():
    """Where the handler raises at the begin of the function that records it."""

    def fail(run, error):
        assert isinstance(error, _core.MismatchError)
        raise KeyboardInterrupt

    (first, *arrays), (second, *others) = operations()
    context, told = recorder(
        fail=fail, _tag_of=lambda run: 0, wait=lambda run, timeout: run.wait(True, 10**9),
        interrupted=lambda run, error: Context.interrupted(context, run, error),
    )  # fmt: skip
    start(second, *others)
    assert not fails(second)
    with pytest.raises(KeyboardInterrupt):
        Context.run(context, first, *map(_core.address, arrays), arrays, None)
    assert [(run, type(error)) for run, error in told] == [(first, KeyboardInterrupt)]
