# Tasks, and functions of the progress engine; included by _core.pyx.

cdef int apply_op(void *context, void *dst, const void *left, const void *right, void *spare, size_t n) noexcept with gil:
    """Apply an op by MPI_Reduce_local, with Python's lock (GIL) taken before, since the op may be a Python function.

    Some MPIs hold their own lock during the op, and other threads call MPI with the GIL: the order prevents a deadlock.
    """
    return coll_mpi_op_apply(context, dst, left, right, spare, n)


cdef class Task:
    """A run that progresses when it is asked to: the base class of plans.

    A communicator's plan has a ``key``: choice, shape and group of the node-local engine; other plans have None.
    ``footprint`` is about the bytes of its memory.
    """

    cdef coll_task task
    cdef readonly size_t footprint
    cdef int ranks  # number of ranks of the communicator
    cdef public object key

    cdef int begin(self, const void *input, void *vector, int tag) except -1:
        """Begin a run on memory at two addresses, which must stay valid until the run has ended."""
        raise NotImplementedError

    cdef tuple what(self):
        """Collective, algorithm, bytes of the vector, and root."""
        choice, shape, _ = self.key
        return shape.name, choice.algorithm.name, shape.nbytes, shape.root

    def call(self):
        """The call that the plan executes, as a Call without a number."""
        choice, shape, _ = self.key
        return shape.call(choice.algorithm.name)

    def progress(self, size_t budget=1 << 62):
        """Progress the run, with about ``budget`` bytes of local work; return whether it is complete."""
        return check(self.task.progress(self.task.self, budget), "collective") == COLL_OK

    cdef bint go_on(self, bint yield_at_once, long limit) except -1:
        cdef int code
        with nogil:
            code = coll_progress_wait(&self.task, NULL, yield_at_once, limit)
        return check(code, "collective") == COLL_OK

    def wait(self, bint yield_at_once=False, long limit=20_000_000):
        """Progress the run for up to ``limit`` ns (0: look once) without the GIL; return whether it is complete."""
        return self.go_on(yield_at_once, limit)

    def waiting(self):
        """Ranks for which the run waits, sorted."""
        return waited_for(&self.task, self.ranks)

    def withdraw(self):
        """Give the run up; return the number of messages that may still arrive in its memory. Repeat until it is 0."""
        cdef int left
        with nogil:
            left = self.task.abandon(self.task.self)
        return left


cdef list waited_for(const coll_task *task, int n):
    """Ranks for which a task waits, of the ``n`` ranks of its communicator."""
    cdef int *peers = <int *>PyMem_Malloc(n * sizeof(int))
    if peers == NULL:
        raise MemoryError
    with nogil:
        n = coll_progress_waiting(task, peers, n)
    found = sorted(peers[i] for i in range(n))
    PyMem_Free(peers)
    return found


def write_handle(uintptr_t address, size_t size, uintptr_t handle):
    """Write an MPI handle of ``size`` bytes to an address (``MPI._addressof`` of an mpi4py object)."""
    memcpy(<void *>address, &handle, size)  # if a handle is an int, it is the low half, on little-endian machines


def outstanding():
    """Number of queued operations that have not ended."""
    return coll_progress_outstanding()


cdef class Patience:
    """A wait that polls: how long, and how it leaves its core to others (csrc/progress/patience.h)."""
    cdef coll_patience c

    def __cinit__(self):
        self.c = coll_patience_new()

    def give_way(self):
        """Let another process use the core for a moment if one needs it. To be called after each poll in vain."""
        with nogil:
            coll_give_way(&self.c)


def stop_progress(long limit=0):
    """Wait up to ``limit`` ns for the queued operations that have not ended, and end the progress thread."""
    with nogil:
        coll_progress_stop(limit)


def broken(str why):
    """Record that MPI_Finalize might hang, for the reason ``why``, so that the program ends by MPI_Abort instead."""
    coll_progress_broken(why.encode(errors="backslashreplace"))


def mended():
    """Undo one call of :func:`broken`, since what had failed was tried again and is complete."""
    coll_progress_mended()


def survived(bint was_broken):
    """Record that the program goes on after a rank died, so that MPI_Finalize is ended after 5 s if it hangs.

    ``was_broken``: also undo one call of :func:`broken`.
    """
    coll_progress_survived(was_broken)


def watch_process(int pid):
    """Watch a rank of this machine: if its process ``pid`` ends, MPI_Finalize is ended after 5 s, if it hangs."""
    coll_progress_watch_process(pid)


def ends_with(int code):
    """Note that the program has ended, and the exit code of this process if its MPI_Finalize must be ended."""
    coll_progress_exit_code(code)


cdef int finalized(void *unused) noexcept:
    coll_progress_finalized()
    return 0


cdef int tells_return() noexcept nogil:
    """Have the main thread call `finalized` when it is back in the interpreter, which may be gone, though."""
    return not Py_IsInitialized() or Py_AddPendingCall(finalized, NULL) == 0


def abort():
    """MPI_Abort of all ranks, without the interpreter's lock; a signal ends the process if that takes over 4 s."""
    with nogil:
        coll_progress_abort()


def leave_note(cnp.ndarray array):
    """Have MPI_Finalize write the byte "2" to ``array`` (None: nowhere), once no more calls can begin."""
    Py_INCREF(array)  # kept for ever, since MPI may be finalized after the interpreter
    coll_progress_note(NULL if array is None else cnp.PyArray_BYTES(array))


def count_signal(int signal):
    """Count how often the signal ``signal`` arrives from now on, before its handler is called."""
    coll_asked_watch(signal)


def signals():
    """How often the counted signal has arrived."""
    return coll_asked()


cdef unsigned BEATS = 0    # answers of the main thread's interpreter
cdef bint BEAT_DUE = False

cdef int beat(void *unused) noexcept:
    global BEATS, BEAT_DUE
    BEATS, BEAT_DUE = BEATS + 1, False
    return 0


def main_beats():
    """How often the main thread has run Python code between two calls of this function.

    As long as the number stays the same, the main thread is in a C function, in MPI for example.
    """
    global BEAT_DUE
    if not BEAT_DUE:
        BEAT_DUE = Py_AddPendingCall(beat, NULL) == 0
    return BEATS


def current_frames():
    """``sys._current_frames()``, during which no garbage is collected.

    Some versions of CPython, 3.11.7 for one, collect there, and hold a lock without which no thread can begin or end
    (gh-106883). A finalizer that lets other threads run meanwhile, such as that of a torch tensor, could then stop all
    threads for ever.
    """
    cdef int collects = PyGC_Disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            PyGC_Enable()


def ended():
    """Whether this process cannot use MPI any more: after MPI_Finalize, or in a forked child of an MPI process."""
    return bool(coll_progress_ended())
