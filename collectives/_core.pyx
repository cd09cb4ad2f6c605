# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The boundary to C: buffers become pointers, names become codes, and error codes become exceptions. No logic."""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, intptr_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset, strerror

import array
import os
from inspect import signature

cimport cython
cimport numpy as cnp

cnp.import_array()

cdef extern from "Python.h":
    void *PyList_GET_ITEM(list, Py_ssize_t)
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    object PyCapsule_New(void *, const char *, void *)
    void *PyCapsule_GetPointer(object, const char *) except NULL

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyDataMemAllocator:
        void *ctx
        void *(*malloc)(void *, size_t) noexcept nogil
        void *(*calloc)(void *, size_t, size_t) noexcept nogil
        void *(*realloc)(void *, void *, size_t) noexcept nogil
        void (*free)(void *, void *, size_t) noexcept nogil
    ctypedef struct PyDataMem_Handler:
        char name[127]
        unsigned char version
        PyDataMemAllocator allocator
    object PyDataMem_SetHandler(object)

cdef extern from "dlfcn.h" nogil:
    void *dlopen(const char *, int)
    void *dlsym(void *, const char *)
    const char *dlerror()
    enum:
        RTLD_NOW
        RTLD_LOCAL

__all__ = [
    "DTYPES", "OPS", "Endpoint", "Followed", "InProcess", "MPILibrary", "MismatchError", "Plan", "Task", "Program", "Request", "address",
    "broken", "dlpack_type", "ended", "exact_add", "has_kernel", "isa", "isa_supported", "itemsize", "narrow",
    "outstanding", "partition", "reduce2", "reducep",
    "scale", "select_isa", "stop_progress", "survived", "widen", "wider", "write_handle",
]

#: Names of the element types and ops; the place in the tuple is the code that C takes.
DTYPES = tuple(coll_dtype_name(i).decode() for i in range(coll_ndtypes()))
OPS = tuple(coll_op_name(i).decode() for i in range(coll_nops()))

cdef int FAILED_ISA = coll_isa_select(NULL)
if FAILED_ISA:
    raise ImportError(
        f"COLLECTIVES_ISA={os.environ.get('COLLECTIVES_ISA')!r}: this processor has none of that name; "
        f"known: {', '.join(n for n in ('baseline', 'avx2', 'avx512') if coll_isa_supported(n.encode()))}"
    )


class MismatchError(RuntimeError):
    """Another rank's message, or its part on the node, is not of the same call."""


cdef object error(int code, str what):
    """The exception for a C error code."""
    if code == COLL_ERR_MEMORY:
        return MemoryError(f"{what}: out of memory")
    if code == COLL_ERR_MESSAGE:
        return MismatchError(f"{what}: the ranks' calls differ in collective, length, type, op or root")
    if code == COLL_ERR_MPI:
        return RuntimeError(f"{what}: MPI reported an error")
    if code == COLL_ERR_OP:
        return RuntimeError(f"{what}: the user-defined op failed")
    if code == COLL_ERR_READ:
        return RuntimeError(f"{what}: the system does not let this process read another rank's memory (any more)")
    if code == COLL_ERR_SCHEDULE:
        return ValueError(f"{what}: malformed schedule")
    return ValueError(f"{what}: argument out of range")


cdef int check(int code, str what) except -1:
    if code < 0:
        raise error(code, what)
    return code


def isa():
    """Name of the instruction set in use."""
    return coll_isa().decode()


def isa_supported(str name):
    """Whether this processor has that instruction set."""
    return bool(coll_isa_supported(name.encode()))


def select_isa(str name):
    """Use that instruction set from now on; ValueError if the processor lacks it."""
    if coll_isa_select(name.encode()):
        raise ValueError(f"no instruction set {name!r} here")


def partition(size_t n, size_t parts):
    """First element of each of ``parts`` balanced parts of ``n`` elements, and ``n``: ``parts + 1`` ints."""
    if parts == 0:
        raise ValueError("cannot divide into 0 parts")
    return [coll_part(n, parts, i) for i in range(parts + 1)]


