"""Random descriptions of buffers: understood or refused by TypeError or ValueError, and nothing else is written.

FUZZ_SECONDS=N goes on for N seconds (`make fuzz`), from FUZZ_SEED on.
"""

import ctypes
import gc
import os
import resource
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from mpi4py import MPI

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
DTYPES = ("u1", "i4", "f4", "f8", "c16", "?", "f2", "S3", "S8", "O", "M8[s]", "i4,f8", "V5")
REDUCTIONS = ("Allreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter_block", "Reduce_scatter")
CALLS = (
    *REDUCTIONS, "Allgather", "Gather", "Scatter", "Alltoall", "Allgatherv", "Gatherv", "Scatterv", "Alltoallv",
)  # fmt: skip


@st.composite
def datatypes(draw):
    """A predefined type, or one derived from it; committed, and left to the end of the process."""
    kind = draw(st.sampled_from([MPI.BYTE, MPI.INT, MPI.FLOAT, MPI.DOUBLE, MPI.C_BOOL, MPI.DOUBLE_INT, "d", "i", "x"]))
    small = st.integers(0, 5)
    if isinstance(kind, str):
        return kind
    for how in draw(st.lists(st.sampled_from(["contiguous", "vector", "indexed", "resized"]), max_size=2)):
        if how == "contiguous":
            kind = kind.Create_contiguous(draw(small))
        elif how == "vector":
            kind = kind.Create_vector(draw(small), draw(small), draw(st.integers(-3, 5)))
        elif how == "indexed":
            kind = kind.Create_indexed([draw(small), draw(small)], [draw(small), draw(small)])
        else:
            kind = kind.Create_resized(draw(st.integers(-8, 8)), draw(st.integers(-8, 40)))
    return kind.Commit()


ODD = st.sampled_from([-1, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64, 2**70, -(2**63), 1.5, None, "3", True])
NUMBERS = st.one_of(st.integers(0, 12), ODD)
COUNTS = st.one_of(NUMBERS, st.lists(NUMBERS, max_size=2), st.tuples(NUMBERS, NUMBERS))


