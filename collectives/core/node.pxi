# The interface to the node-local engine; included by _core.pyx.

#: Collectives in the order of coll_node_kind; a barrier is an all-reduce of 0 elements.
cdef list KINDS = ["allreduce", "reduce", "bcast", "allgather", "gather", "reduce_scatter", "scatter", "alltoall", "scan",
                   "exscan"]
cdef enum:
    VECTOR = 16
    BARRIER = 15
    EXCHANGE_KIND = 31  # with the variant of a message added

#: All-to-alls whose blocks lie where the program has them, most of them empty, in the order of messages' variants from 1 on.
cdef tuple EXCHANGES = ("alltoallw", "neighbor_allgather", "neighbor_allgatherv", "neighbor_alltoall", "neighbor_alltoallv",
                        "neighbor_alltoallw")

#: Collectives that the fast path to the engine can serve.
FAST_COLLECTIVES = ("allreduce", "reduce", "bcast", "allgather", "gather", "reduce_scatter_block", "scatter", "alltoall", "scan",
                    "exscan", "barrier", "allgatherv", "gatherv", "scatterv", "alltoallv", "reduce_scatter")


cdef int kind_of(str collective) except -1:
    """Number of one of FAST_COLLECTIVES: BARRIER, or its coll_node_kind, with VECTOR set if blocks differ in length; of one
    of EXCHANGES: EXCHANGE_KIND and its variant."""
    if collective in EXCHANGES:
        return EXCHANGE_KIND + 1 + <int>EXCHANGES.index(collective)
    if collective == "barrier":
        return BARRIER
    if collective == "reduce_scatter" or collective.endswith("v"):
        return VECTOR | <int>KINDS.index(collective.removesuffix("v"))
    return KINDS.index(collective.removesuffix("_block"))


cdef inline bint folding(coll_node_kind kind) noexcept:
    """Whether a collective applies an op; the others move bytes."""
    return kind in (COLL_NODE_ALLREDUCE, COLL_NODE_REDUCE, COLL_NODE_REDUCE_SCATTER, COLL_NODE_SCAN, COLL_NODE_EXSCAN)


cdef str collective_of(const coll_node_message *m):
    """Name of the collective of the message ``m``."""
    if m.variant:
        return EXCHANGES[m.variant - 1]
    name = "barrier" if m.kind == COLL_NODE_ALLREDUCE and m.count == 0 and m.op < 0 else KINDS[<int>m.kind]
    if m.cuts != NULL and name != "reduce_scatter":
        return name + "v"
    return name + "_block" if m.cuts == NULL and name == "reduce_scatter" else name


cdef inline int kind_of_message(const coll_node_message *m) noexcept:
    """Number, in the sense of ``kind_of``, of the collective of the message ``m``."""
    cdef int kind = BARRIER if m.kind == COLL_NODE_ALLREDUCE and m.count == 0 and m.op < 0 else <int>m.kind
    if m.variant:
        return EXCHANGE_KIND + m.variant
    return kind | VECTOR if m.cuts != NULL else kind


