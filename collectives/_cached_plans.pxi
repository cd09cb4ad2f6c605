# Calls like earlier ones, between hosts or by a schedule that was asked for: what was found about the first one, and a
# plan, are kept by all that decides it, so that the next one needs no Python frame. Included by _core.pyx.

cdef enum:
    KEPT = 65536            # bytes of a plan that a cached one keeps for itself,
    KEPT_IN_ALL = 4 << 20   # and of those of a communicator

    MOST_CACHED = 1000  # calls of one communicator
    MOST_RANKS = 256  # whose counts are part of a key: of more they would take much memory


cdef inline uint32_t mixed(uint32_t a, uint32_t b) noexcept:
    """A number that follows from two, never 0: the finalizer of MurmurHash3 (A. Appleby, public domain)."""
    cdef uint32_t h = (a ^ b) + <uint32_t>0x9E3779B9
    h = (h ^ h >> 16) * <uint32_t>0x85EBCA6B
    h = (h ^ h >> 13) * <uint32_t>0xC2B2AE35
    h ^= h >> 16
    return h if h else 1


cdef class Numbers:
    """Numbers of a communicator's calls that are MPI's or a schedule's, and the tags that follow from them.

    ``elsewhere`` counts them, less exchanges before calls. ``history`` is the same on all ranks whose calls were.
    ``running``: the fast call that is under way, its number, which may be None, and its plan; or None.
    """

    cdef public long long elsewhere
    cdef readonly uint32_t history
    cdef readonly object running
    cdef public long long drawn  # tags, so far
    cdef int calls, kinds, stride, depth
    cdef size_t kept  # bytes of plans of cached ones

    def __cinit__(self):
        self.calls = self.kinds = self.stride = self.depth = 1

    def divide_tags(self, int calls, int kinds, int stride, int depth):
        """Tags for ``calls`` calls of ``depth`` tags each, in each of ``kinds`` ranges of ``stride``."""
        self.calls, self.kinds, self.stride, self.depth = calls, kinds, stride, depth

    cpdef int tag(self, uint32_t kind):
        """First of the tags of the next call, which is of a kind; it comes in the same order on all ranks.

        Messages of calls of different kinds never match, nor those of calls before which the ranks' calls differed.
        """
        self.history = mixed(self.history, kind)
        cdef int tag = self.history % self.kinds * self.stride + self.drawn % self.calls * self.depth
        self.drawn += 1
        return tag


cdef class CachedPlan:
    """What a call became: a choice, a shape, a number for its kind; and a plan for the next one like it.

    ``memory`` is a buffer that all such calls use, where they have none of their own.
    """

    cdef readonly object choice, shape
    cdef readonly str collective
    cdef readonly size_t nbytes
    cdef str algorithm
    cdef uint32_t kind
    cdef readonly object memory
    cdef object describe
    cdef Plan plan

    def __cinit__(self, str collective, choice, shape, size_t nbytes, uint32_t kind, memory=None):
        self.collective, self.choice, self.shape, self.nbytes, self.kind = collective, choice, shape, nbytes, kind
        self.algorithm = choice.algorithm.name
        self.describe, self.memory = shape.call, memory

    cdef int place(self, coll_node_message *m) except -1:
        """Have the call use the memory of all such calls."""
        if self.memory is not None:
            m.input = m.output = <void *><uintptr_t>address(self.memory)
        return 0


cdef int give_back(object context, CachedPlan found, Plan plan) except -1:
    """Keep a plan for the next call."""
    cdef Numbers numbers = context.numbers
    if plan.footprint <= KEPT and found.plan is None and numbers.kept + plan.footprint <= KEPT_IN_ALL:
        found.plan = plan
        numbers.kept += plan.footprint
    else:
        context.take_back(found, plan)
    return 0


cdef Plan take_plan(object context, CachedPlan found):
    """The plan that was kept, or another one."""
    cdef Plan plan = found.plan
    cdef Numbers numbers = context.numbers
    if plan is None:
        return context.plan_for(found)
    found.plan = None
    numbers.kept -= min(numbers.kept, plan.footprint)
    return plan