@st.composite
def specifications(draw, arena):
    """A buffer within the arena (or no buffer), with or without count, displacement and type."""
    first, length = draw(st.integers(0, 64)), draw(st.integers(0, 96))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    memory = (
        np.zeros(2, "O")
        if dtype.hasobject
        else arena[first : first + length // dtype.itemsize * dtype.itemsize].view(dtype)
    )
    how = draw(st.sampled_from(["plain", "plain", "strided", "read-only", "bytes", "None", "2d"]))
    if how == "strided":
        memory = memory[::2]
    elif how == "read-only":
        memory = memory.view()
        memory.flags.writeable = False
    elif how == "bytes":
        memory = bytes(length)
    elif how == "None":
        memory = None
    elif how == "2d" and memory.size % 2 == 0:
        memory = memory.reshape(2, -1).T
    parts = draw(st.sampled_from(["", "c", "t", "ct", "cd", "cdt", "cdtx"]))
    if memory is None:  # displacements would be addresses
        parts = parts.replace("d", "")
    made = {"c": COUNTS, "d": COUNTS, "t": datatypes(), "x": NUMBERS}
    return [memory, *(draw(made[part]) for part in parts)] if parts else memory


@settings(max_examples=400, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def descriptions(comm, served, data):
    sending, receiving = (np.full(256, mark, np.uint8) for mark in (1, 7))
    # Elements may lie before a view, but not before the array that it is a view of.
    arenas = [np.frombuffer(memoryview(whole)[32:192], np.uint8) for whole in (sending, receiving)]
    name = data.draw(st.sampled_from(CALLS))
    send = data.draw(st.one_of(specifications(arenas[0]), st.just(MPI.IN_PLACE)))
    receive = data.draw(specifications(arenas[1]))
    options = data.draw(st.sampled_from([{}, {"algorithm": "naive"}, {"algorithm": "shm"}, {"algorithm": "mpi"}]))
    try:
        getattr(comm, name)(send, receive, **options)
        served.add(name)
    except (TypeError, ValueError, MemoryError):  # the last: elements that do not advance can be sent in any number
        pass
    except (MPI.Exception, BufferError, KeyError, OverflowError):
        assert options.get("algorithm") == "mpi" or name in REDUCTIONS  # that MPI is to serve; mpi4py says why not
    assert (sending == 1).all()
    assert (receiving[:32] == 7).all()
    assert (receiving[192:] == 7).all()


@pytest.fixture
def little_memory():
    """A GiB more than there is, so that sending little memory very often ends at once."""
    limit = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limit[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limit)


def test_descriptions(comm, little_memory):
    number, end, served = int(os.environ.get("FUZZ_SEED", "1")), time.monotonic() + SECONDS, set()
    while not served or time.monotonic() < end:
        seed(number)(descriptions)(comm, served)
        number += 1
    assert len(served) > len(CALLS) // 2  # not all of them are refused
    x = np.arange(4.0)
    comm.Allreduce(MPI.IN_PLACE, x)  # and it still works
    assert x.tolist() == [0, 1, 2, 3]


def test_counts_whose_bytes_overflow(comm):
    """Sums of bytes that wrap to the length of the array."""
    x, y = np.zeros(1), np.zeros(1)
    for count in (2**61 + 1, 2**64 + 1, 2**70):
        for call in (lambda n=count: comm.Alltoallv([x, [n]], [y, [n]]), lambda n=count: comm.Allgatherv(x, [y, [n]])):
            with pytest.raises((ValueError, TypeError)):
                call()


@pytest.mark.parametrize("spec", [[None, 0, 2**70, "i"], [None, 0, 2**61, MPI.DOUBLE], [MPI.BOTTOM, 2**61, "i"]])
def test_places_beyond_any_memory(comm, spec):
    """Refused before anything is begun, and with it the communicator is as good as before."""
    calls = [lambda: comm.Exscan(spec, spec), lambda: comm.Bcast(spec), lambda: comm.Iallgather(spec, spec)]
    for call in calls:
        with pytest.raises(ValueError, match="beyond any memory"):
            call()
    with pytest.raises(ValueError, match="beyond any memory"):
        comm.Alltoallv([MPI.BOTTOM, [1], [2**70], "i"], [MPI.BOTTOM, [1], [2**70], "i"])
    y = np.zeros(1)
    comm.Allreduce(np.ones(1), y)
    assert y == 1


@pytest.mark.parametrize("displ", [-8, 2**63 - 4, 2**70])
def test_blocks_beyond_any_memory(comm, displ):
    """By absolute addresses: as above. Displacements of empty blocks, or beside IN_PLACE, have no meaning."""
    y = np.ones(1, "i4")
    beyond, right = [MPI.BOTTOM, [1], [displ], [MPI.INT]], [y, [1], [0], [MPI.INT]]
    for call in (comm.Alltoallw, comm.Ialltoallw, comm.Alltoallw_init):
        with pytest.raises(ValueError, match="^sendbuf: block 0, .* is beyond any memory"):
            call(beyond, right)
        with pytest.raises(ValueError, match="^recvbuf: block 0, .* is beyond any memory"):
            call(right, beyond)
    comm.Alltoallw([MPI.BOTTOM, [0], [displ], [MPI.INT]], [y, [0], [0], [MPI.INT]])
    comm.Alltoallw([MPI.IN_PLACE, [1], [displ], [MPI.INT]], right)
    x = np.array([7], "i4")
    comm.Alltoallw([MPI.BOTTOM, [1], [MPI.Get_address(x)], [MPI.INT]], right)
    assert y == 7


def test_none_with_addresses_as_displacements(comm):
    """Is MPI.BOTTOM, as in mpi4py. Small displacements are no addresses: the program has forgotten its buffer."""
    x, y = np.array([7], "i4"), np.zeros(1, "i4")
    here, there = MPI.Get_address(x), MPI.Get_address(y)
    four = MPI.BYTE.Create_contiguous(4).Create_resized(0, 1).Commit()  # so that displacements are in bytes
    for turn, call in enumerate((comm.Alltoallw, comm.Alltoallv, comm.Gatherv)):
        x[0] = 7 + turn
        kind = [MPI.INT] if call == comm.Alltoallw else four
        call([None, [1], [here], kind] if call != comm.Gatherv else x, [None, [1], [there], kind])
        assert y == 7 + turn
        with pytest.raises(ValueError, match="^recvbuf: the buffer is None, but the counts are not all 0"):
            call(x if call == comm.Gatherv else [x, [1], [0], [MPI.INT]] if kind != four else [x, [1]],
                 [None, [1], [4], kind])  # fmt: skip
    four.Free()


class Tensor:
    """What this library asks of PyTorch's tensors; ``storage`` can be replaced, as by ``tensor.data = ...``."""

    device, dtype = SimpleNamespace(type="cpu"), "torch.float64"

    def __init__(self, storage):
        self.storage = storage

    def data_ptr(self):
        return MPI.Get_address(self.storage)

    def is_contiguous(self):
        return True

    def numel(self):
        return self.storage.size

    def element_size(self):
        return self.storage.itemsize

    def detach(self):
        return Tensor(self.storage)


def test_the_memory_of_a_tensor_stays_though_the_tensor_gets_other_memory(comm):
    tensor, found = Tensor(np.full(4, 3.0)), np.zeros(4)
    storage = weakref.ref(tensor.storage)
    plan = comm.Allreduce_init(tensor, found)
    tensor.storage = np.zeros(0)
    assert storage() is not None
    plan.Start()
    plan.Wait()
    assert (found == 3).all()
    plan.Free()
    del plan
    gc.collect()
    assert storage() is None


@pytest.mark.parametrize("count", [1, 3, 2**31 - 1])
def test_elements_that_do_not_advance(comm, count):
    """Datatypes of extent 0 and below: as many elements as one likes in little memory, but not in none."""
    made = [
        MPI.BYTE.Create_resized(0, 0), MPI.BYTE.Create_indexed([1, 1], [0, 0]).Create_resized(0, 0),
        MPI.INT.Create_vector(2, 1, 1).Create_resized(0, -8),
    ]  # fmt: skip
    for datatype in made:
        datatype.Commit()
        with pytest.raises(ValueError, match=f"recvbuf: {count} elements from 0 on in a buffer of 0 bytes"):
            comm.Allgather(MPI.IN_PLACE, [np.zeros(0, "u1"), count, datatype])
        with pytest.raises(ValueError, match="recvbuf: "):
            comm.Allgatherv(MPI.IN_PLACE, [np.zeros(0, "u1"), [count], [0], datatype])
        datatype.Free()


def test_elements_that_overlap(comm):
    """More bytes than there are can be sent, from the same place again and again, but not be received."""
    x, y = np.arange(1, 3, dtype="i4"), np.zeros(3, "i4")
    again, closer = MPI.INT.Create_resized(0, 0).Commit(), MPI.INT.Create_resized(0, 1).Commit()
    for call, many in ((comm.Allgather, lambda n: n), (comm.Allgatherv, lambda n: [n])):
        call([x, 3, again], [y, many(3)])
        assert y.tolist() == [1, 1, 1]
        for algorithm in ("naive", "mpi"):
            for datatype, count in ((again, 4), (closer, 6), (again, 2**31), (again, 2**60)):
                with pytest.raises(ValueError, match=f"recvbuf: {count} elements of 4 bytes overlap in a buffer of 12"):
                    call(MPI.IN_PLACE, [y, many(count), datatype], algorithm=algorithm)
        with pytest.raises((ValueError, MemoryError)):
            call([x, 2**40, again], [y, many(3)])
    for call, many in ((comm.Scatter, 2**63), (comm.Scatterv, [2**63])):
        with pytest.raises(ValueError, match=f"sendbuf: {2**63} elements from 0 on are beyond any memory"):
            call([x, many, again], y)
    again.Free()
    closer.Free()


def test_gap_after_what_lies_before(comm):
    """A datatype as long as its data, but with a part of them below it: an op of MPI's own needs all of its places."""
    below = MPI.INT.Create_hindexed([1, 1], [-4, 4]).Create_resized(0, 8).Commit()
    op = MPI.Op.Create(lambda a, b, _: None, commute=True)
    x, y = np.zeros(8, "i4"), np.zeros(8, "i4")
    with pytest.raises(ValueError, match="derived datatype with gaps"):
        comm.Allreduce([x[2:], 2, below], [y[2:], 2, below], op, algorithm="naive")
    op.Free()
    below.Free()


def test_elements_before_a_buffer(comm):
    """Negative extents and lower bounds reach back as far as the array goes that the buffer is a view of."""
    back = MPI.INT.Create_resized(0, -4).Commit()
    below = MPI.INT.Create_hindexed([1], [-8]).Commit()
    x, y = np.arange(10, dtype="i4"), np.zeros(3, "i4")
    for spec, found in (([x[5:], 3, back], [5, 4, 3]), ([x[2:], 3, below], [0, 1, 2])):
        comm.Allgather(spec, y)
        assert y.tolist() == found
        comm.Allgatherv(spec, [y, [3]])
        assert y.tolist() == found
    for spec in ([x[1:], 3, back], [x[1:], 3, below], [x, 2**31 - 1, back], [bytes(x[2:]), 3, below]):
        for call in (lambda s=spec: comm.Allgather(s, y), lambda s=spec: comm.Allgatherv(s, [y, [3]])):
            with pytest.raises(ValueError, match=f"sendbuf: {spec[1]} elements from 0 on"):
                call()
    back.Free()
    below.Free()


@pytest.mark.parametrize("options", [{}, {"algorithm": "linear"}, {"algorithm": "mpi"}], ids=str)
def test_displacements_before_a_buffer(comm, options):
    """They may be negative as far as the array goes that the buffer is a view of, as in mpi4py."""
    for kind in ("i4", "f2"):  # MPI does not know the latter
        x, y = np.arange(10, dtype=kind), np.zeros(10, kind)
        comm.Alltoallv([x[4:], ([3], [-4])], [y, [3]], **options)
        assert y.tolist() == [0, 1, 2, *[0] * 7]
        comm.Alltoallv([x, [3]], [y[9:], ([3], [-2])], **options)
        assert y.tolist() == [0, 1, 2, 0, 0, 0, 0, 0, 1, 2]
    outside = [x[4:], ([3], [-5])], [memoryview(bytes(12))[4:], ([1], [-1]), MPI.INT]
    for spec in outside:
        with pytest.raises(ValueError, match=f"sendbuf: {spec[1][0][0]} elements from {spec[1][1][0]} on, for rank 0"):
            comm.Alltoallv(spec, [y, [3]], **options)


OBJECTS = (
    np.array([None, "text"]), np.zeros(2, "O,i4"), memoryview(np.array([None, "text"])), (ctypes.py_object * 2)(1, 2),
)  # fmt: skip


@pytest.mark.parametrize("algorithm", [None, "shm", "naive", "mpi"])
@pytest.mark.parametrize("objects", OBJECTS, ids=["array", "records", "memoryview", "ctypes"])
def test_objects_are_no_bytes(comm, objects, algorithm):
    """Pointers are neither sent nor overwritten, whatever datatype is said to be there."""
    options = {"algorithm": algorithm} if algorithm else {}
    data = np.ones(16, "u1")
    for spec in (objects, [objects, 2, "d"], [objects, 16, MPI.BYTE], [objects, 0, MPI.BYTE]):
        for call in (comm.Allgather, comm.Alltoall, comm.Gather, comm.Allreduce, comm.Allgatherv):
            with pytest.raises(TypeError, match="sendbuf: the buffer holds Python objects"):
                call(spec, data, **options)
            for source in (data, MPI.IN_PLACE):
                with pytest.raises(TypeError, match="recvbuf: the buffer holds Python objects"):
                    call(source, spec, **options)


def test_names_are_no_objects(comm):
    """What makes an object of a field is its format, not its name."""
    x, y = np.array([(3, 4.0)], [("O", "i4"), ("TO", "f8")]), np.zeros(12, "u1")
    comm.Allgather([memoryview(x), 12, MPI.BYTE], y)
    assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize("kinds", ["S1 S9", "U1 U9", "V1 V9", "i4 i4,f8", "i4,f8 i4"])
def test_types_of_one_number(comm, kinds):
    """Strings and records of different lengths have one number in NumPy: elements alike in number are not in bytes."""
    arena = np.full(256, 7, np.uint8)
    for a, b in (kinds.split(), kinds.split()[::-1]):
        x, y = np.ones(16, a), arena[64 : 64 + 4 * np.dtype(b).itemsize].view(b)
        for call in (comm.Allgather, comm.Alltoall, comm.Gather, comm.Scatter):
            with pytest.raises(ValueError, match="this rank's block"):
                call(x[:4], y)
        assert (arena == 7).all()
