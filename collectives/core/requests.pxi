# Tasks, and the progress thread's life; included by _core.pyx.

cdef int apply_op(void *context, void *dst, const void *left, const void *right, void *spare, size_t n) noexcept with gil:
    """MPI's reduction, which may call Python, with Python's lock taken first.

    Some MPIs hold their own lock meanwhile, and other threads call MPI with Python's lock taken.
    """
    return coll_mpi_op_apply(context, dst, left, right, spare, n)


cdef class Task:
    """Something under way that progresses when it is asked to.

    A plan of a communicator's has a ``key``, what it was made for: choice, shape and group of the node-local engine.
    """

    cdef coll_task task
    cdef int ranks  # of the communicator
    cdef public object key

    cdef int begin(self, const void *input, void *vector, int tag) except -1:
        """Begin a run on memory at two addresses, which must stay until the run is done."""
        raise NotImplementedError

    cdef tuple what(self):
        """Collective, algorithm, bytes of the vector, and root."""
        choice, shape, _ = self.key
        return shape.name, choice.algorithm.name, shape.nbytes, shape.root

    def call(self):
        """The call that it runs, as a Call without a number."""
        choice, shape, _ = self.key
        return shape.call(choice.algorithm.name)

    def progress(self, size_t budget=1 << 62):
        """Move the run on, for about ``budget`` bytes of local work; True when it is done."""
        return check(self.task.progress(self.task.self, budget), "collective") == COLL_OK

    cdef bint go_on(self, bint yield_at_once, long limit) except -1:
        cdef int code
        with nogil:
            code = coll_progress_wait(&self.task, NULL, yield_at_once, limit)
        return check(code, "collective") == COLL_OK

    def wait(self, bint yield_at_once=False, long limit=20_000_000):
        """Progress for up to ``limit`` ns without the GIL; True when the run is done."""
        return self.go_on(yield_at_once, limit)

    def waiting(self):
        """Ranks whose part the run waits for."""
        return waited_for(&self.task, self.ranks)

    def withdraw(self):
        """Give the run up; the number of messages that still come into its memory. To be called until there are none."""
        cdef int left
        with nogil:
            left = self.task.abandon(self.task.self)
        return left


cdef list waited_for(const coll_task *task, int n):
    """Ranks of ``n`` that a task waits for."""
    cdef int *peers = <int *>PyMem_Malloc(n * sizeof(int))
    if peers == NULL:
        raise MemoryError
    with nogil:
        n = coll_progress_waiting(task, peers, n)
    found = sorted(peers[i] for i in range(n))
    PyMem_Free(peers)
    return found


def write_handle(uintptr_t address, size_t size, uintptr_t handle):
    """Put an MPI handle of ``size`` bytes at an address (``MPI._addressof`` of an mpi4py object)."""
    memcpy(<void *>address, &handle, size)  # little-endian, like every machine with these MPIs: an int is the low half


def outstanding():
    """Number of queued requests that are not done."""
    return coll_progress_outstanding()


def give_way():
    """Let another process have the core for a moment, unless that has turned out to cost a time slice."""
    with nogil:
        coll_progress_give_way()


def stop_progress(long limit=0):
    """Wait up to ``limit`` ns for the requests that are not done, and end the progress thread."""
    with nogil:
        coll_progress_stop(limit)


def broken(str why):
    """Note that MPI_Finalize might hang, so that MPI_Abort takes its place."""
    coll_progress_broken(why.encode())


def mended():
    """Take one :func:`broken` back: what had failed was tried again, and is complete."""
    coll_progress_mended()


def survived(bint was_broken):
    """A rank died and the others go on without a communicator, which was broken or not."""
    coll_progress_survived(was_broken)


def leave_note(cnp.ndarray array):
    """Have MPI_Finalize write "2" to an array, once no call can begin any more; None: nowhere."""
    Py_INCREF(array)  # MPI may be finalized after the interpreter
    coll_progress_note(NULL if array is None else cnp.PyArray_BYTES(array))


def count_signal(int signal):
    """Count a signal from now on, before its handler is called."""
    coll_asked_watch(signal)


def signals():
    """How often the signal that is counted has come."""
    return coll_asked()


def ended():
    """Whether this process is done with MPI: MPI has been finalized, or this is the forked child of an MPI process."""
    return bool(coll_progress_ended())