cdef class CachedPlans:
    """Those of a communicator. ``turn`` is whose call it serves, ``node`` its group of the node-local engine, or None."""

    cdef Member member
    cdef readonly object context
    cdef Numbers numbers
    cdef Node node
    cdef Life life
    cdef const coll_mpi_api *api
    cdef Turn turn
    cdef object recent
    cdef dict known

    def __cinit__(self, context, Life life not None):
        self.context, self.node, self.life, self.api = context, context.node, life, life.api
        self.numbers, self.turn, self.recent = context.numbers, context.turn, context.recent
        self.known = {}
        self.numbers.kept = 0
        self.member.rank, self.member.size = context.rank, context.size
        self.member.cuts = <size_t *>malloc(2 * (self.member.size + 1) * sizeof(size_t))
        if self.member.cuts == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.member.cuts)

    def add(self, key, CachedPlan plan not None):
        """Keep what calls of a key become, as the first of them did."""
        if len(self.known) >= MOST_CACHED:
            self.known.clear()
            self.numbers.kept = 0
        self.known[key] = plan

    cdef bint serves(self) except -1:
        """Whether a call may begin now; what stands against it the slow way says in words."""
        return (self.life.life.alive != 0 and not coll_progress_ended() and is_free(&self.turn.now)
                and self.context.broken is None)

    cdef tuple key_of(self, const coll_node_message *m, int kind, int form, bint in_place, algorithm, deterministic):
        """All that decides what a call becomes, but for the addresses."""
        cdef Py_ssize_t table = (self.member.size + 1) * sizeof(size_t)
        cuts = None
        if m.cuts != NULL:
            cuts = PyBytes_FromStringAndSize(<char *>m.cuts, table)
            if m.input_cuts != NULL:
                cuts += PyBytes_FromStringAndSize(<char *>m.input_cuts, table)
        return (kind | form << 8 | in_place << 16, m.count, m.itemsize, m.dtype, m.op, m.type, m.root, cuts, algorithm,
                deterministic)

    cdef int count(self, CachedPlan found, Plan plan) except -1:
        """Number a call that begins; its first tag."""
        cdef Numbers numbers = self.numbers
        cdef long long number
        numbers.elsewhere += 1
        number = numbers.elsewhere
        if self.node is not None:
            number += coll_node_calls(self.node.node)
            coll_node_mix(self.node.node, found.kind)
        self.recent.append((number, found.describe, found.algorithm))
        numbers.running = found, number, plan
        log = self.context.log
        if log is not None:
            (<Log>log).elsewhere = numbers.elsewhere
        return numbers.tag(found.kind)

    cdef int run(self, comm, CachedPlan found, coll_node_message *m, owners, timeout, uint64_t begun) except -1:
        """A blocking call like an earlier one."""
        cdef Plan plan
        cdef int depth = self.turn.now.depth
        if len(FLIGHTS):
            FLIGHT.sweep()
        plan = take_plan(self.context, found)
        found.place(m)
        if is_free(&self.turn.now):
            begin_turn(&self.turn.now)
        else:  # another thread has come between
            give_back(self.context, found, plan)
            self.context.take_turn()
        try:
            self.complete(comm, found, plan, m, owners, timeout)
        except BaseException as e:
            self.context.interrupted_in(found, plan, owners, e)
            raise
        finally:
            self.numbers.running = None
            if self.turn.now.depth > depth:
                end_turn(&self.turn.now)
        give_back(self.context, found, plan)
        return self.record(comm, found, m.root, begun)

    cdef int complete(self, comm, CachedPlan found, Plan plan, coll_node_message *m, owners, timeout) except -1:
        """Start, and wait for a while; Python goes on from there, and says what is wrong."""
        cdef object context = self.context
        cdef coll_exec *execution = plan.execution
        cdef coll_task task = plan.task
        cdef long limit = PATIENCE
        cdef bint yields = context.yield_at_once
        cdef int tag, status
        if timeout is None:
            timeout = context.timeout
        if timeout is not None:
            limit = <long>min(<double>PATIENCE, <double>timeout * 1e9)
        tag = self.count(found, plan)
        with nogil:
            status = coll_exec_start(execution, m.input, m.output, tag)
            if status == COLL_OK:
                status = coll_progress_wait(&task, NULL, yields, limit)
        if status != COLL_OK or context.heard or self.node is not None and self.node.given_up:
            context.go_on_with(found, plan, owners, timeout, None if status >= 0 else error(status, "collective"))
        return 0

    cdef object start(self, comm, CachedPlan found, coll_node_message *m, owners, uint64_t begun):
        """The request of a non-blocking call like an earlier one."""
        cdef PlanCall made = PLANNED.__new__(PLANNED)
        cdef object context = self.context
        make_room()
        made.cached, made.plan = found, take_plan(context, found)
        made.context, made.buffers, made.holder = context, owners, comm
        made.yields, made.scheduled = context.yield_at_once, True
        found.place(m)
        made.api, made.input, made.vector = self.api, m.input, m.output
        try:
            made.tag = self.count(found, made.plan)
            made.number, made.history = self.numbers.running[1], self.numbers.history
            made.begin()
            if context.heard or self.node is not None and self.node.given_up:
                context.look_for_quitters(made.run)
        except BaseException as e:
            context.fail(made.run, e)
        finally:
            self.numbers.running = None
        self.note(comm, found, begun)
        if context.log is not None:
            made.recorded(context.log, COLL_TRACE_NONBLOCKING, made.number, begun)
        return REQUEST(made)

    cdef int note(self, comm, CachedPlan found, uint64_t begun) except -1:
        comm._last = found.collective, found.algorithm, found.nbytes, coll_ticks_to_seconds(coll_ticks() - begun)
        if self.node is not None:
            self.node.ended = 0
        return 0

    cdef int record(self, comm, CachedPlan found, int root, uint64_t begun) except -1:
        """Note a call that has ended."""
        self.note(comm, found, begun)
        log = self.context.log
        if log is not None:
            (<Log>log).add(COLL_TRACE_BLOCKING, found.collective, found.algorithm, found.nbytes, self.context.begun, root,
                           begun)
        return 0


