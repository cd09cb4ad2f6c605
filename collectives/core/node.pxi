# The node-local engine's part of the boundary; included by _core.pyx.

#: Collectives in the order of coll_node_kind; a barrier is an all-reduce of nothing.
cdef list KINDS = ["allreduce", "reduce", "bcast", "allgather", "gather", "reduce_scatter", "scatter", "alltoall", "scan",
                   "exscan"]
cdef enum:
    VECTOR = 16
    BARRIER = 15

#: Collectives that the fast path to the engine can serve.
FAST_COLLECTIVES = ("allreduce", "reduce", "bcast", "allgather", "gather", "reduce_scatter_block", "scatter", "alltoall", "scan",
                    "exscan", "barrier", "allgatherv", "gatherv", "scatterv", "alltoallv", "reduce_scatter")


cdef int kind_of(str collective) except -1:
    """Number of one of FAST_COLLECTIVES: that of coll_node_kind, with VECTOR added where blocks differ in length."""
    if collective == "barrier":
        return BARRIER
    if collective == "reduce_scatter" or collective.endswith("v"):
        return VECTOR | <int>KINDS.index(collective.removesuffix("v"))
    return KINDS.index(collective.removesuffix("_block"))


cdef inline bint folding(coll_node_kind kind) noexcept:
    """Whether a collective applies an op; the others move bytes."""
    return kind in (COLL_NODE_ALLREDUCE, COLL_NODE_REDUCE, COLL_NODE_REDUCE_SCATTER, COLL_NODE_SCAN, COLL_NODE_EXSCAN)


cdef str collective_of(const coll_node_message *m):
    """Name of the collective of a message."""
    name = "barrier" if m.kind == COLL_NODE_ALLREDUCE and m.count == 0 and m.op < 0 else KINDS[<int>m.kind]
    if m.cuts != NULL and name != "reduce_scatter":
        return name + "v"
    return name + "_block" if m.cuts == NULL and name == "reduce_scatter" else name


cdef inline int kind_of_message(const coll_node_message *m) noexcept:
    """Number of the collective of a message."""
    cdef int kind = BARRIER if m.kind == COLL_NODE_ALLREDUCE and m.count == 0 and m.op < 0 else <int>m.kind
    return kind | VECTOR if m.cuts != NULL else kind


