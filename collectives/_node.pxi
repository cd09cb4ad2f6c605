# The node-local engine's part of the boundary; included by _core.pyx.

cdef class Heap:
    """The shared memory of this process, ``size`` bytes of address space; OSError where there can be none."""

    cdef coll_heap *heap
    cdef char *base
    cdef readonly size_t size

    def __cinit__(self, size_t size, bint posix=False):
        self.heap = coll_heap_new(size, COLL_HEAP_POSIX if posix else COLL_HEAP_MEMFD)
        if self.heap == NULL:
            raise OSError(errno, f"no shared memory for the heap: {strerror(errno).decode()}")
        self.base = coll_heap_base(self.heap)
        self.size = coll_heap_size(self.heap)

    def __dealloc__(self):
        coll_heap_free(self.heap)

    def identify(self):
        """What a peer needs to map this heap, as bytes."""
        cdef coll_heap_id identity = coll_heap_identify(self.heap)
        return (<char *>&identity)[:sizeof(identity)]

    def unlink(self):
        """All peers have mapped it: take away its name, if it has one."""
        coll_heap_unlink(self.heap)

    def __contains__(self, uintptr_t address):
        return bool(coll_heap_has(self.base, self.size, <const void *>address))

    @property
    def reserved(self):
        """Bytes that have memory behind them at present."""
        return coll_heap_reserved(self.heap)


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class HeapBlock:
    """Memory on a heap, given back when the last array on it is collected; a writable buffer of bytes."""

    cdef Heap heap
    cdef void *memory
    cdef Py_ssize_t nbytes
    cdef Py_ssize_t shape[1]

    def __cinit__(self, Heap heap, size_t nbytes, bint zero=False):
        self.heap = heap
        self.nbytes = nbytes
        with nogil:
            self.memory = coll_heap_alloc(heap.heap, nbytes)
        if self.memory == NULL:
            raise MemoryError(f"no {nbytes} bytes of shared memory for the heap: {strerror(errno).decode()}")
        if zero:
            with nogil:
                memset(self.memory, 0, nbytes)

    def __dealloc__(self):
        if self.memory != NULL:
            coll_heap_release(self.heap.heap, self.memory)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.memory, self.nbytes, 0, flags)

    @property
    def offset(self):
        """Where the block begins in its heap."""
        return <char *>self.memory - self.heap.base


