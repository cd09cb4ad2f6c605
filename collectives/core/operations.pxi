# Operations: calls that are started, progressed and completed; included by _core.pyx.

cdef set PENDING = set()   # queued operations that have not been retired
cdef Py_ssize_t CROWD = 16 # number of these at which those that have ended are retired

cdef bint ASKED = False    # whether Python has been asked to release buffers, and has not yet done so
cdef bint OURS = False     # whether the next request that MPI releases is one whose buffers a wait of ours has released

cdef enum:
    BRIEF = 100_000  # ns of waiting before the context takes over the wait


cdef void request_released() noexcept nogil:
    """Called when MPI has completed a request, perhaps in its own wait: have the request's buffers released."""
    global OURS
    if OURS:
        OURS = False
    else:
        ask_to_let_go()


cdef void ask_to_let_go() noexcept nogil:
    global ASKED
    if not ASKED:
        ASKED = True  # first, since `let_go` resets it
        if Py_AddPendingCall(let_go, NULL) != 0:
            ASKED = False


cdef int let_go(void *unused) noexcept:
    """Release the buffers of operations that have ended; Python calls this between instructions of the main thread."""
    global ASKED
    ASKED = False
    if not all([(<Operation>operation).let_go() for operation in list(PENDING)]):
        ask_to_let_go()
    return 0


def queued(Calls of=None):
    """The queued operations of one communicator, or of all; some may have ended, but are not retired."""
    return [operation for operation in list(PENDING) if of is None or (<Operation>operation).context is of]


def sweep():
    """Retire the queued operations that have ended: release their plans and buffers."""
    for operation in [operation for operation in list(PENDING) if (<Operation>operation).done]:
        (<Operation>operation).retire()


def leave_to_the_parent():
    """In a forked child: empty the queue and return the parent's operations, whose release would call MPI."""
    kept = list(PENDING)
    PENDING.clear()
    return kept


cdef unsigned FAILURES = 0  # failed operations of which the communicators have been told

cdef int note_failures() except -1:
    """Tell the communicators of queued operations that have failed, before their next calls."""
    global FAILURES
    FAILURES = coll_progress_failures()
    sweep()
    return 0


cdef int make_room() except -1:
    """Retire operations that have ended, if many are queued, or if the main thread has not yet released buffers."""
    global CROWD
    if ASKED or len(PENDING) >= CROWD:
        sweep()
        CROWD = 2 * len(PENDING) + 16
    return 0


