# Collective calls that are started, progressed and completed; included by _core.pyx.

cdef set PENDING = set()   # operations in the queue that have not been given back
cdef Py_ssize_t CROWD = 16 # their number from which on those that have ended are looked for

cdef bint HOLDS = False    # whether a buffer was ever held that its owner could resize or close
cdef bint ASKED = False    # whether Python is to let go of buffers

cdef enum:
    BRIEF = 100_000  # ns of waiting that nobody needs to know of


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
    if not all([(<Operation>operation).let_go() for operation in list(PENDING)]):
        request_released()
    return 0


def queued(Calls of=None):
    """The operations in the queue, of one communicator or all, with those that have ended and were not given back."""
    return [operation for operation in list(PENDING) if of is None or (<Operation>operation).context is of]


def sweep():
    """Give back what belongs to operations that have ended."""
    for operation in [operation for operation in list(PENDING) if (<Operation>operation).done]:
        (<Operation>operation).retire()


def leave_to_the_parent():
    """In a forked child: keep what the parent has under way as it is, for to give it back would be to touch MPI."""
    kept = list(PENDING)
    PENDING.clear()
    return kept


cdef unsigned FAILURES = 0  # operations that have ended with an error, as far as their communicators know

cdef int note_failures() except -1:
    """Have communicators learn that operations in the queue have failed, before their next calls."""
    global FAILURES
    FAILURES = coll_progress_failures()
    sweep()
    return 0


cdef int make_room() except -1:
    """Give back what has ended, where many operations are under way."""
    global CROWD
    if len(PENDING) >= CROWD:
        sweep()
        CROWD = 2 * len(PENDING) + 16
    return 0