cdef class Mapping:
    """A peer's heap, mapped here; OSError where it cannot be."""

    cdef coll_heap_id identity
    cdef char *base

    def __cinit__(self, bytes identity):
        if len(identity) != sizeof(coll_heap_id):
            raise ValueError("not a heap's identity")
        memcpy(&self.identity, <char *>identity, sizeof(coll_heap_id))
        self.base = coll_heap_attach(&self.identity)
        if self.base == NULL:
            raise OSError(errno, strerror(errno).decode())

    def __dealloc__(self):
        coll_heap_detach(&self.identity, self.base)


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class Node:
    """A group of ranks that map each other's heaps; ``mappings`` and ``areas`` (offsets) are in their order.

    ``area`` is the own block of ``area_bytes()`` zeroed bytes, which all ranks made before any rank comes here.
    """

    cdef coll_node *node
    cdef object keep
    cdef readonly int rank, size
    cdef public bint yield_at_once
    cdef public bint usable  # by the short path
    cdef coll_node_job job   # of the short path
    cdef uint64_t begun, ended

    def __cinit__(self, Heap heap, int rank, list mappings, list areas, HeapBlock area, MPILibrary library=None,
                  Endpoint endpoint=None):
        cdef int size = len(mappings), i
        cdef char **bases = <char **>PyMem_Malloc(size * (sizeof(char *) + sizeof(size_t) + sizeof(uint64_t)))
        if bases == NULL:
            raise MemoryError
        cdef size_t *limits = <size_t *>(bases + size)
        cdef uint64_t *offsets = <uint64_t *>(limits + size)
        for i in range(size):
            bases[i] = (<Mapping?>mappings[i]).base if i != rank else heap.base
            limits[i] = (<Mapping?>mappings[i]).identity.size if i != rank else heap.size
            offsets[i] = areas[i]
        self.node = coll_node_new(heap.heap, size, rank, bases, limits, offsets)
        PyMem_Free(bases)
        if self.node == NULL:
            raise MemoryError
        self.rank = rank
        self.size = size
        self.usable = True
        self.keep = (heap, mappings, area, library, endpoint)
        if library is not None:
            self.job.mpi = library.api
            self.job.endpoint = endpoint.endpoint

    def __dealloc__(self):
        coll_node_free(self.node)

    def set_limits(self, size_t read, size_t segment, size_t stream):
        """Bytes up to which messages are read whole, of a segment, and from which results bypass the cache."""
        cdef coll_node_limits limits
        limits.read = read
        limits.segment = segment
        limits.stream = stream
        coll_node_set_limits(self.node, &limits)

    @property
    def last(self):
        """Bytes and seconds of the last call by :func:`node_allreduce`, or None."""
        if self.ended == 0:
            return None
        cdef size_t nbytes = self.job.call.message.count * self.job.call.message.itemsize
        return nbytes, coll_ticks_to_seconds(self.ended - self.begun)

    def forget(self):
        """There is a newer call than :attr:`last`."""
        self.ended = 0

    def wait(self, bint yield_at_once, long limit):
        """Go on with a call that :func:`node_allreduce` left under way, for up to ``limit`` ns; True when it is done."""
        cdef coll_task task = coll_node_task(&self.job)
        cdef int code
        with nogil:
            code = coll_progress_wait(&task, NULL, yield_at_once, limit)
        if code == COLL_OK:
            self.ended = coll_ticks()
        return check(code, "allreduce (shm)") == COLL_OK

    def waiting(self):
        """Ranks that the call under way waits for."""
        cdef int *ranks = <int *>PyMem_Malloc(self.size * sizeof(int))
        if ranks == NULL:
            raise MemoryError
        cdef int n = coll_node_waiting(&self.job.call, ranks, self.size), i
        found = [ranks[i] for i in range(n)]
        PyMem_Free(ranks)
        return found


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class NodePlan(Task):
    """An all-reduce of one shape on a node, run any number of times; as :class:`Plan`, with the engine for a program."""

    cdef coll_node_job job
    cdef coll_node_message message
    cdef coll_mpi_op mpi_op
    cdef object keep
    cdef readonly Node node
    cdef readonly int segments, depth
    cdef readonly size_t footprint

    def __cinit__(self, Node node, size_t count, size_t itemsize, int dtype, op):
        self.node = node
        self.ranks = node.size
        self.segments = self.depth = 1
        self.message.count = count
        self.message.itemsize = itemsize
        self.message.dtype = dtype
        self.job.mpi = node.job.mpi
        self.job.endpoint = node.job.endpoint
        self.task = coll_node_task(&self.job)
        if isinstance(op, int):
            self.message.op = op
            if coll_reducep(dtype, op) == NULL:
                raise TypeError(f"no {OPS[op]} for {DTYPES[dtype]}")
            return
        if itemsize > COLL_NODE_PIECE:
            raise ValueError(f"elements of {itemsize} bytes")
        set_mpi_op(&self.mpi_op, op, itemsize)
        self.keep = op
        self.footprint = 2 * COLL_NODE_PIECE
        self.message.op = -1
        self.message.user_op = apply_op
        self.message.user_context = &self.mpi_op
        self.message.user_spare = <char *>malloc(self.footprint)
        if self.message.user_spare == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.message.user_spare)

    @property
    def busy(self):
        """Whether a run is under way, or ended by an error."""
        return self.job.call.number != 0 and self.job.call.status != COLL_OK

    def start(self, uintptr_t input, uintptr_t vector, int tag):
        """Begin a run on memory at two addresses, which must stay until the run is done; there are no tags here."""
        self.message.input = <const void *>input
        self.message.output = <void *>vector
        coll_node_begin(&self.job.call, self.node.node, &self.message)


