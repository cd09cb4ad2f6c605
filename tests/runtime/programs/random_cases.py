"""One random call, drawn alike on all ranks, and what every rank must have at its end: for random_calls.py."""

import functools

import numpy as np
import operands
from mpi4py import MPI

import collectives
from collectives.arguments.buffers import _KERNEL_OPS, AVG
from collectives.arguments.calls import COLLECTIVES
from collectives.arguments.datatypes import PAIRS
from collectives.core import _core
from collectives.schedules import registry
from collectives.system import mpi_library

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
MOVED = ("int8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex128", "double_int")
LENGTHS = (*(0, 1, 2, 3, 7, 8, 16, 33, 63, 100, 127, 255, 1000) * 3, 4095, 5000, 39_999, 200_000, 200_001)
SIZES = (1, 2, 3, 5, 12, 24, 31, 63, 65, 100, 127, 129, 131, 255, 280, 1000, 1023, 2049, 3000, 4095, 4096)
LONGEST = 2 << 20  # bytes of a vector of elements of any size
POOL = 5003  # elements that are drawn for each type and op
NAMED = {
    "int8": MPI.INT8_T, "int32": MPI.INT32_T, "int64": MPI.INT64_T, "uint16": MPI.UINT16_T, "float32": MPI.FLOAT,
    "float64": MPI.DOUBLE, "complex128": MPI.C_DOUBLE_COMPLEX,
}  # fmt: skip
BY_MPI = ("int32", "int64", "float64")
LOCKED = (
    mpi_library.locks_ops()
)  # while MPI applies an op in Python, other threads that hold the interpreter wait for MPI


def add_bytes(a, b, _):
    """An op of the user's, for elements of any size."""
    np.frombuffer(b, np.uint8)[:] += np.frombuffer(a, np.uint8)


OP_OF = {"avg": AVG, "added": MPI.Op.Create(add_bytes, commute=True)}
OP_OF.update({_core.OPS[code]: MPI.Op.fromhandle(handle) for handle, code in _KERNEL_OPS.items()})


@functools.cache
def bytes_of(size):
    """The datatype of so many bytes."""
    return MPI.BYTE.Create_contiguous(size).Commit()


@functools.cache
def pool(dtype, op):
    """Elements of every rank, from which its vectors are cut."""
    if dtype == "bytes":
        return [np.random.default_rng(rank).integers(0, 256, POOL * 7, np.uint8) for rank in range(SIZE)]
    if op is not None:
        return operands.operands(dtype, op, SIZE, POOL)
    made = [np.zeros(POOL, operands.DTYPES[dtype]) for _ in range(SIZE)]
    for rank, vector in enumerate(made):
        if dtype in PAIRS:
            vector["value"], vector["index"] = rank, np.arange(POOL)
        else:
            chance = np.random.default_rng(rank)
            vector.view(np.uint8)[:] = chance.integers(0, 256, vector.nbytes, np.uint8)
    return made


@functools.cache
def names_of(collective):
    return [name for name in registry.algorithms(collective) if name != "hierarchical"]


