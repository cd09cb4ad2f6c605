# Tasks that end with a call of a Python function; included by _core.pyx.

cdef struct followed:
    coll_task first
    void *owner
    int status


cdef int followed_progress(void *self, size_t budget) noexcept nogil:
    cdef followed *f = <followed *>self
    if f.status != COLL_PENDING:
        return f.status
    cdef int code = f.first.progress(f.first.self, budget)
    if code == COLL_OK:
        code = followed_end(f)
    if code != COLL_PENDING:
        f.status = code
    return code


cdef int followed_waiting(const void *self, int *ranks, int most) noexcept nogil:
    cdef const followed *f = <const followed *>self
    return f.first.waiting(f.first.self, ranks, most)


cdef int followed_abandon(void *self) noexcept nogil:
    cdef followed *f = <followed *>self
    if f.status == COLL_PENDING:
        f.status = COLL_ERR_GIVEN_UP
    return f.first.abandon(f.first.self)


cdef int followed_end(followed *f) noexcept with gil:
    try:
        (<Followed>f.owner).then()
    except BaseException as e:
        (<Followed>f.owner).failure = e
        if isinstance(e, KeyboardInterrupt):  # it is for the call that this thread waits for, which may be another one
            PyErr_SetInterrupt()
        return COLL_ERR_CALLBACK
    return COLL_OK


cdef class Followed(Task):
    """The task ``first``, followed by a call of ``then`` in the thread that progresses it; both end before this does.

    ``failure`` is the exception that ``then`` raised, or None.
    """

    cdef followed state
    cdef Task first
    cdef object then
    cdef readonly object failure

    def __cinit__(self, Task first, then):
        self.first = first
        self.then = then
        self.ranks = first.ranks
        self.state.first = first.task
        self.state.owner = <void *>self
        self.task.self = &self.state
        self.task.progress = followed_progress
        self.task.waiting = followed_waiting
        self.task.abandon = followed_abandon

    cdef coll_task again(self):
        """The task, made ready for another run."""
        self.state.status, self.failure = COLL_PENDING, None
        return self.task