def area_bytes():
    """Bytes of flags that a rank gives to a group."""
    return coll_node_area_bytes()


cdef int[256] DTYPE_OF_NUMPY  # kernels' code of each built-in NumPy type, or -1
cdef object IN_PLACE = None
cdef list OP_OBJECTS = []  # mpi4py's predefined ops, most used first
cdef list OP_CODES = []
def know(in_place, ops, dtypes):
    """Learn mpi4py's ``IN_PLACE`` and ops (object, code), and NumPy's types (number, code), for the short path."""
    global IN_PLACE
    cdef int i
    for i in range(256):
        DTYPE_OF_NUMPY[i] = -1
    for number, code in dtypes:
        DTYPE_OF_NUMPY[<int>number] = code
    IN_PLACE = in_place
    for op, code in ops:
        OP_OBJECTS.append(op)
        OP_CODES.append(code)


cdef inline bint plain(object array, bint writable):
    """Whether it is a NumPy array of a built-in type in native order, contiguous and, if asked for, writable."""
    if type(array) is not cnp.ndarray:
        return False
    cdef int flags = cnp.PyArray_FLAGS(<cnp.ndarray>array)
    return (cnp.PyArray_TYPE(<cnp.ndarray>array) < 256 and cnp.PyArray_ISNOTSWAPPED(<cnp.ndarray>array)
            and flags & (cnp.NPY_ARRAY_C_CONTIGUOUS | cnp.NPY_ARRAY_F_CONTIGUOUS)
            and (not writable or flags & cnp.NPY_ARRAY_WRITEABLE))


cdef int fill(coll_node_message *m, object send, object recv, object op) except -1:
    """The message of an ordinary call; 0 where it is not ordinary and wants the long way."""
    cdef cnp.ndarray target, source
    cdef Py_ssize_t i, nbytes
    if not plain(recv, True):
        return 0
    target = <cnp.ndarray>recv
    if send is IN_PLACE:
        source = target
    elif plain(send, False):
        source = <cnp.ndarray>send
    else:
        return 0
    m.dtype = DTYPE_OF_NUMPY[cnp.PyArray_TYPE(target)]
    m.count = cnp.PyArray_SIZE(target)
    m.itemsize = cnp.PyArray_ITEMSIZE(target)
    if m.dtype < 0 or cnp.PyArray_TYPE(source) != cnp.PyArray_TYPE(target) or <size_t>cnp.PyArray_SIZE(source) != m.count:
        return 0
    m.input = cnp.PyArray_DATA(source)
    m.output = cnp.PyArray_DATA(target)
    nbytes = m.count * m.itemsize
    if m.input != m.output and <char *>m.input < <char *>m.output + nbytes and <char *>m.output < <char *>m.input + nbytes:
        return 0
    for i in range(len(OP_OBJECTS)):
        if <void *>op == PyList_GET_ITEM(OP_OBJECTS, i):
            m.op = OP_CODES[i]
            m.user_op = NULL
            return coll_reducep(m.dtype, m.op) != NULL
    return 0


cpdef int node_allreduce(Node node, object send, object recv, object op) except -2:
    """All-reduce on the node, if the call is an ordinary one.

    1: done; 0: not an ordinary one, nothing has been done; -1: begun, and to be gone on with by ``node.wait``.
    """
    cdef coll_node_message message
    cdef uint64_t begun = coll_ticks()
    if not node.usable or coll_progress_ended() or not fill(&message, send, recv, op):
        return 0
    coll_node_begin(&node.job.call, node.node, &message)
    cdef int status = coll_node_progress(&node.job.call) if node.yield_at_once else coll_node_spin(&node.job.call)
    node.begun = begun
    if status != COLL_OK:
        check(status, "allreduce (shm)")
        return -1
    node.ended = coll_ticks()
    return 1


