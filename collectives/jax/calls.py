"""What a call does on this rank: which memory it has, and how it runs."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ..core import _core
from .places import Op, Place

__all__ = ["COLLECTIVES", "Call", "Form", "Shape", "site_of"]

Shape = tuple[int, ...]

#: The collectives by the names of the functions.
COLLECTIVES = {
    "allreduce": "allreduce", "reduce": "reduce", "reduce_scatter": "reduce_scatter_block", "bcast": "bcast",
    "allgather": "allgather", "gather": "gather", "scatter": "scatter", "alltoall": "alltoall", "barrier": "barrier",
}  # fmt: skip
_TO_ONE = ("reduce", "gather")
_FROM_ONE = ("bcast", "scatter")


@dataclass(frozen=True)
class Call:
    """A call as a constant of programs: the function and its arguments other than the operand.

    ``partial`` says that the gradient adds the cotangents of all ranks, instead of taking them to be the same.
    ``dest`` and ``source`` are None where nothing is sent or received, and ``like`` is what a rank receives.
    """

    function: str
    place: Place
    op: Op | None = None
    root: int = 0
    partial: bool = False
    dest: int | None = None
    source: int | None = None
    sendtag: int = 0
    recvtag: int = 0
    like: tuple[Shape, np.dtype] | None = None

    def __str__(self) -> str:
        return self.function

    @property
    def here(self) -> bool:
        """Whether this rank is the root."""
        return self.place.rank == self.root


class Form(NamedTuple):
    """The memory of a call on this rank: whether it reads the operand and writes a result, and the result's shape.

    ``shape`` is None if there is no result. ``instead`` is the result if the call writes none.
    """

    reads: bool
    writes: bool
    shape: Shape | None
    instead: Literal["zeros", "operand"] = "zeros"


def form_of(call: Call, shape: Shape) -> Form:
    """The memory of a call with an operand of this shape."""
    name, size, here = call.function, call.place.size, call.here
    if name in ("barrier", "send"):
        return Form(name == "send", False, None)
    if name in ("recv", "sendrecv"):
        assert call.like is not None
        return Form(call.dest is not None, call.source is not None, call.like[0])
    if name == "gather":
        return Form(True, here, (size if here else 0, *shape))
    if name == "scatter":
        return Form(here, True, shape[1:] if here else shape)
    if name == "bcast":
        return Form(here, not here, shape, "operand")
    if name == "reduce":
        return Form(True, here, shape)
    return Form(True, True, {"allgather": (size, *shape), "reduce_scatter": shape[1:]}.get(name, shape))


@functools.cache
def site_of(call: Call, shape: Shape, dtype: np.dtype) -> _core.Site:
    """The compiled side of a call with such an operand."""
    form = form_of(call, shape)
    given = call.like[1] if call.like is not None else dtype
    inputs = math.prod(shape) if form.reads else -1
    outputs = math.prod(form.shape or ()) if form.writes else -1
    run = _runs(call, inputs, dtype, outputs, given)
    name, comm = COLLECTIVES.get(call.function), call.place.comm
    if name is None or comm is None:
        return _core.Site(call.function, None, run, inputs, outputs)
    code = op = -1
    count = _blocks(call) * max(inputs, outputs) * dtype.itemsize
    if call.op is not None:
        count = inputs
        if call.op.code is not None and dtype.name in _core.DTYPES:
            code, op = _core.DTYPES.index(dtype.name), call.op.code
        else:
            name = None  # left to MPI, or refused there
    return _core.Site(call.function, comm, run, inputs, outputs, name, max(count, 0), code, op, call.root)


def _blocks(call: Call) -> int:
    """How often the longer of operand and result is in the vector of all ranks."""
    alone = call.function == "gather" and not call.here or call.function == "scatter" and not call.here
    return call.place.size if alone else 1


def _runs(call: Call, inputs: int, dtype: np.dtype, outputs: int, given: np.dtype) -> Callable[[int, int], None]:
    """Runs a call on memory at two addresses by the communicator's own method."""
    if call.op is None:  # moved as bytes
        inputs, outputs = (n * kind.itemsize if n > 0 else n for n, kind in ((inputs, dtype), (outputs, given)))
        dtype = given = np.dtype(np.uint8)
    run = _METHODS[call.function]

    def on_memory(source: int, target: int) -> None:
        operand, result = _memory(source, inputs, dtype), _memory(target, outputs, given)
        if call.place.comm is None:
            if operand is not None and result is not None:
                result[...] = operand
            return
        run(call.place.ready(), call, operand, result)

    return on_memory


def _memory(address: int, count: int, dtype: np.dtype) -> np.ndarray | None:
    """The memory at an address as an array; None if there is none."""
    if count <= 0:
        return None if count < 0 else np.empty(0, dtype)
    memory: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


def _send(comm: Any, call: Call, operand: Any, result: Any) -> None:
    comm.Send(operand, call.dest, call.sendtag)


def _receive(comm: Any, call: Call, operand: Any, result: Any) -> None:
    from mpi4py import MPI

    status = MPI.Status()
    if operand is None:
        comm.Recv(result, call.source, call.recvtag, status)
    else:
        comm.Sendrecv(operand, call.dest, call.sendtag, result, call.source, call.recvtag, status)
    if status.Get_count(MPI.BYTE) != result.nbytes:
        raise ValueError(
            f"rank {call.source} has sent {status.Get_count(MPI.BYTE)} bytes, where {result.nbytes} were expected"
        )


def _sendrecv(comm: Any, call: Call, operand: Any, result: Any) -> None:
    if result is None:
        _send(comm, call, operand, result)
    else:
        _receive(comm, call, operand, result)


_METHODS: dict[str, Callable[[Any, Call, Any, Any], None]] = {
    "allreduce": lambda comm, call, x, y: comm.Allreduce(x, y, op=call.op.given),  # type: ignore[union-attr]
    "reduce": lambda comm, call, x, y: comm.Reduce(x, y, op=call.op.given, root=call.root),  # type: ignore[union-attr]
    "reduce_scatter": lambda comm, call, x, y: comm.Reduce_scatter_block(x, y, op=call.op.given),  # type: ignore[union-attr]
    "bcast": lambda comm, call, x, y: comm.Bcast(y if x is None else x, root=call.root),
    "allgather": lambda comm, call, x, y: comm.Allgather(x, y),
    "gather": lambda comm, call, x, y: comm.Gather(x, y, root=call.root),
    "scatter": lambda comm, call, x, y: comm.Scatter(x, y, root=call.root),
    "alltoall": lambda comm, call, x, y: comm.Alltoall(x, y),
    "barrier": lambda comm, call, x, y: comm.Barrier(),
    "send": _send,
    "recv": _receive,
    "sendrecv": _sendrecv,
}