@cython.freelist(16)
@cython.no_gc_clear  # other threads use what it refers to until it is complete
cdef class Operation:
    """A call of a communicator that a plan executes: blocking, or queued. A persistent one can be queued repeatedly.

    ``buffers`` own the memory; ``holder`` is another object to keep alive. ``check`` is the comparison of ranks' calls
    before the call, or None; ``stands_for`` is, for an operation of such a comparison, the call that is compared.
    ``record`` is (log, index) on a timeline, or None. ``begin`` is the tick at which the call began. ``timeout`` is the
    call's own timeout in seconds, or None. ``failure`` is the error that ended it, if found before its wait, or None.
    """

    cdef coll_request request
    cdef readonly Calls context
    cdef readonly Task plan
    cdef CachedPlan cached
    cdef public object buffers, holder, check, stands_for, record, failure
    cdef readonly object timeout
    cdef readonly uint64_t begin
    cdef readonly uint32_t history
    cdef object of_number         # number on the communicator; None: it has none, or it is the brief operation
    cdef const void *input
    cdef void *vector
    cdef int tag
    cdef Followed followed
    cdef object before            # function that fills temporaries before each start, or None
    cdef bint queued, persistent, claimed
    cdef public bint tested       # whether a test has found it incomplete, so that its context watches it
    cdef object free_request      # function that frees MPI's request, if the program released that before the end

    def __init__(self, Calls context not None, Task plan not None):
        self.context, self.plan = context, plan

    # Start

    def start(self, uintptr_t source, uintptr_t target, int tag, buffers):
        """Begin a blocking call on the memory at ``source`` and ``target``, which ``buffers`` keep alive."""
        self.place(source, target, tag, buffers)
        self.begin = coll_ticks()
        self.plan.begin(self.input, self.vector, tag)
        self.take_number()

    def bind(self, uintptr_t source, uintptr_t target, int tag, buffers, holder, MPILibrary library=None, then=None,
             before=None, bint persistent=False):
        """Prepare it for the queue, on the memory at ``source`` and ``target``, which ``buffers`` keep alive.

        ``before`` is called at each start. ``then`` is called after the last step, in any thread, before the operation
        counts as ended. With ``library`` each start makes a generalized request of MPI's. Returns the operation.
        """
        self.place(source, target, tag, buffers)
        self.holder, self.before, self.persistent = holder, before, persistent
        if library is not None:
            self.request.mpi = library.api
        if then is not None:
            self.followed = Followed(self.plan, then)
        return self

    cdef void place(self, uintptr_t source, uintptr_t target, int tag, buffers):
        self.input, self.vector, self.tag, self.buffers = <const void *>source, <void *>target, tag, buffers

    cdef int take_number(self) except -1:
        self.of_number = None if self.persistent else self.context.number()
        self.history = self.context.history
        return 0

    def queue(self):
        """Begin a call that was bound; a persistent one can be begun again. Returns the operation."""
        if self.persistent and some_gave_up(self.context):
            self.context.look_for_quitters(self)
        self.launch()
        return self

    cdef int launch(self) except -1:
        cdef int code
        make_room()
        if self.before is not None:
            self.before()
        self.queued, self.claimed, self.tested, self.record, self.failure = True, False, False, None, None
        self.request.task = self.plan.task if self.followed is None else self.followed.again()
        self.begin = coll_ticks()
        if self.context.progressing is None:  # else another thread waits for a call
            self.context.progressing = self  # for the watchdog, since the start may hang in MPI
        try:
            self.plan.begin(self.input, self.vector, self.tag)
            self.take_number()
            with nogil:  # a thread that holds MPI's lock may wait for Python's
                code = COLL_OK
                if self.request.mpi != NULL:
                    code = self.request.mpi.request_start(&self.request.handle, &self.request.handle_status)
                if code == COLL_OK:
                    code = coll_progress_submit(&self.request)
            check(code, "start of a non-blocking call")
        finally:
            if self.context.progressing is self:
                self.context.progressing = None
        PENDING.add(self)
        if self.context.broken is not None:  # another thread has given up all calls that it knew
            self.withdraw()
        return 0

    # Progress

    def wait(self, bint yield_at_once=False, long limit=20_000_000):
        """Progress it for up to ``limit`` ns (0: look once) without the GIL; return whether it is complete."""
        cdef int code
        if not self.queued:
            return self.plan.go_on(yield_at_once, limit)
        with nogil:
            code = coll_progress_wait(NULL, &self.request, yield_at_once, limit)
        return self.verify(code) == COLL_OK

    def sleep(self, long limit):
        """Sleep for up to ``limit`` ns while the progress thread runs it; return whether it is complete."""
        cdef int code
        with nogil:
            code = coll_progress_sleep(&self.request, limit)
        return self.verify(code) == COLL_OK

    @property
    def done(self):
        """Whether a queued operation has ended."""
        return self.request.status != COLL_PENDING

    @property
    def ending(self):
        """Whether a queued operation ends now: MPI's waits may have seen the end of its request, but it is not done."""
        return self.request.status == COLL_PENDING and self.request.ended != 0

    def waited_in_mpi(self, double main_since):
        """Seconds for which MPI's own wait has lasted; 0.0 if MPI does not wait, or does not tell (Open MPI).

        The main thread has been in one C function since ``main_since``, seconds of the monotonic clock.
        """
        cdef int64_t waited, since = <int64_t>(main_since * 1e9)
        with nogil:
            waited = coll_progress_waited_in_mpi(&self.request, since)
        return waited * 1e-9

    @property
    def delivered(self):
        """Whether a queued operation has moved its data, though the function called at its end failed."""
        return self.request.status == COLL_ERR_CALLBACK

    def error(self):
        """The exception for the error that ended a queued operation early, or None."""
        return self.error_of(self.request.status) if self.request.status < 0 else None

    cdef object error_of(self, int code):
        """The exception for a C error code: that of the function called at the end, if it raised one."""
        if code == COLL_ERR_CALLBACK and self.followed is not None and self.followed.failure is not None:
            return self.followed.failure
        if self.failure is not None:
            return self.failure
        return error(code, "collective")

    cdef int verify(self, int code) except -1:
        if code < 0:
            raise self.error_of(code)
        return code

    def withdraw(self):
        """Give the operation up; return the number of messages that may still arrive in its memory.

        Call it again until the number is 0. A wait for the request of a queued operation ends with an error.
        """
        cdef int left
        if not self.queued:
            return self.plan.withdraw()
        with nogil:
            left = coll_progress_abandon(&self.request)
        return left

    # Completion

    def complete(self, timeout=None):
        """Wait until a queued operation ends, or up to ``timeout`` seconds (default: the communicator's).

        Raises the error that ended it early.
        """
        cdef uint64_t begun = coll_ticks() if self.record is not None else 0
        cdef int code = self.request.status
        cdef bint yields = self.context.yield_at_once
        if code == COLL_PENDING and self.check is None:
            with nogil:
                code = coll_progress_wait(NULL, &self.request, yields, BRIEF)
        if code != COLL_OK or self.check is not None or self.free_request is not None or self.tested or (
                coll_progress_ended() or self.context.heard):
            self.context.complete(self, timeout)
        if self.record is not None:
            (<Log>self.record[0]).waited(self.record[1], begun)
        self.retire()

    def test(self):
        """Progress a queued operation and return whether it has ended; raises the error that ended it early."""
        if not self.context.test(self):
            return False
        self.retire()
        return True

    cdef int retire(self) except -1:
        """Take an operation that has ended from the queue, once, and release its plan and buffers."""
        if self not in PENDING:
            return 0
        PENDING.remove(self)
        if self.tested:
            self.context.end_glances(self)
        if self.free_request is not None:
            self.free_request(self.handle)
        error = self.error()
        if self.record is not None:
            (<Log>self.record[0]).end(self.record[1], self.request.ended, error is not None)
        if error is not None and not self.delivered:
            self.holder = None
            self.context.ended_early(self, error)
        elif not self.persistent:
            self.release()
        return 0

    cpdef release(self):
        """Return the plan to the idle ones, and release the buffers."""
        self.drop()
        kept = self.cached is not None and self.cached.put(self.plan)
        if not kept and self.plan.key is not None:
            self.context.keep(self.plan)

    cpdef drop(self):
        """Release the buffers of a call that has ended and begins no more, and the functions that use them.

        Another thread may have this object for a moment longer. What such a function has raised stays for later waits.
        """
        if self.followed is not None and self.followed.failure is not None:
            self.failure = self.followed.failure
        self.buffers = self.holder = self.before = self.followed = None

    def let_go(self):
        """Release the buffers of an operation that has ended without error.

        Returns False if MPI has completed the request but the operation's status is not set yet: try again.
        """
        if self.request.status == COLL_PENDING:
            return self.persistent or self.request.ended == 0
        if self.request.status == COLL_OK and not self.persistent:
            self.buffers = self.before = None
            if self.followed is not None:  # `withdraw` may still need its task
                self.followed.then = None
        return True

    # The MPI request

    @property
    def handle(self):
        """Handle of its MPI request, as an int."""
        return <uintptr_t>self.request.handle

    def claim(self, bint releases):
        """Claim the request of an operation that has ended; True only for the first claim since it was queued.

        ``releases``: MPI's wait, which the caller then makes, releases the request, since its handle is not null.
        """
        global OURS
        claimed, self.claimed = self.claimed, True
        OURS = OURS or releases and not claimed
        return not claimed

    def abandon(self, free):
        """Have ``free(handle)`` called when the operation ends; False, with nothing done, if it has been retired."""
        if self not in PENDING:
            return False
        self.free_request = free
        return True

    # Description

    @property
    def number(self):
        """The operation's number on its communicator; None if persistent, since ranks may start these in any order."""
        return self.context.number() if self is self.context.brief else self.of_number

    def call(self):
        """The call as a Call, as other ranks are told of it."""
        if self.stands_for is not None:
            return self.stands_for
        if self.check is not None:
            return self.check.call()
        return self.plan.call()._replace(number=self.number, history=self.history)

    def __str__(self):
        cdef str collective, algorithm
        if self.stands_for is not None:
            collective = self.stands_for.collective
            return f"check of {collective}" if self.stands_for.algorithm else collective
        collective, algorithm, nbytes, _ = self.plan.what()
        return f"{collective} ({algorithm}, {nbytes} bytes)"

    def put_on_timeline(self, Log log, int form, long long number, uint64_t begin):
        """Record it on a timeline as a call of ``form`` with ``number`` that was made at tick ``begin``."""
        collective, algorithm, nbytes, root = self.plan.what()
        self.record = log, log.add(form, collective, algorithm, nbytes, number, root, begin, False)


cdef object request_of(Operation operation):
    """A request of class ``REQUEST`` for an operation that is under way, made without a Python frame."""
    cdef object made = (<PyTypeObject *>MPI_REQUEST).tp_new(REQUEST, <PyObject *>NO_ARGUMENTS, NULL)
    memcpy(<char *><void *>made + HANDLE_AT, &operation.request.handle, HANDLE_BYTES)
    Py_INCREF(operation)
    (<PyObject **>(<char *><void *>made + OPERATION_AT))[0] = <PyObject *>operation
    return made
