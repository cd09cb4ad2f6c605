# Who makes calls on a communicator; included by _core.pyx. All under Python's lock.

cdef struct Holder:
    unsigned long thread  # that makes a call; 0: none does
    int depth             # calls within calls
    bint inner            # whether its next call is such a one


cdef bint is_part(const Holder *h) noexcept:
    return h.inner and h.thread == PyThread_get_thread_ident()


cdef inline bint is_free(const Holder *h) noexcept:
    return h.thread == 0 or is_part(h)


cdef inline void begin_turn(Holder *h) noexcept:
    h.thread = PyThread_get_thread_ident()
    h.inner = False
    h.depth += 1


cdef inline void end_turn(Holder *h) noexcept:
    h.depth -= 1
    if h.depth == 0:
        h.thread = 0


cdef class Turn:
    """Which thread makes a call on a communicator, which takes one at a time.

    A call may have parts, which are calls themselves. The fast path takes the turn only where it gives up Python's lock:
    before that nothing else can run.
    """

    cdef Holder now

    def take(self):
        """Begin a call; False, with nothing done, where one is under way, of which this is no part."""
        if not is_free(&self.now):
            return False
        begin_turn(&self.now)
        return True

    def give(self):
        """The call has ended."""
        end_turn(&self.now)

    def part(self):
        """The next call of this thread is a part of the one under way."""
        self.now.inner = True

    def drop(self):
        """Whoever had it is no more."""
        self.now.thread = self.now.depth = 0

    @property
    def holder(self):
        """The thread that makes a call, or 0."""
        return self.now.thread
