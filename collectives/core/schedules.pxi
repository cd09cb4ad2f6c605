# The interface to the executor of schedules: programs, transports, plans; included by _core.pyx.

cdef class Program:
    """A schedule with its dependencies, for messages of any length. ``steps`` is an array of
    ``collectives.schedules.steps.STEP``.

    ``input_block`` and ``vector_block`` say which blocks the caller's memory has: all (-1), none (-2), or the one with
    this number. ``blockwise``: block i belongs to rank i, so that a segment is a part of every block. ``divisible``
    says whether the message can be cut into segments.
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
            raise ValueError("steps: not an array of collectives.schedules.steps.STEP")
        self.program = coll_program_new(<const coll_step *>view.view.buf, view.view.len // sizeof(coll_step), &layout,
                                        &code, &bad)
        if self.program == NULL:
            raise error(code, f"step {bad}" if bad >= 0 else "size, blocks or scratch")
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
    """One rank's endpoint of a transport, which keeps ``owner`` alive."""

    cdef coll_endpoint *endpoint
    cdef object owner
    cdef readonly int rank, size, tag_limit

    @property
    def message_limit(self):
        """The most bytes of one message. All ranks must set the same, while no call is under way."""
        return self.endpoint.message_limit

    @message_limit.setter
    def message_limit(self, size_t nbytes):
        self.endpoint.message_limit = nbytes

    @property
    def mpi_error(self):
        """MPI's error code of the last failure; 0 if there was none."""
        return self.endpoint.mpi_error

    def unequal_message(self):
        """The last message that was not as long as its receive: (source, bytes, bytes expected), or None.

        The bytes are None if there were more than expected, since MPI does not say how many.
        """
        if self.endpoint.unequal.expected == 0:
            return None
        more = self.endpoint.unequal.bytes == SIZE_MAX
        return self.endpoint.unequal.peer, None if more else self.endpoint.unequal.bytes, self.endpoint.unequal.expected

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
    return made


cdef class InProcess:
    """A transport by mailboxes between ``size`` ranks of one process, for tests.

    With a ``seed`` other than 0, completions are reported in random order. No message has more than ``message_limit``
    bytes. ValueError if ``size`` or ``message_limit`` is less than 1.
    """

    cdef coll_inproc *group
    cdef readonly int size

    def __cinit__(self, int size, unsigned seed=0, size_t message_limit=1 << 62):
        cdef int rank
        if size < 1 or message_limit < 1:
            raise ValueError(f"size, message_limit: expected at least 1, got {size} and {message_limit}")
        self.group = coll_inproc_new(size, seed)
        if self.group == NULL:
            raise MemoryError
        for rank in range(size):
            coll_inproc_endpoint(self.group, rank).message_limit = message_limit
        self.size = size

    def __dealloc__(self):
        coll_inproc_free(self.group)

    def endpoint(self, int rank):
        """The endpoint of ``rank``; ValueError if the group does not have it."""
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not in a group of {self.size}")
        return make_endpoint(coll_inproc_endpoint(self.group, rank), self)


cdef class MPILibrary:
    """The MPI transport for one ABI, loaded from the shared library ``path``; ImportError if it cannot be loaded."""

    cdef const coll_mpi_api *api
    cdef readonly str abi

    def __cinit__(self, str path):
        cdef void *handle = dlopen(path.encode(), RTLD_NOW | RTLD_LOCAL)
        if handle == NULL:
            raise ImportError(dlerror().decode())
        self.api = <const coll_mpi_api *>dlsym(handle, b"coll_mpi")
        if self.api == NULL or self.api.version != COLL_MPI_VERSION:
            raise ImportError(f"{path} was built for another version of collectives; run `make build` or pip install again")
        self.abi = self.api.abi.decode()
        self.api.on_release(request_released)
        self.api.on_wait(coll_progress_poll, coll_progress_wait_in_mpi)

    def shares_mpi(self, bint initialized, str version):
        """Whether the transport is linked to an MPI library with this state and version, as mpi4py reports them."""
        return bool(self.api.initialized()) == initialized and self.api.library_version().decode() == version.rstrip("\0")

    def watch_end(self):
        """Have MPI_Finalize, when it begins, end the calls under way, or abort the program if it might hang."""
        check(coll_progress_watch_end(self.api, tells_return), "watch for MPI_Finalize")

    def endpoint(self, uintptr_t comm, owner):
        """An endpoint on the communicator with handle ``comm``, which ``owner`` keeps alive."""
        return make_endpoint(self.api.endpoint_new(<intptr_t>comm), owner)

    def unannounced(self):
        """The most bytes of a message that goes to another host without an answer first; 0 if that is not known."""
        return self.api.unannounced()


