# The state of a communicator's calls in compiled code: numbers, tags, turns, cached plans; included by _core.pyx.

cdef class Operation
cdef class CachedPlan
cdef class Kept
cdef class _Frames
cdef class Peers

cdef enum:
    RECENT = 64  # most recent calls, other than the engine's, that a rank remembers

cdef unsigned ALL_KINDS = ~<unsigned>0


cdef inline uint32_t mixed(uint32_t a, uint32_t b) noexcept:
    """A hash of two numbers, never 0: the finalizer of MurmurHash3 (A. Appleby, public domain)."""
    cdef uint32_t h = (a ^ b) + <uint32_t>0x9E3779B9
    h = (h ^ h >> 16) * <uint32_t>0x85EBCA6B
    h = (h ^ h >> 13) * <uint32_t>0xC2B2AE35
    h ^= h >> 16
    return h if h else 1


@cython.final
cdef class Latest:
    """The last call of a communicator that ended well, unless it took the fast path; ``collective`` may be None."""

    cdef str collective, algorithm
    cdef size_t nbytes
    cdef uint64_t ticks


cdef class Calls:
    """The calls of a communicator; the library's context of a communicator derives from this class.

    Compiled code reads and writes its fields, and calls the methods at its end, which the context overrides.
    ``broken`` says why there can be no more calls, or is None. ``heard`` has the answers of ranks that have failed.
    ``elsewhere`` counts the calls that the node-local engine did not serve, without comparisons before calls.
    ``history`` is a hash of these calls' kinds, equal on ranks whose calls were equal. ``recent`` has the numbers of
    the last 64 of them, with functions that describe them. ``background``: the progress thread can complete non-blocking
    calls. ``deterministic``: calls that do not say otherwise fold in rank order.
    """

    cdef Member member
    cdef uint64_t served          # bits of the collectives for which the fast path to the engine is open
    cdef unsigned admitted        # all bits, or none while calls are collected for a group
    cdef const unsigned *alive    # all bits until the communicator is freed, perhaps through another handle
    cdef size_t[64] longest       # by collective: bytes of the longest vector that the fast path to the engine takes
    cdef Node engine
    cdef NodePlan fast            # the plan of blocking calls on the fast path to the engine
    cdef readonly Operation brief # the operation that stands for such a call while it is waited for in Python
    cdef uint64_t begun_at, ended_at  # ticks of the last such call; ended_at is 0 if another call was later
    cdef Life attribute
    cdef readonly Turn turn
    cdef public Log log           # None unless a timeline is recorded
    cdef public bint yield_at_once, background, deterministic
    cdef public object broken, timeout
    cdef public dict heard
    cdef long long[RECENT] numbers  # of the most recent calls, and what describes them: the newest is at `remembered` - 1
    cdef list descriptions
    cdef uint64_t remembered
    cdef public long long elsewhere
    cdef readonly uint32_t history
    cdef public long long drawn   # calls that have taken tags so far
    cdef int tags, kinds, stride, depth
    cdef dict cached              # CachedPlan by key; None: none are kept
    cdef CachedPlan last_cached   # what a call without options found there last, or None; the call:
    cdef coll_node_message last_message
    cdef int last_kind
    cdef Kept kept                # bytes of the plans that these keep
    cdef unsigned char byte       # the vector of barriers that are served by schedules
    cdef Operation progressing    # a blocking call by a cached plan, or a call that is being begun
    cdef Latest latest            # the last call, if `ended_at` is 0
    cdef _Frames frames           # memory for calls with objects
    cdef public Peers all_peers, near_peers  # with whom ranks exchange blocks; None before the first such call

    def __cinit__(self):
        self.turn = Turn()
        self.latest = Latest()
        self.descriptions = [None] * RECENT
        self.heard = {}
        self.alive, self.admitted = &ALL_KINDS, ALL_KINDS
        self.tags = self.kinds = self.stride = self.depth = 1

    def __dealloc__(self):
        free(self.member.cuts)

    def set_group(self, int rank, int size):
        """Set this process's rank and the number of ranks."""
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
        """The group of the node-local engine of this node's ranks; None without a heap, or before it is made."""
        return self.engine

    @node.setter
    def node(self, Node node):
        self.engine = node
        self.fast = None if node is None else node_plan(node)
        self.brief = None if node is None else Operation(self, self.fast)

    @property
    def token(self):
        """Address of a byte, the vector of barriers that schedules serve."""
        return <uintptr_t>&self.byte

    @property
    def life(self):
        """A :class:`Life`, which says whether the program has freed the communicator; None without MPI."""
        return self.attribute

    @life.setter
    def life(self, Life life not None):
        self.attribute = life
        self.alive = <const unsigned *>&life.life.alive

    # The fast path

    def open(self, longest):
        """Let the fast path to the engine serve the collectives in ``longest`` that it can serve, and no others.

        ``longest`` has, for each, the bytes of the longest vector, or None for any length. The latter is needed where
        a rank knows the lengths of some blocks only.
        """
        self.served = 0
        for name, nbytes in longest.items():
            if name in FAST_COLLECTIVES or name in EXCHANGES:
                self.served |= <uint64_t>1 << kind_of(name)
                self.longest[kind_of(name)] = <size_t>-1 if nbytes is None else nbytes

    def close(self):
        """Serve no more calls on the fast path to the engine."""
        self.served = 0

    def admit(self, bint calls):
        """Let calls take the fast path (True), or send all of them to the slow path (False)."""
        self.admitted = ALL_KINDS if calls else 0

    def cache(self, bint plans):
        """Drop all cached plans; keep new ones from now on if ``plans``."""
        self.cached, self.kept, self.last_cached = {} if plans else None, Kept(), None

    def keep_plan(self, key, CachedPlan plan not None):
        """Keep ``plan`` for calls with ``key``; if there are 1000 keys already, drop them all first."""
        if self.cached is None:
            return
        if len(self.cached) >= MOST_CACHED:
            self.cache(True)
        self.cached[key], plan.among, self.last_cached = plan, self.kept, None

    # Numbers and tags

    @property
    def begun(self):
        """Number of calls begun on the communicator, without persistent ones; between calls equal on all ranks."""
        return self.number()

    cdef long long number(self) noexcept:
        # The engine serves whole calls only if all ranks are in its group, else parts of calls.
        cdef bint whole = self.engine is not None and self.engine.size == self.member.size
        return self.elsewhere + (<long long>coll_node_calls(self.engine.node) if whole else 0)

    def divide_tags(self, int calls, int kinds, int stride, int depth):
        """Divide the tags: ``kinds`` ranges of ``stride`` tags, each with ``calls`` calls of ``depth`` tags."""
        self.tags, self.kinds, self.stride, self.depth = calls, kinds, stride, depth

    cpdef int count(self, uint32_t kind, describe) except -1:
        """Count a call that begins and that the engine does not serve; returns the first of its tags.

        ``describe()`` makes a Call that describes it. Calls come in the same order on all ranks. ``kind`` and the kinds
        of all earlier calls decide the range of tags, so that messages of calls that differ do not match in general.
        """
        cdef int tag
        self.count_mpi(describe)
        if self.engine is not None:
            for channel in self.engine.channels[:self.engine.made]:
                coll_node_mix(channel, kind)
        self.history = mixed(self.history, kind)
        tag = self.history % self.kinds * self.stride + self.drawn % self.tags * self.depth
        self.drawn += 1
        return tag

    cpdef int count_mpi(self, describe) except -1:
        """Count a call that begins and that the engine does not serve; ``describe()`` makes the Call to remember."""
        self.elsewhere += 1
        self.numbers[self.remembered % RECENT] = self.number()
        self.descriptions[self.remembered % RECENT] = describe
        self.remembered += 1
        return 0

    @property
    def recent(self):
        """Numbers of the most recent calls, the newest last, with the functions that describe them; and whether there
        were earlier ones."""
        cdef uint64_t i, first = self.remembered - RECENT if self.remembered > RECENT else 0
        calls = [(self.numbers[i % RECENT], self.descriptions[i % RECENT]) for i in range(first, self.remembered)]
        return calls, first > 0

    @property
    def usable(self):
        """Whether there can be more calls; if not, the slow path raises the reason."""
        return can_go_on(self)

    @property
    def some_gave_up(self):
        """Whether ranks are known to have given up a call; later calls may wait for them in vain."""
        return some_gave_up(self)

    # The last call, and the running one

    def ran(self, str collective, str algorithm, size_t nbytes, uint64_t begun):
        """Record the last call that this rank made; it began at tick ``begun`` and returns now."""
        note_last(self, collective, algorithm, nbytes, begun)

    def ended(self, str collective, str algorithm, size_t nbytes, int root, uint64_t begun):
        """Record a blocking call that began at tick ``begun`` and returns now, on the timeline too."""
        note_ended(self, collective, algorithm, nbytes, root, begun)

    def started(self, Operation made not None, str collective, str algorithm, size_t nbytes, uint64_t begun):
        """Record a non-blocking call that began at tick ``begun`` and is under way, on the timeline too."""
        note_started(self, made, collective, algorithm, nbytes, begun)

    @property
    def last(self):
        """Collective, algorithm, bytes of the vector and seconds of the last call that ended well, or None.

        None, too, while a call waits, and after one that failed.
        """
        cdef const coll_node_message *m
        cdef Latest latest = self.latest
        if self.ended_at == 0 and latest.collective is None:
            return None
        if self.ended_at == 0:
            return latest.collective, latest.algorithm, latest.nbytes, coll_ticks_to_seconds(latest.ticks)
        m = &self.fast.job.call.message
        return collective_of(m), "shm", m.count * m.itemsize, coll_ticks_to_seconds(self.ended_at - self.begun_at)

    @property
    def running(self):
        """The operation that a thread runs on the fast path, or just begins; None if there is none."""
        if self.progressing is None and self.fast is not None and self.fast.pending:
            return self.brief
        return self.progressing

    # Overridden by the context

    def take_turn(self):
        """Take the turn for a call; CollectiveError if a call is under way in this process."""
        raise NotImplementedError

    def plan_for(self, cached):
        """A plan with the key of ``cached``."""
        raise NotImplementedError

    def keep(self, plan):
        """Keep ``plan``, which is idle now, for another call."""
        raise NotImplementedError

    def finish(self, operation, timeout=None, failure=None):
        """Wait until a blocking operation, which has begun, ends; or fail it with ``failure``."""
        raise NotImplementedError

    def complete(self, operation, timeout=None):
        """Wait until a queued operation ends; ``timeout`` is in seconds (default: the communicator's)."""
        raise NotImplementedError

    def test(self, operation):
        """Progress a queued operation and return whether it has ended."""
        raise NotImplementedError

    def end_glances(self, operation):
        """Stop watching a queued operation that the program has tested."""
        raise NotImplementedError

    def interrupted(self, operation, error):
        """Give up a blocking operation after an exception, unless it has ended well or its failure is recorded."""
        raise NotImplementedError

    def torn(self, collective, error):
        """Give up a call of several parts after an exception between two of them, unless one of them has failed."""
        raise NotImplementedError

    def look_for_quitters(self, operation):
        """Raise the error of an operation that needs a rank which has given up; return otherwise."""
        raise NotImplementedError

    def ended_early(self, operation, error):
        """Record that a queued operation has ended with ``error``."""
        raise NotImplementedError

    def fail(self, operation, error):
        """Record that an operation has failed by ``error``, and raise the error that the program is to see."""
        raise NotImplementedError


