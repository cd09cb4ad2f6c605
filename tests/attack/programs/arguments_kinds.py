"""Buffer specifications of every kind: how programs hand memory to a collective, rightly and wrongly."""

import array

import numpy as np
from mpi4py import MPI

LARGEST = 512  # bytes of a side
MARGIN = 64  # bytes around it, which must stay as they are
LONG_DOUBLE = 10  # bytes of an x86 long double that are not padding


class DLPackOnly:
    """An array that offers DLPack and nothing else."""

    def __init__(self, values):
        self._values = values

    def __dlpack__(self, **how):
        return self._values.__dlpack__(**how)

    def __dlpack_device__(self):
        return self._values.__dlpack_device__()


class Maker:
    """One side of a call on one rank: ``n`` elements in ``blocks`` blocks; ``vector``: with a count for each."""

    def __init__(self, n, blocks, vector, rank, sends):
        self.n, self.blocks, self.vector, self.rank, self.sends = n, blocks, vector, rank, sends
        self.arena = np.full(LARGEST + 2 * MARGIN, 0x55, np.uint8)
        self.memory = self.arena  # what a call may write to
        self.padding = np.empty(0, np.uint8)  # bytes of it that no element uses, which may be anything

    def array(self, dtype="f8", n=None, step=1):
        """An array of n elements within the arena; what is sent tells whose it is."""
        dtype, n = np.dtype(dtype), self.n if n is None else n
        made = self.arena[MARGIN : MARGIN + n * step * dtype.itemsize].view(dtype)[::step]
        if self.sends and dtype.kind in "biufc":
            made[...] = (np.arange(n) % 2 if dtype.kind == "b" else np.arange(n) + 16 * self.rank + 1).astype(dtype)
        elif self.sends:
            made.reshape(-1).view(np.uint8)[:] = np.arange(made.nbytes) % 16 + 16 * self.rank + 1
        if dtype.char == "g":
            self.padding = made.view(np.uint8).reshape(-1, dtype.itemsize)[:, LONG_DOUBLE:]
        return made

    def own(self, made):
        """Memory that is not of the arena."""
        self.memory = made
        return made

    def bytes_of(self):
        """The elements as bytes."""
        return self.array().tobytes()

    @property
    def each(self):
        """What a count says: elements of one block, or of each."""
        counts = [self.n // self.blocks + (i < self.n % self.blocks) for i in range(self.blocks)]
        return counts if self.vector else counts[-1]

    @property
    def places(self):
        """Displacements of blocks in reverse order, or of the only one."""
        if not self.vector:
            return 0
        return [self.n - sum(self.each[: i + 1]) for i in range(self.blocks)]

    def peek(self):
        """All that a call could have written."""
        self.padding[:] = 0
        return bytes(self.memory)


def _two_dimensional(k, order):
    return k.array().reshape((1, k.n) if order == "C" else (k.n, 1), order=order)


def _square(k):
    return k.array(n=k.n // 2 * 2).reshape(2, -1).T


def _read_only(k):
    made = k.array()
    made.flags.writeable = False
    return made


#: Derived datatypes, made once: they are to be freed by MPI's end.
PAIR_OF_DOUBLES = MPI.DOUBLE.Create_contiguous(2).Commit()
GAPS = MPI.DOUBLE.Create_vector(1, 1, 2).Create_resized(0, 16).Commit()
RECORD = MPI.Datatype.Create_struct([1, 2], [0, 8], [MPI.DOUBLE, MPI.INT]).Commit()
T = MPI.DOUBLE

#: By name: what a program hands over.
KINDS = {
    # memory
    "array": lambda k: k.array(),
    "two-dimensional": lambda k: _two_dimensional(k, "C"),
    "column": lambda k: _two_dimensional(k, "F"),
    "transposed": _square,
    "no-dimension": lambda k: k.array(n=1).reshape(()),
    "slice": lambda k: k.array(n=k.n + 2)[1 : k.n + 1],
    "strided": lambda k: k.array(step=2),
    "backwards": lambda k: k.array()[::-1],
    "read-only": _read_only,
    "bytearray": lambda k: k.own(bytearray(k.bytes_of())),
    "bytes": lambda k: k.own(k.bytes_of()),
    "memoryview": lambda k: memoryview(k.own(bytearray(k.bytes_of()))),
    "memoryview-of-doubles": lambda k: memoryview(k.own(bytearray(k.bytes_of()))).cast("d"),
    "memoryview-of-an-array": lambda k: memoryview(k.array()),
    "strided-memoryview": lambda k: memoryview(k.array(n=2 * k.n))[::2],
    "array.array": lambda k: k.own(array.array("d", k.bytes_of())),
    "mpi4py-buffer": lambda k: MPI.buffer.frombuffer(k.array(), readonly=k.sends),
    "DLPack": lambda k: DLPackOnly(k.array()),
    "DLPack-read-only": lambda k: DLPackOnly(_read_only(k)),
    # element types
    **{
        f"type-{t}": lambda k, t=t: k.array(t)
        for t in ("?", "i1", "u1", "i2", "i4", "l", "q", "u8", "f4", "F", "D", "g")
    },
    "half": lambda k: k.array("f2"),
    "big-endian": lambda k: k.array(">f8"),
    "big-endian-integers": lambda k: k.array(">i4"),
    "little-endian": lambda k: k.array("<f8"),
    "records": lambda k: k.array("i4,f8"),
    "strings": lambda k: k.array("S3"),
    "void": lambda k: k.array("V8"),
    "times": lambda k: k.array("M8[s]"),
    "objects": lambda k: np.full(k.n, None, "O"),
    "objects-as-bytes": lambda k: [np.full(k.n, None, "O"), MPI.BYTE],
    # with a datatype
    "typed": lambda k: [k.array(), T],
    "typed-tuple": lambda k: (k.array(), T),
    "code": lambda k: [k.array(), "d"],
    "unknown-code": lambda k: [k.array(), "no such type"],
    "as-bytes": lambda k: [k.array(), MPI.BYTE],
    "as-integers": lambda k: [k.array(), MPI.INT],
    "bytes-as-doubles": lambda k: [k.array().view("u1"), T],
    "odd-bytes-as-doubles": lambda k: [k.array("u1"), T],
    "big-endian-typed": lambda k: [k.array(">f8"), T],
    "strings-typed": lambda k: [k.array("S3"), MPI.CHAR],
    "strided-typed": lambda k: [k.array(step=2), T],
    "DLPack-typed": lambda k: [DLPackOnly(k.array()), T],
    "DLPack-counted": lambda k: [DLPackOnly(k.array()), k.each],
    "pairs": lambda k: [k.array(), PAIR_OF_DOUBLES],
    "gaps": lambda k: [k.array(n=2 * k.n), k.each, GAPS],
    "record": lambda k: [k.array(n=2 * k.n), k.each, RECORD],
    "null-type": lambda k: [k.array(), MPI.DATATYPE_NULL],
    "null-type-counted": lambda k: [k.array(), k.each, MPI.DATATYPE_NULL],
    # with counts
    "counted": lambda k: [k.array(), k.each],
    "counted-typed": lambda k: [k.array(), k.each, T],
    "counted-code": lambda k: (k.array(), k.each, "d"),
    "counted-None": lambda k: [k.array(), k.each, None],
    "None-typed": lambda k: [k.array(), None, T],
    "None-None": lambda k: [k.array(), (None, None)],
    "all-None": lambda k: [k.array(), None, None, None],
    "placed": lambda k: [k.array(), (k.each, k.places)],
    "placed-typed": lambda k: [k.array(), (k.each, k.places), T],
    "placed-list": lambda k: [k.array(), [k.each, k.places]],
    "placed-apart": lambda k: [k.array(), k.each, k.places, T],
    "placed-None": lambda k: [k.array(), (k.each, None), T],
    "placed-untyped": lambda k: [k.array(), k.each, k.places, None],
    "shifted": lambda k: [k.array(n=k.n + 1), (k.each, 1)],
    "shifted-uncounted": lambda k: [k.array(), (None, None if k.vector else 1)],
    "numpy-count": lambda k: [k.array(), np.array(k.each)],
    "numpy-counts": lambda k: [k.array(), (np.array(k.each), np.array(k.places)), T],
    "tuple-counts": lambda k: [k.array(), (tuple(k.each) if k.vector else k.each, None), T],
    "tuple-as-pair": lambda k: [k.array(), tuple(k.each) if k.vector else (k.each,)],
    "one-count": lambda k: [k.array(), k.n // k.blocks],
    "true": lambda k: [k.array(), True],
    "float-count": lambda k: [k.array(), float(k.n // k.blocks)],
    "float-counts": lambda k: [k.array(), [float(k.n // k.blocks)] * k.blocks],
    "string-count": lambda k: [k.array(), [str(k.n)], T],
    "negative": lambda k: [k.array(), -1],
    "negative-place": lambda k: [k.array(), (k.n // k.blocks, -1)],
    "too-many": lambda k: [k.array(), k.n // k.blocks + 1],
    "huge": lambda k: [k.array(), 2**62],
    "beyond-integers": lambda k: [k.array(), 2**64],
    "too-few-counts": lambda k: [k.array(), [0] * (k.blocks - 1)],
    "too-many-counts": lambda k: [k.array(), [0] * (k.blocks + 1)],
    "too-few-places": lambda k: [k.array(), ([0] * k.blocks, [0] * (k.blocks - 1))],
    "strided-blocks": lambda k: [k.array(n=2 * k.n), (k.n // k.blocks, k.n // k.blocks + 1)],
    # no memory
    "None": lambda k: None,
    "in-place": lambda k: MPI.IN_PLACE,
    "bottom": lambda k: MPI.BOTTOM,
    "bottom-typed": lambda k: [MPI.BOTTOM, 0, T],
    "bottom-empty": lambda k: [MPI.BOTTOM, T],
    "bottom-untyped": lambda k: [MPI.BOTTOM, 0],
    "None-of-none": lambda k: [None, 0, T],
    "None-of-some": lambda k: [None, 1, T],
    "None-uncounted": lambda k: [None, T],
    "None-alone": lambda k: [None],
    "address": lambda k: (
        [MPI.BOTTOM, (k.each, [p + k.array().ctypes.data // 8 for p in k.places]), T]
        if k.vector
        else [MPI.BOTTOM, k.each, k.array().ctypes.data // 8, T]
    ),
    # what is no specification
    "one-part": lambda k: [k.array()],
    "no-part": lambda k: [],
    "five-parts": lambda k: [k.array(), k.each, k.places, T, T],
    "type-first": lambda k: [T, k.array()],
    "number": lambda k: 7,
    "numbers": lambda k: [1.0, 2.0, 3.0],
    "numpy-number": lambda k: np.float64(7),
    "string": lambda k: "text",
    "object": lambda k: object(),
    "nested": lambda k: [[k.array(), T], k.each],
}