def itemsize(int dtype):
    """Bytes of one element of a type."""
    return coll_dtype_size(dtype)


def address(array):
    """Address of the first element of a NumPy array (``ctypes.data``, twenty times faster)."""
    return <uintptr_t>cnp.PyArray_DATA(<cnp.ndarray?>array)


def dlpack_type(capsule):
    """Code, bits and lanes of the elements of a DLPack capsule."""
    cdef const unsigned char *tensor = <const unsigned char *>PyCapsule_GetPointer(capsule, b"dltensor")
    return tensor[20], tensor[21], tensor[22] + 256 * tensor[23]  # after the address, the device and ndim


def has_kernel(int dtype, int op):
    """Whether the op applies to the type."""
    return coll_reducep(dtype, op) != NULL


cdef class _View:
    """A contiguous buffer, held while it lives."""

    cdef Py_buffer view

    def __cinit__(self, obj, bint writable):
        PyObject_GetBuffer(obj, &self.view, PyBUF_SIMPLE | (PyBUF_WRITABLE if writable else 0))

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef coll_reduce2_fn _reduce2(int dtype, int op) except NULL:
    cdef coll_reduce2_fn fn = coll_reduce2(dtype, op)
    if fn == NULL:
        raise TypeError(f"no {OPS[op]} for {DTYPES[dtype]}")
    return fn


def reduce2(int dtype, int op, dst, left, right):
    """``dst[i] = left[i] op right[i]`` on contiguous buffers of bytes."""
    cdef _View d = _View(dst, True), a = _View(left, False), b = _View(right, False)
    if d.view.len != a.view.len or d.view.len != b.view.len:
        raise ValueError("buffers of different lengths")
    cdef coll_reduce2_fn fn = _reduce2(dtype, op)
    cdef size_t n = <size_t>d.view.len // coll_dtype_size(dtype)
    with nogil:
        fn(d.view.buf, a.view.buf, b.view.buf, n)


def reducep(int dtype, int op, list targets, list sources):
    """Every target gets ``sources[0] op sources[1] op ...``, folded from the left; contiguous buffers of bytes."""
    cdef coll_reducep_fn fn = coll_reducep(dtype, op)
    if fn == NULL:
        raise TypeError(f"no {OPS[op]} for {DTYPES[dtype]}")
    cdef list dst = [_View(t, True) for t in targets], src = [_View(s, False) for s in sources]
    cdef int p = len(src), q = len(dst), i
    if p < 1 or q < 1 or len({(<_View>v).view.len for v in dst + src}) != 1:
        raise ValueError("needs targets and sources of one length")
    cdef size_t n = <size_t>(<_View>src[0]).view.len // coll_dtype_size(dtype)
    cdef void **pointers = <void **>PyMem_Malloc((p + q) * sizeof(void *))
    if pointers == NULL:
        raise MemoryError
    for i in range(p + q):
        pointers[i] = (<_View>(src[i] if i < p else dst[i - p])).view.buf
    with nogil:
        fn(pointers + p, q, <const void **>pointers, p, n)
    PyMem_Free(pointers)