cdef class Life:
    """Notices, by an attribute, when the communicator with handle ``comm`` is freed, through any of its handles."""

    cdef const coll_mpi_api *api
    cdef coll_mpi_life *life

    def __cinit__(self, MPILibrary library, uintptr_t comm):
        self.api = library.api
        self.life = self.api.life_new(<intptr_t>comm)
        if self.life == NULL:
            raise RuntimeError("MPI could not set an attribute of the communicator")

    def __dealloc__(self):
        if self.life != NULL:
            self.api.life_free(self.life)

    @property
    def ended(self):
        """Whether the communicator has been freed."""
        return not self.life.alive


cdef int set_mpi_op(coll_mpi_op *target, op, size_t itemsize) except -1:
    """Set the op in ``target``; ``op`` is ``(library, op handle, datatype handle)``."""
    library, op_handle, type_handle = op
    target.mpi = (<MPILibrary?>library).api
    target.op = <intptr_t><uintptr_t>op_handle
    target.datatype = <intptr_t><uintptr_t>type_handle
    target.itemsize = itemsize
    return 0


cdef size_t[::1] _starts(Program program, starts):
    """Where the blocks lie, in elements, as an array of size_t, None for None; ValueError if they do not fit."""
    if starts is None:
        return None
    if len(starts) != program.nblocks or min(starts, default=0) < 0:
        raise ValueError(f"starts: expected {program.nblocks} places, none of them negative")
    return array.array("L", starts)


cdef size_t[::1] _boundaries(Program program, cuts):
    """The boundaries ``cuts`` of blocks as an array of size_t, None for None; ValueError if they do not fit."""
    if cuts is None:
        return None
    if len(cuts) != program.nblocks + 1 or cuts[0] < 0 or any(a > b for a, b in itertools.pairwise(cuts)):
        raise ValueError(f"cuts: expected {program.nblocks + 1} boundaries in ascending order")
    return array.array("L", cuts)


@cython.no_gc_clear  # __dealloc__ needs what it refers to
cdef class Plan(Task):
    """A program bound to an endpoint and to the shape of a message; it can run repeatedly, one run at a time.

    ``elements`` is the number of elements of the whole vector. ``op`` is the code of an op with a kernel, ``(library,
    op handle, datatype handle)`` for a reduction by MPI, or None without a reduction. ``cuts`` are the boundaries of
    the blocks in elements, ``input_cuts`` those of the input; the default are those of :func:`partition`. ``starts`` and
    ``input_starts`` say where the blocks lie, in elements, if not between the boundaries.
    """

    cdef coll_exec *execution
    cdef coll_mpi_op mpi_op
    cdef object keep
    cdef readonly Program program
    cdef readonly Endpoint endpoint
    cdef readonly int segments, depth

    def __cinit__(self, Program program, Endpoint endpoint, size_t elements, size_t itemsize, int dtype, op,
                  int segments=1, int depth=2, cuts=None, input_cuts=None, starts=None, input_starts=None):
        cdef coll_message m
        cdef int code
        cdef size_t[::1] cut = _boundaries(program, cuts), input_cut = _boundaries(program, input_cuts)
        cdef size_t[::1] start = _starts(program, starts), input_start = _starts(program, input_starts)
        if program.size != endpoint.size:
            raise ValueError(f"program: made for {program.size} ranks; the endpoint has {endpoint.size}")
        if segments > 1 and not program.program.single and (program.blockwise or cuts is not None):
            raise ValueError(f"segments: {segments}, but a schedule with steps of several blocks runs in one segment")
        memset(&m, 0, sizeof(m))
        m.count = elements
        m.itemsize = itemsize
        m.segments = segments
        m.depth = min(segments, depth)
        m.cuts = NULL if cut is None else &cut[0]
        m.input_cuts = NULL if input_cut is None else &input_cut[0]
        m.starts = NULL if start is None else &start[0]
        m.input_starts = NULL if input_start is None else &input_start[0]
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
        # MPI may still write to the memory of a run that has not ended, so that memory is not freed.
        if self.execution != NULL and not coll_exec_busy(self.execution):
            coll_exec_free(self.execution)

    @property
    def busy(self):
        """Whether a run is under way, or has ended with an error."""
        return bool(coll_exec_busy(self.execution))

    cdef int begin(self, const void *input, void *vector, int tag) except -1:
        return check(coll_exec_start(self.execution, input, vector, tag), "start")

    def start(self, uintptr_t input, uintptr_t vector, int tag):
        """Begin a run on memory at two addresses, which must stay valid until the run has ended.

        They are the addresses of the blocks that the rank has (see :class:`Program`), 0 if it has none.
        """
        self.begin(<const void *>input, <void *>vector, tag)
