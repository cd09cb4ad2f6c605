# Calls of the node-local engine that go on by themselves; included by _core.pyx.

cdef set FLIGHTS = set()
cdef object FLIGHT = None   # the class of those that begin here on the engine
cdef object PLANNED = None  # and of those by cached plans
cdef object REQUEST = None  # and of their requests
cdef Py_ssize_t CROWD = 16  # flights from which on those that have ended are looked for

cdef bint HOLDS = False   # whether a buffer was ever held that its owner could resize or close
cdef bint ASKED = False   # whether Python is to let go of buffers

cdef void request_released() noexcept nogil:
    """MPI is done with a request, perhaps by its own wait: no call of ours follows that would give its buffers back."""
    global ASKED
    if HOLDS and not ASKED:
        ASKED = True  # before `let_go` says that it is not
        if Py_AddPendingCall(let_go, NULL) != 0:
            ASKED = False


cdef int let_go(void *unused) noexcept:
    """Let go of the buffers of what has ended; Python calls this between two steps of the main thread."""
    global ASKED
    ASKED = False
    if not all([flight.let_go() for flight in list(FLIGHTS)]):
        request_released()
    return 0


cdef enum:
    BRIEF = 100_000  # ns of waiting that nobody needs to know of


def flights():
    """The set of collectives under way, by whatever engine: they live there until they have ended."""
    return FLIGHTS


def know_flights(flight, planned):
    """Learn the classes of the flights that begin here: on the engine, and by cached plans."""
    global FLIGHT, PLANNED
    FLIGHT, PLANNED = flight, planned


def know_request(request):
    """Learn that of their requests, which needs MPI."""
    global REQUEST
    REQUEST = request


cpdef bint take(flight):
    """Take a flight out of :func:`flights`; False where another thread has done so."""
    if flight not in FLIGHTS:
        return False
    FLIGHTS.remove(flight)
    return True


@cython.no_gc_clear  # what it refers to is used by other threads to the end
cdef class Begun(Queued):
    """A call in the queue of the progress thread, begun once or (persistent) any number of times."""

    cdef bint lasting, yields, scheduled
    cdef readonly object context, buffers
    cdef public object holder
    cdef public object record     # on a timeline: (log, number)
    cdef readonly uint64_t since  # ticks
    cdef public object abandoned  # what frees the request, which the program did before the end

    def finish(self, timeout=None):
        """Wait to the end, or to a timeout (default: the communicator's); raises what ended the call early."""
        cdef uint64_t begin = coll_ticks() if self.record is not None else 0
        cdef int code = self.request.status
        cdef bint yields = self.yields
        if code == COLL_PENDING:
            with nogil:
                code = coll_progress_wait(NULL, &self.request, yields, BRIEF)
        if code != COLL_OK or self.abandoned is not None or self.tested or coll_progress_ended() or (
                self.scheduled and self.context.heard):
            self.go_on(timeout, begin)
            return
        if self.record is not None:
            (<Log>self.record[0]).waited(self.record[1], begin)
        if take(self):
            if self.record is not None:
                (<Log>self.record[0]).end(self.record[1], self.request.ended)
            self.land()

    def recorded(self, Log log, int form, long long number, uint64_t begin):
        """Put it on a timeline, as begun at a tick with a number; returns itself."""
        collective, algorithm, nbytes, root = self.what()
        self.record = log, log.add(form, collective, algorithm, nbytes, number, root, begin, False)
        return self

    def let_go(self):
        """Let go of the buffers, if the call has ended; False while MPI knows of the end and this call does not."""
        if self.request.status == COLL_PENDING:
            return self.lasting or self.request.ended == 0
        if self.request.status == COLL_OK and not self.lasting:
            self.buffers = None
        return True

    def land(self):
        """Let go of what an ended call held, unless it may begin again."""
        if not self.lasting:
            self.buffers = None
            self.holder = None

    cdef tuple what(self):
        """Collective, algorithm, bytes and root."""
        raise NotImplementedError


cdef int make_room() except -1:
    """Give back what has ended, where many calls are under way."""
    global CROWD
    if len(FLIGHTS) >= CROWD:
        FLIGHT.sweep()
        CROWD = 2 * len(FLIGHTS) + 16
    return 0