cdef object call_cached(object comm, CachedPlans cache, str collective, int kind, int form, object send, object recv,
                        object counts, object op, int root, dict keywords, uint64_t begun):
    """A blocking or non-blocking call, if it is like an earlier one, or is ordinary and the first of its kind."""
    cdef coll_node_message m
    cdef bint filled
    algorithm = deterministic = timeout = None
    if keywords:
        for name, value in keywords.items():
            if name == "algorithm" and type(value) is str:
                algorithm = value
            elif name == "deterministic" and type(value) is bool:
                deterministic = value
            elif name == "timeout" and form == 0 and type(value) in (int, float) and 0 < value < 1e9:
                timeout = value
            elif value is not None or name not in ("algorithm", "deterministic", "timeout"):
                return LONG_WAY
    if root < 0 or root >= cache.member.size or not cache.serves():
        return LONG_WAY
    m.root = root
    m.cuts = m.input_cuts = NULL
    if kind == BARRIER:
        m.kind = COLL_NODE_ALLREDUCE
        m.input = m.output = NULL
        as_bytes(&m, 0, -1)
    else:
        m.kind = <coll_node_kind>(kind & ~VECTOR)
        if kind & VECTOR:
            filled = fill_vector(&m, &cache.member, send, recv, counts, op)
        else:
            filled = fill(&m, &cache.member, send, recv, op)
        if m.cuts != NULL and cache.member.size > MOST_RANKS:
            return LONG_WAY
        if not filled or (m.input == m.output and m.input != NULL and send is not IN_PLACE and kind != COLL_NODE_BCAST):
            return LONG_WAY
    key = cache.key_of(&m, kind, form, send is IN_PLACE or recv is IN_PLACE, algorithm, deterministic)
    found = cache.known.get(key)
    if found is None:
        return comm._first(form == STARTS, collective, (key, <uintptr_t>m.input, <uintptr_t>m.output),
                           recv if kind == COLL_NODE_BCAST else send, None if kind == COLL_NODE_BCAST else recv, op, root,
                           counts, keywords)
    if form == STARTS:
        return cache.start(comm, <CachedPlan>found, &m, (send, recv, held(send, True), held(recv, True)), begun)
    kept = None
    if not (stays(recv) and stays(send)):
        kept = held(send, False), held(recv, False)  # other threads run while this one waits
    cache.run(comm, <CachedPlan>found, &m, (send, recv, kept), timeout, begun)
    return None