cdef struct Member:
    int rank, size
    size_t *cuts  # room for two tables of boundaries


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class Node:
    """A group of ranks that map each other's heaps; ``mappings`` and ``areas`` (offsets) are in their order.

    ``area`` is the own block of ``area_bytes()`` zeroed bytes, which all ranks made before any rank comes here.
    """

    cdef coll_node *node
    cdef object keep
    cdef readonly int rank, size
    cdef const coll_mpi_api *mpi  # which calls keep moving while they wait; NULL: there is none
    cdef coll_endpoint *endpoint

    def __cinit__(self, Heap heap, int rank, list mappings, list areas, HeapBlock area, MPILibrary library=None,
                  Endpoint endpoint=None):
        cdef int size = len(mappings), i
        check(coll_progress_watch_forks(), "watch for forks")
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
            raise MemoryError("no memory for a group of the node-local engine, or flags outside their heap")
        self.rank = rank
        self.size = size
        self.keep = (heap, mappings, area, library, endpoint)
        if library is not None:
            self.mpi = library.api
            self.endpoint = endpoint.endpoint

    def __dealloc__(self):
        coll_node_free(self.node)

    def read_private(self):
        """Let ranks read each other's private memory, which all of them must be able to."""
        cdef int64_t *pids = <int64_t *>PyMem_Malloc(self.size * sizeof(int64_t))
        if pids == NULL:
            raise MemoryError
        mappings = self.keep[1]
        for i in range(self.size):
            pids[i] = (<Mapping?>mappings[i]).identity.pid
        coll_node_set_processes(self.node, pids)
        PyMem_Free(pids)

    def set_limits(self, size_t copy, size_t read, size_t shortest, size_t segment, size_t stream, size_t private):
        """Bytes up to which messages are copied from the heap too, up to which all ranks read them whole, of a segment
        at least and at most, from which on results bypass the cache, and from which on private data are read where they
        lie; the same on all ranks."""
        cdef coll_node_limits limits
        limits.copy = copy
        limits.read = read
        limits.shortest = shortest
        limits.segment = segment
        limits.stream = stream
        limits.private = private
        coll_node_set_limits(self.node, &limits)

    @property
    def calls(self):
        """Number of calls that were begun in this group: the same on all ranks between them."""
        return coll_node_calls(self.node)

    def give_up(self):
        """End no call of the group any more; the other ranks see it. What is under way here is abandoned by then."""
        coll_node_give_up(self.node)

    @property
    def writers(self):
        """Ranks that still write to this rank's arrays for calls that it has given up."""
        return self.ranks(coll_node_writers)

    @property
    def quitters(self):
        """Ranks that have given up a call."""
        return self.ranks(coll_node_quitters)

    cdef list ranks(self, int (*of)(const coll_node *, int *, int) noexcept nogil):
        cdef int[64] found
        cdef int n = of(self.node, found, 64), i
        return [found[i] for i in range(n)]


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class NodePlan(Task):
    """A collective of one shape on a node, run any number of times; as :class:`Plan`, with the engine for a program.

    ``shape`` is a ``collectives.arguments.shape.Shape``.
    """

    cdef coll_node_job job
    cdef coll_node_message message
    cdef coll_mpi_op mpi_op
    cdef object keep
    cdef size_t *cuts
    cdef readonly Node node
    cdef readonly int segments, depth
    cdef readonly size_t footprint

    def __init__(self, Node node not None, shape):
        cdef coll_node_message *m = &self.message
        self.join(node)
        name = shape.collective
        m.kind = <coll_node_kind>KINDS.index("allreduce" if name == "barrier" else name)
        m.root = shape.root
        m.itemsize = shape.itemsize
        m.count = 0 if name == "barrier" else shape.elements
        m.dtype = m.op = -1
        if not folding(m.kind) or name == "barrier":
            m.type = 0 if name == "barrier" else shape.dtype + 1
            m.count = 0 if name == "barrier" else shape.elements * shape.itemsize
            m.itemsize = 1
            self.set_cuts(shape, shape.itemsize)
            return
        self.set_cuts(shape, 1)
        m.dtype = shape.dtype
        if isinstance(shape.op, int):
            m.op = shape.op
            if coll_reducep(m.dtype, m.op) == NULL:
                raise TypeError(f"no {OPS[m.op]} for {DTYPES[m.dtype]}")
        else:
            self.set_op(shape.op)

    cdef void join(self, Node node):
        self.node = node
        self.ranks = node.size
        self.segments = self.depth = 1
        self.job.mpi, self.job.endpoint = node.mpi, node.endpoint
        self.task = coll_node_task(&self.job)

    cdef int take(self, const coll_node_message *m) except -1:
        """Run this message, with boundaries of blocks of its own: the communicator's are for its next call."""
        cdef size_t n = self.node.size + 1
        self.message = m[0]
        self.message.user_spare = NULL  # the fast path knows the ops of the kernels only
        if m.cuts == NULL:
            return 0
        self.cuts = <size_t *>malloc(2 * n * sizeof(size_t))
        if self.cuts == NULL:
            raise MemoryError
        memcpy(self.cuts, m.cuts, n * sizeof(size_t))
        self.message.cuts = self.cuts
        if m.input_cuts != NULL:
            memcpy(self.cuts + n, m.input_cuts, n * sizeof(size_t))
            self.message.input_cuts = self.cuts + n
        return 0

    cdef int set_cuts(self, shape, scale) except -1:
        """The boundaries of the blocks; ValueError for a message that cannot be."""
        cdef int i, n = self.node.size + 1
        if shape.cuts is not None:
            self.cuts = <size_t *>malloc(2 * n * sizeof(size_t))
            if self.cuts == NULL:
                raise MemoryError
            for i in range(n):
                self.cuts[i] = shape.cuts[i] * scale
                self.cuts[n + i] = (shape.cuts if shape.input_cuts is None else shape.input_cuts)[i] * scale
            self.message.cuts = self.cuts
            self.message.input_cuts = self.cuts + n if shape.input_cuts is not None else NULL
        if not coll_node_message_ok(&self.message, self.node.size):
            raise ValueError(f"{shape.collective}: root, counts or size of an element out of range")
        return 0

    cdef int set_op(self, op) except -1:
        """An op that only MPI can apply."""
        cdef coll_node_message *m = &self.message
        if m.itemsize > COLL_NODE_PIECE:
            raise ValueError(f"elements of {m.itemsize} bytes")
        set_mpi_op(&self.mpi_op, op, m.itemsize)
        self.keep = op
        self.footprint = 2 * COLL_NODE_PIECE
        m.user_op = apply_op
        m.user_context = &self.mpi_op
        m.user_spare = <char *>malloc(self.footprint)
        if m.user_spare == NULL:
            raise MemoryError
        return 0

    def __dealloc__(self):
        free(self.message.user_spare)
        free(self.cuts)

    @property
    def busy(self):
        """Whether a run is under way, or ended by an error."""
        return self.job.call.number != 0 and self.job.call.status != COLL_OK

    @property
    def pending(self):
        """Whether a run is under way."""
        return self.job.call.number != 0 and self.job.call.status == COLL_PENDING

    cdef int begin(self, const void *input, void *vector, int tag) except -1:
        self.message.input = input if self.message.kind != COLL_NODE_BCAST else <const void *>vector
        self.message.output = vector
        coll_node_begin(&self.job.call, self.node.node, &self.message)
        return 0

    cdef tuple what(self):
        cdef const coll_node_message *m = &self.job.call.message
        if self.key is not None:
            return Task.what(self)
        return collective_of(m), "shm", m.count * m.itemsize, m.root

    def call(self):
        """The call that it runs, or ran last, as a Call without a number; bytes of a type where they are moved."""
        cdef const coll_node_message *m = &self.job.call.message
        if self.key is not None:
            return Task.call(self)
        return DESCRIBE(collective_of(m), "shm", m.count, m.type - 1 if m.type else m.dtype, m.op, m.root)


cdef NodePlan node_plan(Node node):
    """A plan without a message of its own."""
    cdef NodePlan made = NodePlan.__new__(NodePlan)
    made.join(node)
    return made


def area_bytes():
    """Bytes of flags that a rank gives to a group."""
    return coll_node_area_bytes()