@cython.no_gc_clear
cdef class NodeCall(Begun):
    """A call of the node-local engine."""

    cdef coll_node_job job
    cdef coll_node_message message
    cdef size_t *cuts
    cdef uint64_t serial
    cdef long long elsewhere
    cdef readonly Node node

    def __dealloc__(self):
        free(self.cuts)

    cdef int own_cuts(self) except -1:
        """Take the boundaries of blocks along: the engine's tables are for the next call."""
        cdef size_t n = self.node.size + 1
        if self.message.cuts == NULL:
            return 0
        self.cuts = <size_t *>malloc(2 * n * sizeof(size_t))
        if self.cuts == NULL:
            raise MemoryError
        memcpy(self.cuts, self.message.cuts, n * sizeof(size_t))
        self.message.cuts = self.cuts
        if self.message.input_cuts != NULL:
            memcpy(self.cuts + n, self.message.input_cuts, n * sizeof(size_t))
            self.message.input_cuts = self.cuts + n
        return 0

    cdef int begin(self, bint visible) except -1:
        """``visible``: it gets a request of MPI's."""
        make_room()
        self.yields = self.node.yield_at_once
        self.job.mpi = self.node.job.mpi
        self.job.endpoint = self.node.job.endpoint
        self.request.task = coll_node_task(&self.job)
        self.since = coll_ticks()
        if visible:
            self.make_handle(self.job.mpi)
        coll_node_begin(&self.job.call, self.node.node, &self.message)
        self.serial = coll_node_calls(self.node.node)
        self.submit()
        FLIGHTS.add(self)
        return 0

    def bind(self, NodePlan plan, uintptr_t source, uintptr_t target, buffers):
        """Make it a persistent call, of a plan's shape on two addresses, which ``buffers`` own."""
        self.buffers = plan, buffers
        self.lasting = True
        plan.place(source, target)
        self.message = plan.message

    def lease(self, context, Node node, holder):
        """The group for a persistent call, and what must live as long as it does."""
        self.context, self.node, self.holder = context, node, holder

    cdef int take_off(self, context, holder, uint64_t begun, bint visible) except -1:
        """Begin, with what waits for it and what must live as long, as a call that was made at a tick."""
        self.context, self.holder = context, holder
        self.elsewhere = (<Numbers>context.numbers).elsewhere
        try:
            self.begin(visible)
        except BaseException as e:
            context.fail(self.run, e)
        self.node.ended = 0
        if self.node.log is not None:
            self.recorded(self.node.log, COLL_TRACE_NONBLOCKING, self.number, begun)
        return 0

    def again(self):
        """Begin a persistent call once more; returns itself."""
        self.begin(True)
        return self

    cdef tuple what(self):
        collective, nbytes = self.call
        return collective, "shm", nbytes, self.message.root

    @property
    def number(self):
        """The call's number on its communicator; None for a persistent one, which ranks may begin in different orders."""
        return None if self.lasting else self.elsewhere + self.serial

    @property
    def call(self):
        """Collective and bytes."""
        return collective_of(&self.message), self.message.count * self.message.itemsize

    @property
    def signature(self):
        """Elements, their type and op (codes or -1), and the root."""
        return signature_of(&self.message)

    def waiting(self):
        """Ranks that the call waits for."""
        return waited_for(&self.request.task, self.node.size)


@cython.no_gc_clear
cdef class PlanCall(Begun):
    """A call by a plan that is kept: one like an earlier one, or a persistent one, which has no number."""

    cdef readonly CachedPlan cached
    cdef readonly Plan plan
    cdef readonly object number
    cdef readonly uint32_t history
    cdef const coll_mpi_api *api
    cdef const void *input
    cdef void *vector
    cdef int tag

    def bind(self, context, CachedPlan cached, Plan plan, uintptr_t source, uintptr_t target, int tag, buffers, holder):
        """Make it a persistent call on two addresses, which ``buffers`` own."""
        self.lasting = self.scheduled = True
        self.context, self.buffers, self.holder, self.yields = context, buffers, holder, context.yield_at_once
        self.cached, self.plan, self.tag = cached, plan, tag
        self.input, self.vector = <const void *>source, <void *>target
        self.api = (<MPILibrary?>context.library).api

    def again(self):
        """Begin a persistent call once more; returns itself."""
        cdef Numbers numbers = self.context.numbers
        make_room()
        numbers.running = self.cached, None, self.plan
        try:
            self.begin()
        finally:
            numbers.running = None
        return self

    cdef int begin(self) except -1:
        cdef int status
        self.since = coll_ticks()
        self.request.task = self.plan.task
        with nogil:
            status = coll_exec_start(self.plan.execution, self.input, self.vector, self.tag)
        check(status, "start")
        self.make_handle(self.api)
        self.submit()
        FLIGHTS.add(self)
        return 0

    def land(self):
        """Give back the plan, and let go of what the call held, unless it may begin again."""
        if not self.lasting:
            self.buffers = self.holder = None
            give_back(self.context, self.cached, self.plan)

    cdef tuple what(self):
        return self.cached.collective, self.cached.algorithm, self.cached.nbytes, self.cached.shape.root


cdef NodeCall flight_of(Node node, coll_node_message *m, object send, object recv):
    """A flight of a filled message that has not begun."""
    cdef NodeCall made = FLIGHT.__new__(FLIGHT)
    made.node, made.buffers = node, (send, recv)
    made.message = m[0]
    made.own_cuts()
    return made


cdef object set_up(object comm, Node node, coll_node_message *m, object send, object recv):
    """The request of a persistent call of a filled message."""
    cdef NodeCall made
    if not node.background:
        return LONG_WAY
    made = flight_of(node, m, send, recv)
    made.buffers = send, recv, held(send, True), held(recv, True)
    made.lasting = True
    request = comm._set_up(made)
    return LONG_WAY if request is None else request


cdef object start(object comm, Node node, coll_node_message *m, object send, object recv, uint64_t begun):
    """Begin a non-blocking call of a filled message, made at a tick; its request."""
    if not node.background:
        return LONG_WAY
    cdef NodeCall made = flight_of(node, m, send, recv)
    made.buffers = send, recv, held(send, True), held(recv, True)
    made.take_off(comm._context, comm, begun, True)
    comm._last = collective_of(m), "shm", m.count * m.itemsize, coll_ticks_to_seconds(coll_ticks() - begun)
    return REQUEST(made)
