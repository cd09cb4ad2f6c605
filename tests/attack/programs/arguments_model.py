"""What mpi4py makes of a buffer specification, in plain Python, without a call of MPI's.

The program that compares two libraries must know beforehand on which ranks a call raises, or the others would wait.
Where a model is wrong, the comparison fails: whatever it predicts is also tried with mpi4py itself.
"""

import itertools
import operator
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

ERRORS = (TypeError, ValueError, KeyError, BufferError, OverflowError, MPI.Exception)


@dataclass
class Parsed:
    """Elements of a type: ``counts`` and ``displs`` of every block, within ``nbytes`` bytes (None: anywhere).

    ``room`` is the number of bytes that the array has before the buffer, which is a view of it.
    """

    counts: list
    displs: list
    datatype: MPI.Datatype
    nbytes: int | None
    room: int

    @property
    def elements(self):
        return sum(self.counts)

    def inside(self):
        """Whether all of it is memory of the buffer."""
        if self.datatype == MPI.DATATYPE_NULL:
            return True
        extent = self.datatype.Get_extent()[1]
        ends = [(d * extent, (d + c) * extent) for c, d in zip(self.counts, self.displs, strict=True) if c]
        return self.nbytes is None or all(-self.room <= begin and end <= self.nbytes for begin, end in ends)

    def overlaps(self):
        """Whether two blocks share elements, which MPI forbids where they are received: either may come last."""
        blocks = sorted((d, d + c) for c, d in zip(self.counts, self.displs, strict=True) if c)
        return any(begin < end for (_, end), (begin, _) in itertools.pairwise(blocks))


def parse(spec, writable, blocks, vector):
    """A specification as mpi4py reads it; one of ERRORS where it raises."""
    memory, counts, displs, datatype = _parts(spec, vector)
    nbytes, datatype = _memory(memory, datatype, writable)
    if vector:
        counts, displs = _vector(counts, displs, nbytes or 0, datatype, blocks)
    else:
        counts, displs = _simple(memory, counts, displs, nbytes or 0, datatype, blocks)
    return Parsed(counts, displs, datatype, nbytes, _room(memory))


def _room(memory):
    """Bytes from the start of the array that ``memory`` is a view of to its own start."""
    owner = memory
    while isinstance(getattr(owner, "base", None), np.ndarray):
        owner = owner.base
    return memory.ctypes.data - owner.ctypes.data if isinstance(memory, np.ndarray) else 0


def _is_buffer(thing):
    if thing is MPI.IN_PLACE or thing is MPI.BOTTOM:
        raise TypeError("a constant, which mpi4py takes for no bytes at an address that is none")
    try:
        memoryview(thing)
    except TypeError:
        return False
    except (BufferError, ValueError):
        pass
    return True


def _is_datatype(thing):
    return isinstance(thing, (MPI.Datatype, str))


def _parts(spec, vector):
    pairs = tuple if vector else (tuple, list)
    if _is_buffer(spec) or (hasattr(spec, "__dlpack__") and not isinstance(spec, (list, tuple))):
        return spec, None, None, None
    if not isinstance(spec, (list, tuple)):
        raise TypeError("no buffer")
    if len(spec) == 2:
        memory, count = spec
        if _is_datatype(count):
            return memory, None, None, count
        if isinstance(count, pairs):
            count, displ = count
            return memory, count, displ, None
        return memory, count, None, None
    if len(spec) == 3:
        memory, count, datatype = spec
        if isinstance(count, pairs):
            count, displ = count
            return memory, count, displ, datatype
        return memory, count, None, datatype
    memory, count, displ, datatype = spec
    return memory, count, displ, datatype


def _memory(memory, datatype, writable):
    named = isinstance(datatype, MPI.Datatype)
    if memory is None or memory is MPI.BOTTOM:  # the first holds nothing, the second all memory
        return 0 if memory is None else None, datatype if named else MPI.Datatype.fromcode(datatype)
    try:
        view = memoryview(memory)
    except TypeError:
        if not hasattr(memory, "__dlpack__"):
            raise
        view = memoryview(np.from_dlpack(memory))
    if not view.contiguous or (writable and view.readonly):
        raise BufferError("strided or read-only")
    if datatype is None:
        code = view.format
        if code[0] == ">":
            raise BufferError("order of bytes")
        datatype = MPI.Datatype.fromcode(code.removeprefix("@").removeprefix("<"))
    elif not named:
        datatype = MPI.Datatype.fromcode(datatype)
    return view.nbytes, datatype


def _extent(datatype):
    if datatype == MPI.DATATYPE_NULL:
        raise ValueError("datatype is null")
    extent = datatype.Get_extent()[1]
    if extent <= 0:
        raise ValueError("extent")
    return extent


def _inferred(length, datatype):
    if length <= 0:
        return 0
    elements, rest = divmod(length, _extent(datatype))
    if rest:
        raise ValueError("no multiple of the extent")
    return elements


def _simple(memory, count, displ, nbytes, datatype, blocks):
    displ = 0 if displ is None else operator.index(displ)
    if displ < 0 or (displ > 0 and displ * _extent(datatype) > nbytes):
        raise ValueError("displacement")
    if count is None:
        count, rest = divmod(_inferred(nbytes - displ * _extent(datatype) if displ else nbytes, datatype), blocks)
        if rest:
            raise ValueError("no multiple of the blocks")
    count = operator.index(count)
    if count < 0 or (count > 0 and memory is None):
        raise ValueError("count")
    return [count] * blocks, [displ + i * count for i in range(blocks)]


def _is_integer(value):
    return hasattr(value, "__index__") and not getattr(value, "shape", ())


def _integers(values, blocks):
    if len(values) != blocks:
        raise ValueError("number of integers")
    return [operator.index(value) for value in (values.tolist() if hasattr(values, "tolist") else values)]


def _vector(counts, displs, nbytes, datatype, blocks):
    if counts is None:
        elements = _inferred(nbytes, datatype)
        counts = [elements // blocks + (i < elements % blocks) for i in range(blocks)]
    counts = [operator.index(counts)] * blocks if _is_integer(counts) else _integers(counts, blocks)
    if displs is None:
        displs = [sum(counts[:i]) for i in range(blocks)]
    displs = [operator.index(displs) * i for i in range(blocks)] if _is_integer(displs) else _integers(displs, blocks)
    return counts, displs