cdef struct Member:
    int rank, size
    size_t *cuts  # room for two tables of boundaries


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class Node:
    """A group of ranks that map each other's heaps; ``mappings`` and ``areas`` (offsets of flags) are in rank order.

    ``area`` is this rank's block of flags, ``area_bytes()`` zeroed bytes. All ranks must have made their blocks before
    any rank makes this object. ``apart``: they are the ranks of one node of several, so that calls between the nodes
    have a second channel (csrc/hierarchy/hierarchy.h), whose flags are in the second half of the block.
    """

    cdef coll_node *node
    cdef coll_node *channels[COLL_HIERARCHY_CHANNELS]  # the first is ``node``
    cdef int made  # how many of them there are
    cdef object keep
    cdef readonly int rank, size
    cdef bint reads_private  # whether the ranks can read each other's private memory
    cdef readonly long long runs  # runs begun by plans with a shape
    cdef const coll_mpi_api *mpi  # the MPI that is polled while calls wait; NULL without MPI
    cdef coll_endpoint *endpoint

    def __cinit__(self, Heap heap, int rank, list mappings, list areas, HeapBlock area, MPILibrary library=None,
                  Endpoint endpoint=None, bint apart=False):
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
        cdef int wanted = COLL_HIERARCHY_CHANNELS if apart else 1
        while self.made < wanted:
            self.channels[self.made] = coll_node_new(heap.heap, size, rank, bases, limits, offsets)
            if self.channels[self.made] == NULL:
                break
            self.made += 1
            for i in range(size):
                offsets[i] += coll_node_area_bytes()
        PyMem_Free(bases)
        if self.made < wanted:
            raise MemoryError("no memory for a group of the node-local engine, or areas outside their heaps")
        self.node = self.channels[0]
        self.rank = rank
        self.size = size
        self.keep = (heap, mappings, area, library, endpoint)
        if library is not None:
            self.mpi = library.api
            self.endpoint = endpoint.endpoint

    def __dealloc__(self):
        for channel in self.channels[:self.made]:
            coll_node_free(channel)

    def read_private(self):
        """Let ranks read each other's private memory; all ranks of the group must be able to do so, and call this."""
        cdef int64_t *pids = <int64_t *>PyMem_Malloc(self.size * sizeof(int64_t))
        if pids == NULL:
            raise MemoryError
        mappings = self.keep[1]
        for i in range(self.size):
            pids[i] = (<Mapping?>mappings[i]).identity.pid
        for channel in self.channels[:self.made]:
            coll_node_set_processes(channel, pids)
        PyMem_Free(pids)
        self.reads_private = True

    def set_limits(self, size_t copy, size_t read, size_t shortest, size_t segment, size_t stream, size_t private):
        """Set limits in bytes, the same on all ranks. Up to ``copy``, messages are staged even if they are on a heap;
        up to ``read``, every rank reads whole vectors; ``shortest`` and ``segment`` bound the length of a segment; from
        ``stream`` on, results bypass the cache; from ``private`` on, private data are read without staging."""
        cdef coll_node_limits limits
        limits.copy = copy
        limits.read = read
        limits.shortest = shortest
        limits.segment = segment
        limits.stream = stream
        limits.private = private
        for channel in self.channels[:self.made]:
            coll_node_set_limits(channel, &limits)

    def give_up(self):
        """Tell the other ranks by flags that this rank ends no more calls of the group; abandon all tasks before."""
        for channel in self.channels[:self.made]:
            coll_node_give_up(channel)

    @property
    def writers(self):
        """Ranks of the group that still write to this rank's arrays, for calls that it has given up."""
        return self.ranks(coll_node_writers)

    @property
    def quitters(self):
        """Ranks of the group that have given up a call."""
        return self.ranks(coll_node_quitters)

    cdef list ranks(self, int (*of)(const coll_node *, int *, int) noexcept nogil):
        cdef int *found = <int *>PyMem_Malloc(self.size * sizeof(int))
        if found == NULL:
            raise MemoryError
        cdef int n, i
        listed = set()
        for channel in self.channels[:self.made]:
            n = of(channel, found, self.size)
            listed.update([found[i] for i in range(n)])
        PyMem_Free(found)
        return sorted(listed)


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class NodePlan(Task):
    """A plan for calls of one shape by the node-local engine, which can run any number of times, one after the other.

    ``shape`` is a ``collectives.arguments.shape.Shape``.
    """

    cdef coll_node_job job
    cdef coll_node_message message
    cdef coll_mpi_op mpi_op
    cdef object keep
    cdef size_t *cuts
    cdef readonly Node node
    cdef readonly int segments, depth

    def __init__(self, Node node not None, shape):
        cdef coll_node_message *m = &self.message
        self.join(node)
        name = shape.collective
        m.kind = <coll_node_kind>KINDS.index("allreduce" if name == "barrier" else name)
        m.root = shape.root
        m.variant = <int>EXCHANGES.index(shape.variant) + 1 if shape.variant else 0
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
                raise TypeError(f"op: {OPS[m.op]} does not apply to {DTYPES[m.dtype]}")
        else:
            self.set_op(shape.op)

    cdef void join(self, Node node):
        self.node = node
        self.ranks = node.size
        self.segments = self.depth = 1
        self.job.mpi, self.job.endpoint = node.mpi, node.endpoint
        self.task = coll_node_task(&self.job)

    cdef int take(self, const coll_node_message *m) except -1:
        """Copy the message ``m``, to run it; the boundaries in ``m`` belong to the communicator's next call."""
        cdef size_t n = self.node.size + 1
        self.message = m[0]
        self.message.user_spare = NULL  # messages of the fast path have no user-defined op
        if m.cuts == NULL:
            return 0
        self.cuts = <size_t *>malloc(4 * n * sizeof(size_t))
        if self.cuts == NULL:
            raise MemoryError
        memcpy(self.cuts, m.cuts, n * sizeof(size_t))
        self.message.cuts = self.cuts
        if m.input_cuts != NULL:
            memcpy(self.cuts + n, m.input_cuts, n * sizeof(size_t))
            self.message.input_cuts = self.cuts + n
        if m.starts != NULL:
            memcpy(self.cuts + 2 * n, m.starts, (n - 1) * sizeof(size_t))
            memcpy(self.cuts + 3 * n, m.input_starts, (n - 1) * sizeof(size_t))
            self.message.starts, self.message.input_starts = self.cuts + 2 * n, self.cuts + 3 * n
        return 0

    cdef int set_cuts(self, shape, scale) except -1:
        """Set the boundaries of the blocks, and check the message; ValueError if it is not valid."""
        cdef int i, n = self.node.size + 1
        if shape.cuts is not None:
            self.cuts = <size_t *>malloc(4 * n * sizeof(size_t))
            if self.cuts == NULL:
                raise MemoryError
            for i in range(n):
                self.cuts[i] = shape.cuts[i] * scale
                self.cuts[n + i] = (shape.cuts if shape.input_cuts is None else shape.input_cuts)[i] * scale
            self.message.cuts = self.cuts
            self.message.input_cuts = self.cuts + n if shape.input_cuts is not None else NULL
            for i in range(n - 1 if shape.starts is not None else 0):
                self.cuts[2 * n + i], self.cuts[3 * n + i] = shape.starts[i] * scale, shape.input_starts[i] * scale
            if shape.starts is not None:
                self.message.starts, self.message.input_starts = self.cuts + 2 * n, self.cuts + 3 * n
        if not coll_node_message_ok(&self.message, self.node.size):
            raise ValueError(f"{shape.collective}: root, counts or itemsize is out of range")
        return 0

    cdef int set_op(self, op) except -1:
        """Set an op that only MPI can apply, as (library, op handle, datatype handle)."""
        cdef coll_node_message *m = &self.message
        if m.itemsize > COLL_NODE_PIECE:
            raise ValueError(f"elements of {m.itemsize} bytes are too long for the node-local engine; the most are {COLL_NODE_PIECE}")
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
        """Whether a run is under way, or has ended with an error."""
        return self.job.call.number != 0 and self.job.call.status != COLL_OK

    @property
    def pending(self):
        """Whether a run is under way."""
        return self.job.call.number != 0 and self.job.call.status == COLL_PENDING

    cdef int begin(self, const void *input, void *vector, int tag) except -1:
        self.message.input = input if self.message.kind != COLL_NODE_BCAST else <const void *>vector
        self.message.output = vector
        self.node.runs += 1
        coll_node_begin(&self.job.call, self.node.node, &self.message)
        return 0

    cdef tuple what(self):
        cdef const coll_node_message *m = &self.job.call.message
        if self.key is not None:
            return Task.what(self)
        return collective_of(m), "shm", m.count * m.itemsize, m.root

    def call(self):
        """The call that runs, or ran last, as a Call without a number; if no op is applied, elements are bytes."""
        cdef const coll_node_message *m = &self.job.call.message
        if self.key is not None:
            return Task.call(self)
        return DESCRIBE(collective_of(m), "shm", m.count, m.type - 1 if m.type else m.dtype, m.op, m.root)


cdef NodePlan node_plan(Node node):
    """A plan for the group ``node`` without a shape; its message is set for each run."""
    cdef NodePlan made = NodePlan.__new__(NodePlan)
    made.join(node)
    return made


def area_bytes():
    """Length in bytes of the block of flags that a rank has in a group."""
    return COLL_HIERARCHY_CHANNELS * coll_node_area_bytes()