cdef void note_last(Calls calls, str collective, str algorithm, size_t nbytes, uint64_t begun) noexcept:
    calls.latest.collective, calls.latest.algorithm = collective, algorithm
    calls.latest.nbytes, calls.latest.ticks = nbytes, coll_ticks() - begun
    calls.ended_at = 0


cdef int note_ended(Calls calls, str collective, str algorithm, size_t nbytes, int root, uint64_t begun) except -1:
    note_last(calls, collective, algorithm, nbytes, begun)
    if calls.log is not None:
        calls.log.add(COLL_TRACE_BLOCKING, collective, algorithm, nbytes, calls.number(), root, begun)
    return 0


cdef int note_started(Calls calls, Operation made, str collective, str algorithm, size_t nbytes, uint64_t begun) except -1:
    note_last(calls, collective, algorithm, nbytes, begun)
    if calls.log is not None:
        made.put_on_timeline(calls.log, COLL_TRACE_NONBLOCKING, made.of_number, begun)
    return 0


cdef inline bint can_go_on(Calls calls) noexcept:
    return calls.broken is None and calls.alive[0] != 0 and not coll_progress_ended()


cdef inline bint some_gave_up(Calls calls) noexcept:
    cdef int rank
    return bool(calls.heard) or calls.engine is not None and coll_node_quitters(calls.engine.node, &rank, 1) > 0


cdef inline uint64_t open_now(Calls calls) noexcept:
    """Bit mask of the collectives that the fast path to the engine serves now."""
    return calls.served if calls.admitted & calls.alive[0] else 0


cdef inline bint may_begin(Calls calls) except -1:
    """Whether a call may begin now; if not, the slow path raises the reason."""
    if coll_progress_failures() != FAILURES:
        note_failures()
    return can_go_on(calls) and calls.admitted and is_free(&calls.turn.now)
