# The turn of a communicator: which thread is in a call; included by _core.pyx. Used with Python's lock held only.

cdef struct Holder:
    unsigned long thread  # identifier of the thread that is in a call; 0: none
    int depth             # number of nested calls
    bint inner            # whether the next call of this thread is a part of the call under way


cdef bint is_part(const Holder *h) noexcept:
    return h.inner and h.thread == PyThread_get_thread_ident()


cdef inline bint is_free(const Holder *h) noexcept:
    return h.thread == 0 or is_part(h)


cdef inline void begin_turn(Holder *h) noexcept:
    h.thread = PyThread_get_thread_ident()
    h.inner = False
    h.depth += 1


cdef inline void end_turn(Holder *h) noexcept:
    if h.depth > 0:  # the turn has not been dropped
        h.depth -= 1
    if h.depth == 0:
        h.thread = 0


cdef class Turn:
    """Which thread is in a call on a communicator, which takes one call at a time.

    A call may have parts, which are calls themselves. The fast path takes the turn only when it releases Python's lock,
    since before that no other thread can run.
    """

    cdef Holder now

    def take(self):
        """Take the turn for a call; False, with nothing done, if a call is under way of which this is no part."""
        if not is_free(&self.now):
            return False
        begin_turn(&self.now)
        return True

    def give(self):
        """Give the turn back; the call has ended."""
        end_turn(&self.now)

    def part(self):
        """Declare that the next call of this thread is a part of the call under way."""
        self.now.inner = True

    def drop(self):
        """Free the turn, whose thread has ended or has left the call by an exception."""
        self.now.thread = self.now.depth = 0

    @property
    def holder(self):
        """Identifier of the thread that is in a call, or 0."""
        return self.now.thread