def scale(int dtype, dst, src, int p):
    """``dst[i] = src[i] / p`` on contiguous buffers of bytes."""
    cdef _View d = _View(dst, True), s = _View(src, False)
    cdef coll_scale_fn fn = coll_scale(dtype)
    if fn == NULL:
        raise TypeError(f"no avg for {DTYPES[dtype]}")
    if d.view.len != s.view.len:
        raise ValueError("buffers of different lengths")
    with nogil:
        fn(d.view.buf, s.view.buf, p, <size_t>d.view.len // coll_dtype_size(dtype))


include "_exact.pxi"


cdef class Program:
    """A schedule with its dependencies; serves every message. ``steps`` is an array of ``schedule.STEP``.

    ``input_block`` and ``vector_block`` say what memory the caller has: all blocks (-1), none (-2), or only that one;
    ``blockwise``: block i is rank i's, so that segments cut each block, which ``divisible`` says can be done.
    """

    cdef coll_program *program
    cdef readonly int size, slots, slot_blocks, nblocks, nscratch
    cdef readonly bint blockwise, divisible

    def __cinit__(self, steps, int size, int nblocks, int nscratch, bint in_place, int input_block=-1,
                  int vector_block=-1, bint blockwise=False):
        cdef _View view = _View(steps, False)
        cdef coll_layout layout = coll_layout(size, nblocks, nscratch, in_place, input_block, vector_block, blockwise)
        cdef int code, bad
        if view.view.len % sizeof(coll_step) or view.view.len // sizeof(coll_step) > 1 << 30:
            raise ValueError("steps must be an array of schedule.STEP")
        self.program = coll_program_new(<const coll_step *>view.view.buf, view.view.len // sizeof(coll_step), &layout,
                                        &code, &bad)
        if self.program == NULL:
            raise error(code, f"step {bad}")
        self.size = size
        self.slots = self.program.nslots
        self.slot_blocks = self.program.slot_blocks
        self.nblocks = nblocks
        self.nscratch = nscratch
        self.blockwise = blockwise
        self.divisible = self.program.single or not blockwise

    def __dealloc__(self):
        coll_program_free(self.program)


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class Endpoint:
    """One rank's end of a transport; ``owner`` is kept alive with it."""

    cdef coll_endpoint *endpoint
    cdef object owner
    cdef readonly int rank, size, tag_limit
    cdef readonly size_t message_limit

    @property
    def mpi_error(self):
        """MPI's error code of the last failure, 0 if there was none."""
        return self.endpoint.mpi_error

    def __dealloc__(self):
        if self.endpoint != NULL:
            self.endpoint.transport.endpoint_free(self.endpoint)


cdef Endpoint make_endpoint(coll_endpoint *endpoint, object owner):
    if endpoint == NULL:
        raise MemoryError
    cdef Endpoint made = Endpoint.__new__(Endpoint)
    made.endpoint = endpoint
    made.owner = owner
    made.rank = endpoint.rank
    made.size = endpoint.size
    made.tag_limit = endpoint.tag_limit
    made.message_limit = endpoint.message_limit
    return made


cdef class InProcess:
    """Mailboxes between ``size`` ranks of one process; a ``seed`` other than 0 reports completions in random order.

    No message has more than ``message_limit`` bytes.
    """

    cdef coll_inproc *group
    cdef readonly int size

    def __cinit__(self, int size, unsigned seed=0, size_t message_limit=1 << 62):
        cdef int rank
        if size < 1 or message_limit < 1:
            raise ValueError("size and message_limit must be at least 1")
        self.group = coll_inproc_new(size, seed)
        if self.group == NULL:
            raise MemoryError
        for rank in range(size):
            coll_inproc_endpoint(self.group, rank).message_limit = message_limit
        self.size = size

    def __dealloc__(self):
        coll_inproc_free(self.group)

    def endpoint(self, int rank):
        """The endpoint of one rank."""
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not in a group of {self.size}")
        return make_endpoint(coll_inproc_endpoint(self.group, rank), self)


cdef class MPILibrary:
    """The MPI transport (one per ABI), loaded from its shared library; ImportError when it cannot be."""

    cdef const coll_mpi_api *api
    cdef readonly str abi

    def __cinit__(self, str path):
        cdef void *handle = dlopen(path.encode(), RTLD_NOW | RTLD_LOCAL)
        if handle == NULL:
            raise ImportError(dlerror().decode())
        self.api = <const coll_mpi_api *>dlsym(handle, b"coll_mpi")
        if self.api == NULL or self.api.version != COLL_MPI_VERSION:
            raise ImportError(f"{path} is not of this version of collectives; build again")
        self.abi = self.api.abi.decode()

    def shares_mpi(self, bint initialized, str version):
        """Whether the transport is linked to the MPI library whose state and version these are."""
        return bool(self.api.initialized()) == initialized and self.api.library_version().decode() == version.rstrip("\0")

    def endpoint(self, uintptr_t comm, owner):
        """An endpoint on the communicator with that handle; ``owner`` keeps it alive."""
        check(coll_progress_watch_end(self.api), "watch for MPI_Finalize")
        return make_endpoint(self.api.endpoint_new(<intptr_t>comm), owner)


cdef int apply_op(void *context, void *dst, const void *left, const void *right, void *spare, size_t n) noexcept with gil:
    """MPI's reduction, which may call Python, with Python's lock taken first.

    Some MPIs hold their own lock meanwhile, and other threads call MPI with Python's lock taken.
    """
    return coll_mpi_op_apply(context, dst, left, right, spare, n)


cdef class Task:
    """Something under way that progresses when it is asked to."""

    cdef coll_task task
    cdef int ranks  # of the communicator

    def progress(self, size_t budget=1 << 62):
        """Move the run on, for about ``budget`` bytes of local work; True when it is done."""
        return check(self.task.progress(self.task.self, budget), "collective") == COLL_OK

    def wait(self, bint yield_at_once=False, long limit=20_000_000):
        """Progress for up to ``limit`` ns without the GIL; True when the run is done."""
        cdef int code
        with nogil:
            code = coll_progress_wait(&self.task, NULL, yield_at_once, limit)
        return check(code, "collective") == COLL_OK

    def waiting(self):
        """Ranks whose part the run waits for."""
        cdef int n = self.ranks
        cdef int *peers = <int *>PyMem_Malloc(n * sizeof(int))
        if peers == NULL:
            raise MemoryError
        with nogil:
            n = coll_progress_waiting(&self.task, peers, n)
        found = sorted(peers[i] for i in range(n))
        PyMem_Free(peers)
        return found


cdef int set_mpi_op(coll_mpi_op *target, op, size_t itemsize) except -1:
    """``op`` is ``(library, op handle, datatype handle)``."""
    library, op_handle, type_handle = op
    target.mpi = (<MPILibrary?>library).api
    target.op = <intptr_t><uintptr_t>op_handle
    target.datatype = <intptr_t><uintptr_t>type_handle
    target.itemsize = itemsize
    return 0


cdef size_t[::1] _boundaries(Program program, cuts):
    """Boundaries of blocks as C takes them, or None."""
    if cuts is None:
        return None
    if len(cuts) != program.nblocks + 1 or min(cuts) < 0:
        raise ValueError(f"cuts: needs {program.nblocks + 1} rising boundaries")
    return array.array("L", cuts)


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class Plan(Task):
    """A program bound to an endpoint and to the shape of a message; runs any number of times, one run at a time.

    ``elements`` counts those of the whole vector. ``op`` is the code of an op with a kernel, ``(library, op handle,
    datatype handle)`` for MPI's own reduction, or None where nothing is reduced. ``cuts`` are the boundaries of the
    blocks, in elements, and ``input_cuts`` those of the input; by default blocks are as equal as can be.
    """

    cdef coll_exec *execution
    cdef coll_mpi_op mpi_op
    cdef object keep
    cdef readonly Program program
    cdef readonly Endpoint endpoint
    cdef readonly int segments, depth
    cdef readonly size_t footprint

    def __cinit__(self, Program program, Endpoint endpoint, size_t elements, size_t itemsize, int dtype, op,
                  int segments=1, int depth=2, cuts=None, input_cuts=None):
        cdef coll_message m
        cdef int code
        cdef size_t[::1] cut = _boundaries(program, cuts), input_cut = _boundaries(program, input_cuts)
        if program.size != endpoint.size:
            raise ValueError(f"a schedule for {program.size} ranks on a communicator of {endpoint.size}")
        if segments > 1 and not program.program.single and (program.blockwise or cuts is not None):
            raise ValueError("only a schedule whose steps are of single blocks can be cut in segments")
        memset(&m, 0, sizeof(m))
        m.count = elements
        m.itemsize = itemsize
        m.segments = segments
        m.depth = min(segments, depth)
        m.cuts = NULL if cut is None else &cut[0]
        m.input_cuts = NULL if input_cut is None else &input_cut[0]
        if isinstance(op, int):
            m.reduce = _reduce2(dtype, op)
            m.scale = coll_scale(dtype) if OPS[op] == "avg" else NULL
        elif op is not None:
            set_mpi_op(&self.mpi_op, op, itemsize)
            self.keep = op
            m.user_op = apply_op
            m.user_context = &self.mpi_op
        self.execution = coll_exec_new(program.program, endpoint.endpoint, &m, &code)
        if self.execution == NULL:
            raise error(code, "plan")
        self.task = coll_exec_task(self.execution)
        self.ranks = endpoint.size
        self.program = program
        self.endpoint = endpoint
        self.segments = segments
        self.depth = m.depth
        self.footprint = coll_exec_footprint(self.execution)

    def __dealloc__(self):
        # MPI may still write into the memory of a run that never ended, so that memory stays.
        if self.execution != NULL and not coll_exec_busy(self.execution):
            coll_exec_free(self.execution)

    @property
    def busy(self):
        """Whether a run is under way, or ended by an error."""
        return bool(coll_exec_busy(self.execution))

    def start(self, uintptr_t input, uintptr_t vector, int tag):
        """Begin a run on memory at two addresses, which must stay until the run is done.

        They are of what the rank has: of its one block where input or vector hold no more, 0 where it has none.
        """
        check(coll_exec_start(self.execution, <const void *>input, <void *>vector, tag), "start")


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class Request:
    """A started task in the queue of the progress thread. With a library, ``handle`` is an MPI generalized request."""

    cdef coll_request request
    cdef readonly Task task
    cdef object library

    def __cinit__(self, Task task, MPILibrary library=None):
        cdef int code
        self.task = task
        self.library = library
        self.request.task = task.task
        self.request.mpi = NULL
        if library is not None:
            self.request.mpi = library.api
            with nogil:  # a thread that holds MPI's lock may be waiting for Python's
                code = self.request.mpi.request_start(&self.request.handle, &self.request.handle_status)
            check(code, "request")
        with nogil:
            code = coll_progress_submit(&self.request)
        check(code, "progress thread")

    @property
    def handle(self):
        """MPI's handle, as an int."""
        return <uintptr_t>self.request.handle

    @property
    def done(self):
        """Whether the run has ended."""
        return self.request.status != COLL_PENDING

    def error(self):
        """What ended the run early, or None."""
        return error(self.request.status, "collective") if self.request.status < 0 else None

    def wait(self, bint yield_at_once=False, long limit=20_000_000):
        """Progress for up to ``limit`` ns without the GIL; True when the run is done."""
        cdef int code
        with nogil:
            code = coll_progress_wait(NULL, &self.request, yield_at_once, limit)
        return check(code, "collective") == COLL_OK


def write_handle(uintptr_t address, size_t size, uintptr_t handle):
    """Put an MPI handle of ``size`` bytes at an address (``MPI._addressof`` of an mpi4py object)."""
    memcpy(<void *>address, &handle, size)  # little-endian, like every machine with these MPIs: an int is the low half


def outstanding():
    """Number of queued requests that are not done."""
    return coll_progress_outstanding()


def stop_progress(long limit=0):
    """Wait up to ``limit`` ns for the requests that are not done, and end the progress thread."""
    with nogil:
        coll_progress_stop(limit)


def broken(str why):
    """Note that MPI_Finalize might hang, so that MPI_Abort takes its place."""
    coll_progress_broken(why.encode())


def survived(bint was_broken):
    """A rank died and the others go on without a communicator, which was broken or not."""
    coll_progress_survived(was_broken)


def ended():
    """Whether this process is done with MPI: MPI has been finalized, or this is the forked child of an MPI process."""
    return bool(coll_progress_ended())


include "_heap.pxi"
include "_followed.pxi"
include "_node.pxi"
include "_short.pxi"
include "_short_vectors.pxi"
include "_objects.pxi"