class Case:
    """One call, drawn alike on all ranks, with what every rank must have at the end."""

    def __init__(self, draw, own, number):
        self.own = own
        self.collective = draw.choice([c for c in COLLECTIVES.values() if len(names_of(c.name)) > 1])
        self.root = draw.randrange(SIZE)
        self.form = draw.choice(("blocking", "blocking", "starting", "starting", "lasting"))
        self.in_place = draw.random() < 0.3
        self.heap = draw.choice((0, 0.5, 1))  # chance that an array is there
        self.restarts = draw.randrange(3)
        if self.collective.reduces:
            self.dtype, self.op = draw.choice([
                (d, o) for d, o in operands.ALL if o != "avg" or self.collective.averages
            ])  # fmt: skip
        else:
            self.dtype, self.op = draw.choice(MOVED), None
        self.size = draw.choice((draw.choice(SIZES), draw.randint(1, 4096)))
        if draw.random() < 0.25 and not (LOCKED and self.collective.reduces):
            self.dtype, self.op = "bytes", "added" if self.collective.reduces else None
        self.algorithm = self._algorithm(draw)
        if self.algorithm == "mpi" and self.form == "lasting" and LOCKED:
            self.form = "starting"  # Intel MPI's own persistent calls fail among 4 ranks, with mpi4py alone, too
        self.deterministic = draw.random() < 0.1 and self.algorithm is None
        self.number = number
        self.request = None
        self.lengths = self._lengths(draw)

    def _algorithm(self, draw):
        names = [None, "shm", *names_of(self.collective.name)]
        if self.dtype not in BY_MPI or self.op == "avg":  # the MPI library's own faults are not looked for here
            names = [name for name in names if name != "mpi"]
        return None if draw.random() < 0.4 else draw.choice(names)

    def _lengths(self, draw):
        """Elements of each block, or rank by rank of what each sends to each; one number for whole vectors."""
        longest = draw.choice(LENGTHS) // (1 if self.collective.base in ("bcast", "reduce", "allreduce") else SIZE)
        if self.dtype == "bytes":
            longest = min(longest, LONGEST // SIZE // self.size)
        if self.collective.name == "alltoallv":
            return [[draw.randint(0, longest) for _ in range(SIZE)] for _ in range(SIZE)]
        if self.collective.vector:
            return [draw.randint(0, longest) for _ in range(SIZE)]
        return longest

    def __str__(self):
        return ", ".join(f"{key}={value}" for key, value in vars(self).items() if key in (
            "number", "form", "algorithm", "dtype", "size", "op", "root", "in_place", "heap", "deterministic", "lengths"
        )) + f", {self.collective.name} on rank {RANK} of {SIZE}"  # fmt: skip

    # Memory

    def array(self, values):
        """A writable copy, on the heap, perhaps within a longer array, or private; perhaps at any address."""
        shared = self.own.random() < self.heap
        if not shared and self.own.random() < 0.7:
            return values.copy()
        before = self.own.choice((0, 0, 1, 5)) * values.itemsize
        if self.algorithm != "mpi" and self.own.random() < 0.4:
            before = self.own.randrange(64)
        raw = (functools.partial(collectives.Communicator.empty, None) if shared else np.empty)(
            before + values.nbytes, np.uint8
        )
        made = raw[before:].view(values.dtype)
        made[...] = values
        return made

    def blank(self, count):
        return self.array(np.full(count, 93, np.uint8).repeat(self.dtype_of.itemsize).view(self.dtype_of))

    @property
    def dtype_of(self):
        return np.dtype((np.void, self.size)) if self.dtype == "bytes" else operands.DTYPES[self.dtype]

    def spec(self, array, *counts):
        """The array as an argument of the call, in one of its forms."""
        named = NAMED.get(self.dtype) if self.algorithm != "mpi" and self.own.random() < 0.3 else None
        datatype = [PAIRS[self.dtype]] if self.dtype in PAIRS else [named] if named else []
        if self.dtype == "bytes":
            array, datatype = array.view(np.uint8), [bytes_of(self.size)]
        if counts and self.own.random() < 0.3:
            displacements = [sum(counts[0][:i]) for i in range(len(counts[0]))]
            counts = [(counts[0], displacements)]
        return [array, *counts, *datatype] if counts or datatype else array

    def values(self, rank, count):
        """What a rank contributes."""
        if self.dtype == "bytes":
            return np.resize(pool("bytes", None)[rank][self.number % 97 :], count * self.size).view(self.dtype_of)
        vector, first = pool(self.dtype, self.op)[rank], self.number * 7919 % 3000
        return vector[first : first + count] if first + count <= POOL else np.resize(vector[first:], count)

    # The call

    def arguments(self):
        """The arguments of the call on this rank, the array of the result, and the check of it."""
        return getattr(self, f"_{self.collective.base}")()

    def _barrier(self):
        return (), lambda: None

    def _bcast(self):
        expected = self.values(self.root, self.lengths)
        buffer = self.array(expected) if self.root == RANK else self.blank(self.lengths)
        return (self.spec(buffer), self.root), lambda: self.same(buffer, expected)

    def _blocks(self):
        lengths = self.lengths if self.collective.vector else [self.lengths] * SIZE
        return lengths, [sum(lengths[:i]) for i in range(SIZE + 1)]

    def _allgather(self, here=True):
        lengths, ends = self._blocks()
        expected = np.concatenate([self.values(r, n) for r, n in enumerate(lengths)])
        mine = self.array(self.values(RANK, lengths[RANK]))
        result = self.blank(ends[-1]) if here else None
        source = self.spec(mine)
        if self.in_place and here:
            result[ends[RANK] : ends[RANK + 1]] = mine
            source = MPI.IN_PLACE
        counts = (lengths,) if self.collective.vector else ()
        target = self.spec(result, *counts) if here else None
        return (source, target), lambda: here and self.same(result, expected)

    def _gather(self):
        arguments, check = self._allgather(self.root == RANK)
        return (*arguments, self.root), check

    def _scatter(self):
        lengths, ends = self._blocks()
        whole = self.values(self.root, ends[-1])
        expected = whole[ends[RANK] : ends[RANK + 1]]
        result = self.blank(lengths[RANK])
        if self.root != RANK:
            return (None, self.spec(result), self.root), lambda: self.same(result, expected)
        sent = self.array(whole)
        counts = (lengths,) if self.collective.vector else ()
        if self.in_place:
            return (self.spec(sent, *counts), MPI.IN_PLACE, self.root), lambda: self.same(sent, whole)
        return (self.spec(sent, *counts), self.spec(result), self.root), lambda: self.same(result, expected)

    def _alltoall(self):
        table = self.lengths if self.collective.vector else [[self.lengths] * SIZE] * SIZE
        if self.in_place and self.collective.vector:  # as much comes as goes
            table = [[table[min(i, j)][max(i, j)] for j in range(SIZE)] for i in range(SIZE)]
        sent = [self.values(r, sum(table[r])) for r in range(SIZE)]
        parts = [np.split(v, np.cumsum(row)[:-1]) for v, row in zip(sent, table, strict=True)]
        expected = np.concatenate([parts[r][RANK] for r in range(SIZE)])
        out, back = table[RANK], [table[r][RANK] for r in range(SIZE)]
        counts = [(out,), (back,)] if self.collective.vector else [(), ()]
        mine = self.array(sent[RANK])
        if self.in_place:
            return (MPI.IN_PLACE, self.spec(mine, *counts[1])), lambda: self.same(mine, expected)
        result = self.blank(len(expected))
        return (
            (self.spec(mine, *counts[0]), self.spec(result, *counts[1])),
            lambda: self.same(result, expected) and self.same(mine, sent[RANK]),
        )

    def _vectors(self, count):
        return [self.values(r, count) for r in range(SIZE)]

    def _allreduce(self, here=True, ranks=None):
        vectors = self._vectors(self.lengths)
        mine = self.array(vectors[RANK])
        in_place = self.in_place and here
        result = mine if in_place else self.blank(self.lengths)
        used = vectors[:ranks]

        def check():
            if here and used:
                self.reduced(used, result)
            return in_place or self.same(mine, vectors[RANK])

        source = MPI.IN_PLACE if in_place else self.spec(mine)
        return (source, self.spec(result) if here else None, OP_OF[self.op]), check

    def _reduce(self):
        arguments, check = self._allreduce(self.root == RANK)
        return (*arguments, self.root), check

    def _scan(self):
        return self._allreduce(ranks=RANK + 1)

    def _exscan(self):
        return self._allreduce(ranks=RANK)

    def _reduce_scatter(self):
        lengths, ends = self._blocks()
        vectors = self._vectors(ends[-1])
        mine = self.array(vectors[RANK])
        result = mine if self.in_place else self.blank(lengths[RANK])

        def check():
            parts = [v[ends[RANK] : ends[RANK + 1]] for v in vectors]
            self.reduced(parts, result[: lengths[RANK]])

        source = MPI.IN_PLACE if self.in_place else self.spec(mine)
        counts = (lengths,) if self.collective.vector else ()
        return (source, self.spec(result), *counts, OP_OF[self.op]), check

    def reduced(self, vectors, result):
        if self.dtype == "bytes":
            expected = np.sum([v.view(np.uint8) for v in vectors], 0, np.uint8)
            self.same(result.view(np.uint8), expected)
        else:
            operands.check(self.dtype, self.op, vectors, result)

    def same(self, found, expected):
        same = (found == expected).all() if self.dtype in PAIRS else found.tobytes() == expected.tobytes()
        assert same, f"{found} is not {expected}"
        return True

    # Running it

    def begin(self, comm):
        """Make the call; returns what is to be done to end and to check it."""
        arguments, check = self.arguments()
        options = {"algorithm": self.algorithm} if self.algorithm else {}  # none at all: perhaps the fast path
        if self.deterministic:
            options["deterministic"] = True
        elif self.form == "blocking" and self.algorithm != "mpi" and self.own.random() < 0.1:
            options["timeout"] = 600
        name = self.collective.method
        try:
            if self.form == "blocking":
                getattr(comm, name)(*arguments, **options)
                return check
            if self.form == "starting":
                request = getattr(comm, "I" + self.collective.name)(*arguments, **options)
            else:
                request = getattr(comm, name + "_init")(*arguments, **options)
                for _ in range(0 if self.in_place else self.restarts):
                    request.Start()
                    request.Wait()
                    check()
                request.Start()
        except NotImplementedError:  # this MPI has no persistent collectives of its own
            assert self.algorithm == "mpi"
            return lambda: None
        self.request = request
        return lambda: self._end(request, check)

    def _end(self, request, check):
        request.Wait()
        check()
        if self.form == "lasting" and (self.algorithm == "mpi" or self.own.random() < 0.5):
            request.Free()