@cython.freelist(16)
@cython.no_gc_clear  # other threads use what it refers to until it is complete
cdef class Operation:
    """A call of a communicator by a plan: blocking, or in the queue of the progress thread, begun once or, a persistent
    one, any number of times.

    ``buffers`` own the memory, and ``holder`` is what must live as long. ``check`` is an exchange before the call, or
    None, and ``stands_for`` the call that this one is such an exchange for. ``record`` is where it is on a timeline.
    ``begin`` is the time counter when it began. ``timeout``, seconds, is what was asked for by the call, if anything.
    """

    cdef coll_request request
    cdef readonly Calls context
    cdef readonly Task plan
    cdef CachedPlan cached
    cdef public object buffers, holder, check, stands_for, record
    cdef readonly object timeout
    cdef readonly uint64_t begin
    cdef readonly uint32_t history
    cdef object of_number         # on the communicator; None: it has none, or it is the brief operation
    cdef const void *input
    cdef void *vector
    cdef int tag
    cdef Followed followed
    cdef object before            # what fills temporaries, each time
    cdef bint queued, persistent, claimed
    cdef public bint tested       # in vain: its context looks after it
    cdef object free_request      # what frees MPI's request, which the program gave up before the end

    def __init__(self, Calls context not None, Task plan not None):
        self.context, self.plan = context, plan

    # Start

    def start(self, uintptr_t source, uintptr_t target, int tag, buffers):
        """Begin a blocking call on memory at two addresses, which ``buffers`` own."""
        self.place(source, target, tag, buffers)
        self.begin = coll_ticks()
        self.plan.begin(self.input, self.vector, tag)
        self.take_number()

    def bind(self, uintptr_t source, uintptr_t target, int tag, buffers, holder, MPILibrary library=None, then=None,
             before=None, bint persistent=False):
        """Make it a call in the queue, on memory at two addresses, which ``buffers`` own; returns itself.

        ``then`` runs after its last step and before anybody sees the end, in whichever thread that is. With a library it
        gets the handle of a generalized request of MPI's.
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
        """Begin a call that was bound, once more if it is persistent; returns itself."""
        if self.persistent and some_gave_up(self.context):
            self.context.look_for_quitters(self)
        self.launch()
        return self

    cdef int launch(self) except -1:
        cdef int code
        make_room()
        if self.before is not None:
            self.before()
        self.queued, self.claimed, self.tested, self.record = True, False, False, None
        self.request.task = self.plan.task if self.followed is None else self.followed.again()
        self.begin = coll_ticks()
        self.context.progressing = self  # it may be moved on at once, and hang in MPI
        try:
            if self.request.mpi != NULL:
                with nogil:  # a thread that holds MPI's lock may be waiting for Python's
                    code = self.request.mpi.request_start(&self.request.handle, &self.request.handle_status)
                check(code, "request")
            self.plan.begin(self.input, self.vector, self.tag)
            self.take_number()
            with nogil:
                code = coll_progress_submit(&self.request)
            check(code, "progress thread")
        finally:
            self.context.progressing = None
        PENDING.add(self)
        return 0

    # Progress

    def wait(self, bint yield_at_once=False, long limit=20_000_000):
        """Progress for up to ``limit`` ns without the GIL; True when it is complete."""
        cdef int code
        if not self.queued:
            return self.plan.go_on(yield_at_once, limit)
        with nogil:
            code = coll_progress_wait(NULL, &self.request, yield_at_once, limit)
        return check(code, "collective") == COLL_OK

    def sleep(self, long limit):
        """Leave it to the progress thread, and sleep for up to ``limit`` ns; True when it is complete."""
        cdef int code
        with nogil:
            code = coll_progress_sleep(&self.request, limit)
        return check(code, "collective") == COLL_OK

    @property
    def done(self):
        """Whether it has ended; one in the queue."""
        return self.request.status != COLL_PENDING

    def error(self):
        """What ended it early, or None; one in the queue."""
        return error(self.request.status, "collective") if self.request.status < 0 else None

    def withdraw(self):
        """Give it up; the number of messages that still come into its memory. To be called until there are none.

        Who waits for the request of one in the queue learns of it.
        """
        cdef int left
        if not self.queued:
            return self.plan.withdraw()
        with nogil:
            left = coll_progress_abandon(&self.request)
        return left

    # Completion

    def complete(self, timeout=None):
        """Wait to the end of one in the queue, or to a timeout in seconds (default: the communicator's).

        Raises what ended it early.
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
        """Move one in the queue on; whether it has ended. Raises what ended it early."""
        if not self.context.test(self):
            return False
        self.retire()
        return True

    cdef int retire(self) except -1:
        """Give back what an operation in the queue has, now that it has ended, unless that has been done."""
        if self not in PENDING:
            return 0
        PENDING.remove(self)
        if self.free_request is not None:
            self.free_request(self.handle)
        error = self.error()
        if self.record is not None:
            (<Log>self.record[0]).end(self.record[1], self.request.ended, error is not None)
        if error is not None:
            self.holder = None
            self.context.ended_early(self, error)
        elif not self.persistent:
            self.release()
        return 0

    cpdef release(self):
        """Give the plan back, and let go of the buffers."""
        self.buffers = self.holder = None
        if self.cached is not None:
            give_back(self.context, self.cached, <Plan>self.plan)
        elif self.plan.key is not None:
            self.context.keep(self.plan)

    def let_go(self):
        """Let go of the buffers, if it has ended well; False while MPI knows of the end and this rank's part does not."""
        if self.request.status == COLL_PENDING:
            return self.persistent or self.request.ended == 0
        if self.request.status == COLL_OK and not self.persistent:
            self.buffers = None
        return True

    # Its request of MPI's

    @property
    def handle(self):
        """MPI's handle, as an int."""
        return <uintptr_t>self.request.handle

    def claim(self):
        """Whether this is the first time that the request is claimed since the operation was queued."""
        claimed, self.claimed = self.claimed, True
        return not claimed

    def abandon(self, free):
        """Have ``free`` called with MPI's handle at the end; False, with nothing done, where the end is past."""
        if self not in PENDING:
            return False
        self.free_request = free
        return True

    # What it is

    @property
    def number(self):
        """Its number on its communicator; None for a persistent one, which ranks may begin in different orders."""
        return self.context.number() if self is self.context.brief else self.of_number

    def call(self):
        """The call, as other ranks are told of it."""
        if self.stands_for is not None:
            return self.stands_for
        return self.plan.call()._replace(number=self.number, history=self.history)

    def __str__(self):
        cdef str collective, algorithm
        if self.stands_for is not None:
            collective = self.stands_for.collective
            return f"check of {collective}" if self.stands_for.algorithm else collective
        collective, algorithm, nbytes, _ = self.plan.what()
        return f"{collective} ({algorithm}, {nbytes} bytes)"

    def put_on_timeline(self, Log log, int form, long long number, uint64_t begin):
        """Record it as a call that was made at a tick, with a number."""
        collective, algorithm, nbytes, root = self.plan.what()
        self.record = log, log.add(form, collective, algorithm, nbytes, number, root, begin, False)