def short_way(SUM, long_way):
    """``Communicator.Allreduce``: an ordinary call on a node goes straight to the engine, others to ``long_way``.

    A method, written here because a Python function would take as long as the all-reduce of 8 bytes that it calls.
    """

    def Allreduce(self, sendbuf, recvbuf, op=SUM, *, algorithm=None, deterministic=None, timeout=None, stream=None,
                  engine=None):
        cdef int state
        if algorithm is None and deterministic is None and timeout is None and stream is None and engine is None:
            node = self._node
            if node is not None:
                state = node_allreduce(<Node>node, sendbuf, recvbuf, op)
                if state > 0:
                    return
                if state < 0:
                    return self._finish(sendbuf, recvbuf)
        long_way(self, sendbuf, recvbuf, op, algorithm, deterministic, timeout, stream, engine)

    Allreduce.__doc__ = long_way.__doc__
    Allreduce.__qualname__ = "Communicator.Allreduce"
    Allreduce.__module__ = long_way.__module__
    return Allreduce


# NumPy's allocator (NEP 49): arrays from a size on live on the heap.

cdef Heap array_heap = None
cdef coll_heap *array_memory = NULL
cdef char *array_base = NULL
cdef size_t array_size = 0
cdef size_t array_threshold = 0


cdef inline bint on_heap(const void *memory) noexcept nogil:
    return array_memory != NULL and coll_heap_has(array_base, array_size, memory)


cdef void *array_malloc(void *context, size_t nbytes) noexcept nogil:
    # A heap that is full is no reason to fail: the array is private then, and collectives copy it.
    cdef void *memory = coll_heap_alloc(array_memory, nbytes) if nbytes >= array_threshold else NULL
    return memory if memory != NULL else malloc(nbytes)


cdef void *array_calloc(void *context, size_t count, size_t each) noexcept nogil:
    if each and count > <size_t>-1 // each:
        return NULL
    cdef void *memory = coll_heap_alloc(array_memory, count * each) if count * each >= array_threshold else NULL
    if memory == NULL:
        return calloc(count, each)
    return memset(memory, 0, count * each)


cdef void array_free(void *context, void *memory, size_t nbytes) noexcept nogil:
    if on_heap(memory):
        coll_heap_release(array_memory, memory)
    else:
        free(memory)


cdef void *array_realloc(void *context, void *memory, size_t nbytes) noexcept nogil:
    if memory == NULL:
        return array_malloc(context, nbytes)
    if not on_heap(memory):
        return realloc(memory, nbytes)
    cdef size_t held = coll_heap_usable(memory)
    if nbytes <= held:
        return memory
    cdef void *larger = array_malloc(context, nbytes)
    if larger != NULL:
        memcpy(larger, memory, held)
        coll_heap_release(array_memory, memory)
    return larger


cdef PyDataMem_Handler array_handler


def share_arrays(Heap heap, size_t threshold):
    """Put NumPy's new arrays of at least ``threshold`` bytes on the heap; returns the handler that was in force.

    In force in the current context (PEP 567): threads started otherwise keep NumPy's own allocator.
    """
    global array_heap, array_memory, array_base, array_size, array_threshold
    array_heap = heap  # never let go: arrays may outlive everybody else
    array_memory, array_base, array_size = heap.heap, heap.base, heap.size
    array_threshold = threshold
    memcpy(array_handler.name, b"collectives", 12)
    array_handler.version = 1
    array_handler.allocator.malloc = array_malloc
    array_handler.allocator.calloc = array_calloc
    array_handler.allocator.realloc = array_realloc
    array_handler.allocator.free = array_free
    return PyDataMem_SetHandler(PyCapsule_New(&array_handler, b"mem_handler", NULL))


def restore_handler(handler):
    """Put a handler that :func:`share_arrays` returned back in force."""
    PyDataMem_SetHandler(handler)
