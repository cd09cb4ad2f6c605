# The calls of a communicator as compiled code makes them: numbers, tags, turns, what is kept; included by _core.pyx.

cdef class Operation
cdef class CachedPlan
cdef class _Frames

cdef enum:
    RECENT = 64  # calls between processes that a rank remembers

cdef unsigned ALL_KINDS = ~<unsigned>0


cdef inline uint32_t mixed(uint32_t a, uint32_t b) noexcept:
    """A number that follows from two, never 0: the finalizer of MurmurHash3 (A. Appleby, public domain)."""
    cdef uint32_t h = (a ^ b) + <uint32_t>0x9E3779B9
    h = (h ^ h >> 16) * <uint32_t>0x85EBCA6B
    h = (h ^ h >> 13) * <uint32_t>0xC2B2AE35
    h ^= h >> 16
    return h if h else 1


cdef class Calls:
    """A communicator's calls; the library's context of a communicator derives from it.

    Compiled code reads and writes its fields, and calls what the context overrides: the methods at the end.
    ``broken`` says why there can be no more calls, or is None. ``heard`` has what other ranks said of their failures.
    ``elsewhere`` counts the calls that were not the node-local engine's, less exchanges before calls. ``history`` is the
    same on all ranks whose calls were. ``recent`` has numbers of calls that were not the engine's, and functions that
    describe them. ``background``: calls may go on by themselves.
    """

    cdef Member member
    cdef unsigned served          # bits of the collectives for which the fast path to the engine is open
    cdef unsigned admitted        # all bits, or none while calls are collected for a group
    cdef const unsigned *alive    # all bits while the communicator lives, which the program may free by another handle
    cdef size_t[32] longest       # vector that the fast path to the engine takes of each collective, bytes
    cdef Node engine
    cdef NodePlan fast            # the plan of blocking calls on the fast path,
    cdef readonly Operation brief # the operation that those who wait long for one see,
    cdef uint64_t begun_at, ended_at  # and ticks of the last one, the latter 0 where another call was later
    cdef Life attribute
    cdef readonly Turn turn
    cdef public Log log           # where a timeline is recorded
    cdef public bint yield_at_once, background
    cdef public object broken, timeout
    cdef public dict heard
    cdef readonly object recent
    cdef public long long elsewhere
    cdef readonly uint32_t history
    cdef public long long drawn   # tags, so far
    cdef int tags, kinds, stride, depth
    cdef dict cached              # plans of calls like earlier ones, by what they are known by; None: none are kept
    cdef size_t kept              # bytes of those plans
    cdef Operation progressing    # a blocking call like an earlier one, or a call that is being begun
    cdef tuple latest             # what `last` says, where `ended_at` is 0
    cdef _Frames frames            # of calls with objects

    def __cinit__(self):
        self.turn = Turn()
        self.recent = collections.deque(maxlen=RECENT)
        self.heard = {}
        self.alive, self.admitted = &ALL_KINDS, ALL_KINDS
        self.tags = self.kinds = self.stride = self.depth = 1

    def __dealloc__(self):
        free(self.member.cuts)

    def set_group(self, int rank, int size):
        """Who is in the communicator."""
        free(self.member.cuts)
        self.member.rank, self.member.size = rank, size
        self.member.cuts = <size_t *>malloc(2 * (size + 1) * sizeof(size_t))
        if self.member.cuts == NULL:
            raise MemoryError

    @property
    def rank(self):
        """This process's rank in the communicator."""
        return self.member.rank

    @property
    def size(self):
        """Number of ranks."""
        return self.member.size

    @property
    def node(self):
        """The ranks' group of the node-local engine; None where they are not on one node, or have not met yet."""
        return self.engine

    @node.setter
    def node(self, Node node):
        self.engine = node
        if node is not None:
            self.fast = node_plan(node)
            self.brief = Operation(self, self.fast)

    @property
    def life(self):
        """Whether the program has freed the communicator, as MPI tells; None where there is no MPI."""
        return self.attribute

    @life.setter
    def life(self, Life life not None):
        self.attribute = life
        self.alive = <const unsigned *>&life.life.alive

    # The fast path

    def open(self, longest):
        """Let the fast path to the engine serve these collectives, of those that it can, and no others.

        ``longest`` has the bytes of the longest vector for each, or None for any length, as where ranks know but some
        blocks.
        """
        self.served = 0
        for name, nbytes in longest.items():
            if name in FAST_COLLECTIVES:
                self.served |= <unsigned>1 << kind_of(name)
                self.longest[kind_of(name)] = <size_t>-1 if nbytes is None else nbytes

    def close(self):
        """Serve no more calls on the fast path to the engine."""
        self.served = 0

    def admit(self, bint calls):
        """Take calls on the fast path, or have all of them take the slow path until further notice."""
        self.admitted = ALL_KINDS if calls else 0

    def cache(self, bint plans):
        """Keep plans for calls like earlier ones from now on, or none; those that are kept are dropped."""
        self.cached, self.kept = {} if plans else None, 0

    def keep_plan(self, key, CachedPlan plan not None):
        """Keep what calls of a key become, as the first of them did."""
        if self.cached is None:
            return
        if len(self.cached) >= MOST_CACHED:
            self.cache(True)
        self.cached[key] = plan

    # Numbers and tags

    @property
    def begun(self):
        """Calls begun on the communicator, persistent ones apart: the same on all ranks between them."""
        return self.number()

    cdef long long number(self) noexcept:
        return self.elsewhere + (<long long>coll_node_calls(self.engine.node) if self.engine is not None else 0)

    def divide_tags(self, int calls, int kinds, int stride, int depth):
        """Tags for ``calls`` calls of ``depth`` tags each, in each of ``kinds`` ranges of ``stride``."""
        self.tags, self.kinds, self.stride, self.depth = calls, kinds, stride, depth

    cpdef int count(self, uint32_t kind, describe) except -1:
        """Number a call that begins and is not the engine's; ``describe`` makes a Call of it. The first of its tags.

        Calls come in the same order on all ranks. Messages of calls of different kinds never match, nor those of calls
        before which the ranks' calls differed.
        """
        cdef int tag
        self.count_mpi(describe)
        if self.engine is not None:
            coll_node_mix(self.engine.node, kind)
        self.history = mixed(self.history, kind)
        tag = self.history % self.kinds * self.stride + self.drawn % self.tags * self.depth
        self.drawn += 1
        return tag

    cpdef int count_mpi(self, describe) except -1:
        """Number a call that the MPI library serves; ``describe`` makes a Call of it."""
        self.elsewhere += 1
        self.recent.append((self.number(), describe))
        return 0

    @property
    def usable(self):
        """Whether there can be more calls; why not, the slow path says."""
        return can_go_on(self)

    @property
    def some_gave_up(self):
        """Whether ranks are known to have given up a call, of which the next ones may be in need."""
        return some_gave_up(self)

    # What ran, and what runs

    cpdef int ran(self, str collective, str algorithm, size_t nbytes, uint64_t begun) except -1:
        """Note the last call that this rank made, which began at a tick and is done with now."""
        self.latest = collective, algorithm, nbytes, coll_ticks_to_seconds(coll_ticks() - begun)
        self.ended_at = 0
        return 0

    @property
    def last(self):
        """Collective, algorithm, bytes of the vector and seconds of the last call that this rank made, or None."""
        cdef const coll_node_message *m
        if self.ended_at == 0:
            return self.latest
        m = &self.fast.job.call.message
        return collective_of(m), "shm", m.count * m.itemsize, coll_ticks_to_seconds(self.ended_at - self.begun_at)

    @property
    def running(self):
        """The operation that a thread is in on the fast path, or begins, without a list that says so; or None."""
        if self.progressing is None and self.fast is not None and self.fast.pending:
            return self.brief
        return self.progressing

    # What the context does

    def take_turn(self):
        """Begin a call; CollectiveError where one is under way in this process."""
        raise NotImplementedError

    def plan_for(self, cached):
        """A plan for a call like an earlier one."""
        raise NotImplementedError

    def keep(self, plan):
        """Take an idle plan back."""
        raise NotImplementedError

    def finish(self, operation, timeout=None, failure=None):
        """Wait for a blocking operation, which has begun, to its end; or say why it failed."""
        raise NotImplementedError

    def complete(self, operation, timeout=None):
        """Wait for a queued operation to its end."""
        raise NotImplementedError

    def test(self, operation):
        """Move a queued operation on; whether it has ended."""
        raise NotImplementedError

    def interrupted(self, operation, error):
        """Give up a blocking operation after an exception, if it is still under way and nobody else has."""
        raise NotImplementedError

    def look_for_quitters(self, operation):
        """Raise what has become of an operation for which a rank that gave up is needed."""
        raise NotImplementedError

    def ended_early(self, operation, error):
        """Note that a queued operation has ended with an error."""
        raise NotImplementedError

    def fail(self, operation, error):
        """Note that an operation has failed, and raise the error that says so."""
        raise NotImplementedError


cdef inline bint can_go_on(Calls calls) noexcept:
    return calls.broken is None and calls.alive[0] != 0 and not coll_progress_ended()


cdef inline bint some_gave_up(Calls calls) noexcept:
    cdef int rank
    return bool(calls.heard) or calls.engine is not None and coll_node_quitters(calls.engine.node, &rank, 1) > 0


cdef inline unsigned open_now(Calls calls) noexcept:
    """Bits of the collectives for which the fast path to the engine is open."""
    return calls.served & calls.admitted & calls.alive[0]


cdef inline bint may_begin(Calls calls) except -1:
    """Whether a call may begin now; what stands against it the slow path says in words."""
    if coll_progress_failures() != FAILURES:
        note_failures()
    return can_go_on(calls) and calls.admitted and is_free(&calls.turn.now)
