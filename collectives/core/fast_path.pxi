# The fast path of ordinary calls: from arguments to the node-local engine, or to a cached plan, without a Python frame;
# included by _core.pyx. Other calls take the slow path, in Python, which also raises the errors of wrong arguments.

cdef enum:
    PATIENCE = 20_000_000  # ns until Python looks at signals
    WITH_GIL = 1 << 20  # most bytes of a vector that may be moved while other Python threads wait


cdef class _Asked:
    """The options of a call that the fast path knows; None: not given."""

    cdef object algorithm, deterministic, timeout


cdef _Asked NOTHING_ASKED = _Asked.__new__(_Asked)


cdef _Asked asked_for(dict keywords, bint starts):
    """The options in the ``keywords`` of a call; None if the slow path must look at them."""
    cdef _Asked asked = _Asked.__new__(_Asked)
    for name, value in keywords.items():
        if name == "algorithm" and type(value) is str:
            asked.algorithm = value
        elif name == "deterministic" and type(value) is bool:
            asked.deterministic = value
        elif name == "timeout" and not starts and type(value) in (int, float) and 0 < value < 1e9:
            asked.timeout = value
        elif value is not None or name not in ("algorithm", "deterministic", "timeout"):
            return None
    return asked


cdef bint parse(Calls calls, coll_node_message *m, int kind, object send, object recv, object counts, object op):
    """Fill the message ``m``, except its root, from the arguments of a call; False if the call is not ordinary."""
    m.cuts = m.input_cuts = NULL
    if kind == BARRIER:
        m.kind = COLL_NODE_ALLREDUCE
        m.input = m.output = &calls.byte
        as_bytes(m, 0, -1)
        return True
    m.kind = <coll_node_kind>(kind & ~VECTOR)
    if kind & VECTOR:
        return fill_vector(m, &calls.member, send, recv, counts, op)
    return fill(m, &calls.member, send, recv, op)


cdef inline bint is_served(Calls calls, int kind, const coll_node_message *m) noexcept:
    """Whether the fast path to the engine serves a message."""
    return open_now(calls) >> kind & 1 and m.count * m.itemsize <= calls.longest[kind]


cdef bint launch(Calls calls, coll_node_message *m, uint64_t begun) except -1:
    """Run a filled message on the engine; True if the call has ended.

    False: the call is under way or has failed, the caller has the turn and must call ``finish``.
    """
    cdef coll_node_call *call = &calls.fast.job.call
    cdef Holder *turn = &calls.turn.now
    cdef coll_task task
    coll_node_begin(call, calls.engine.node, m)
    cdef int status = COLL_PENDING
    if most_moved(m, calls.member.size) <= WITH_GIL:
        status = coll_node_progress(call) if calls.yield_at_once else coll_node_spin(call)
    if turn.thread != 0:
        turn.inner = False
    calls.begun_at = calls.brief.begin = begun
    if status != COLL_OK:
        calls.ended_at, calls.latest.collective = 0, None
    if status == COLL_PENDING:
        task = calls.fast.task
        calls.fast.job.polled = begun  # short waits poll nothing
        begin_turn(turn)
        with nogil:
            status = coll_progress_wait(&task, NULL, calls.yield_at_once, PATIENCE)
        if status == COLL_OK:
            end_turn(turn)
    elif status != COLL_OK:
        begin_turn(turn)
    if status != COLL_OK:  # for an error, too: `finish` raises it and marks the communicator broken
        return False
    calls.ended_at = coll_ticks()
    if calls.log is not None:
        record_brief(calls)
    return True


cdef int finish(Calls calls, object owners, object timeout, object timeout_of=None) except -1:
    """Wait for a call for which ``launch`` returned False; ``owners`` keep its memory alive.

    The limit is ``timeout`` s, or ``timeout_of(timeout)``. A signal handler may raise before the wait or after it.
    """
    cdef int depth = calls.turn.now.depth
    calls.brief.buffers = owners
    try:
        calls.finish(calls.brief, timeout if timeout_of is None else timeout_of(timeout))
    except BaseException as e:
        calls.interrupted(calls.brief, e)
        raise
    finally:
        if calls.turn.now.depth == depth:
            end_turn(&calls.turn.now)
    calls.brief.buffers = None
    calls.ended_at = coll_ticks()
    if calls.log is not None:
        record_brief(calls)
    return 0


cdef int record_brief(Calls calls) except -1:
    """Record a blocking call of the engine, which has ended, on the timeline."""
    cdef const coll_node_message *m = &calls.fast.job.call.message
    calls.log.note(kind_of_message(m), m.count * m.itemsize, calls.number(), m.root, calls.begun_at, calls.ended_at)
    return 0


cdef Operation start(Calls calls, coll_node_message *m, object owners, object holder, uint64_t begun, bint visible):
    """Start a filled message on the engine as a non-blocking call; ``visible``: it gets an MPI request."""
    cdef Operation made = Operation.__new__(Operation)
    cdef NodePlan plan = node_plan(calls.engine)
    plan.take(m)
    made.context, made.plan, made.buffers, made.holder = calls, plan, owners, holder
    made.input = plan.message.input
    made.vector = plan.message.output
    made.request.mpi = calls.engine.mpi if visible else NULL
    try:
        made.launch()
    except BaseException as e:
        calls.fail(made, e)
    note_started(calls, made, collective_of(m), "shm", m.count * m.itemsize, begun)
    return made


# Memory at addresses, for torch

def kind_number(str collective):
    """The number of a collective, for :func:`run_memory` and :func:`start_memory`."""
    return kind_of(collective)


cdef bint fill_memory(coll_node_message *m, Calls calls, int kind, uintptr_t source, uintptr_t target, size_t count,
                      int dtype, int op, int root):
    """Fill the message of a call on memory at two addresses; False if the call is not ordinary or may not begin."""
    if not 0 <= root < calls.member.size or not may_begin(calls):
        return False
    m.kind = COLL_NODE_ALLREDUCE if kind == BARRIER else <coll_node_kind>kind
    m.root = root
    m.cuts = m.input_cuts = NULL
    as_bytes(m, count, -1)
    if kind != BARRIER and folding(m.kind):
        if not 0 <= dtype < coll_ndtypes() or not 0 <= op < coll_nops() or coll_reducep(dtype, op) == NULL:
            return False
        m.dtype = dtype
        m.op = op
        m.itemsize = coll_dtype_size(dtype)
    m.input = <const void *>source
    m.output = <void *>target
    return True


def memory_key(Calls calls not None, bint starts, int kind, uintptr_t source, uintptr_t target, size_t count,
               int dtype=-1, int op=-1, int root=0):
    """The key of a call of :func:`run_memory` or, with ``starts``, of :func:`start_memory`, for
    :meth:`Calls.keep_plan`; None if the call is not ordinary."""
    cdef coll_node_message message
    if not fill_memory(&message, calls, kind, source, target, count, dtype, op, root):
        return None
    return key_of(calls, &message, kind, starts, source == target, NOTHING_ASKED)


def run_memory(Calls calls not None, object owners, object timeout_of, object options, int kind, uintptr_t source,
               uintptr_t target, size_t count, int dtype=-1, int op=-1, int root=0):
    """Run a blocking call on memory at two addresses, equal or without overlap; False, with nothing done, if it must
    take the slow path.

    ``count`` is the length of all blocks together: elements of ``dtype`` for a reduction, else bytes.
    ``timeout_of(options)`` returns the timeout in seconds; it is called only if the call is not over at once.
    """
    cdef coll_node_message message
    cdef uint64_t begun = coll_ticks()
    if not fill_memory(&message, calls, kind, source, target, count, dtype, op, root):
        return False
    return run_message(calls, &message, kind, owners, timeout_of, options, begun)


cdef bint run_message(Calls calls, coll_node_message *m, int kind, object owners, object timeout_of, object options,
                      uint64_t begun) except -1:
    """Run a blocking call whose message is filled, as :func:`run_memory`; ``timeout_of`` may be None."""
    cdef CachedPlan found
    if not is_served(calls, kind, m):
        found = known(calls, m, kind, False, m.input == m.output, NOTHING_ASKED)
        if found is None or found.repeated is not None:
            return False
        run_cached(calls, found, m, owners, None if timeout_of is None else timeout_of(options), begun)
        return True
    if not launch(calls, m, begun):
        finish(calls, owners, options if timeout_of is not None else None, timeout_of)
    return True


def start_memory(Calls calls not None, object owners, int kind, uintptr_t source, uintptr_t target, size_t count,
                 int dtype=-1, int op=-1, int root=0):
    """Start a non-blocking call on memory at two addresses, with the parameters of :func:`run_memory`; returns its
    operation, or None, with nothing done, if the call must take the slow path."""
    cdef coll_node_message message
    cdef uint64_t begun = coll_ticks()
    cdef CachedPlan found
    if not calls.background or not fill_memory(&message, calls, kind, source, target, count, dtype, op, root):
        return None
    if not is_served(calls, kind, &message):
        found = known(calls, &message, kind, True, message.input == message.output, NOTHING_ASKED)
        return None if found is None else start_cached(calls, found, &message, owners, None, begun, False)
    return start(calls, &message, owners, None, begun, False)


# Buffers that must not move during a call

cpdef object hold(object memory):
    """An object that, while it lives, keeps an array from being resized, or another buffer from being resized or
    closed.

    NumPy does not resize an array that has a weak reference; it does not count exported buffers.
    """
    while isinstance(memory, cnp.ndarray):
        base = cnp.PyArray_BASE(<cnp.ndarray>memory)
        if base == NULL:
            return PyWeakref_NewRef(memory, NULL)
        memory = <object>base
    return PyMemoryView_FromObject(memory) if PyObject_CheckBuffer(memory) else memory


cdef inline object memory_of(object spec):
    """The memory of an ordinary specification: a list's first item, which the program may replace during the call.

    None of an empty list, as a rank may give where the root alone has memory.
    """
    if type(spec) is list or type(spec) is tuple:
        return spec[0] if len(spec) else None
    return spec


cdef inline object held(object spec):
    """What keeps the memory of an ordinary specification alive and where it is, for a call that goes on by itself."""
    memory = memory_of(spec)
    return None if memory is IN_PLACE or memory is None else (memory, hold(memory))


cdef inline object kept(object spec):
    """As :func:`held`, for a blocking call; the caller keeps an array that it resizes at its own risk meanwhile."""
    memory = memory_of(spec)
    return memory if stays(memory) else (memory, hold(memory))


cdef inline bint stays(object spec):
    """Whether a blocking call needs to hold nothing of a specification: its caller has a reference."""
    return type(spec) is cnp.ndarray or spec is None or spec is IN_PLACE


# Methods of a communicator

cdef class _Method:
    """What the fast path knows of one method: the collective, whether it starts a non-blocking call, and ``first``,
    which runs a call on the slow path and keeps its plan for calls with the same key."""

    cdef int kind, variant
    cdef bint starts
    cdef object first


cdef object SLOW_PATH = object()  # returned by `serve` if it has done nothing


cdef inline object serve(_Method method, object comm, object send, object recv, object counts, object op, int root,
                         dict keywords):
    """Serve an ordinary call and return its result, None or a request; SLOW_PATH, with nothing done, for others."""
    cdef coll_node_message message
    cdef uint64_t begun = coll_ticks()
    cdef int kind = method.kind
    context = context_of(comm)
    if context is None:
        return SLOW_PATH
    cdef Calls calls = <Calls>context
    cdef _Asked asked = asked_for(keywords, method.starts) if keywords else NOTHING_ASKED
    cdef int bit = EXCHANGE_KIND + method.variant if method.variant else kind
    cdef bint on_node = open_now(calls) >> bit & 1 and (calls.background or not method.starts)
    if asked is None or root < 0 or root >= calls.member.size or not may_begin(calls):
        return SLOW_PATH
    on_node = on_node and (asked.algorithm is None or asked.algorithm == "shm")
    message.root = root
    if not on_node and calls.cached is None:
        return SLOW_PATH
    if method.variant:
        if not fill_exchange(calls, &message, method, send, recv):
            return SLOW_PATH
    elif not parse(calls, &message, kind, send, recv, counts, op):
        return SLOW_PATH
    if not on_node or not is_served(calls, bit, &message):
        return like_earlier(method, comm, calls, &message, send, recv, counts, op, keywords, asked, begun)
    if method.starts:
        return request_of(start(calls, &message, (held(send), held(recv)), comm, begun, True))
    owners = None
    if not (stays(recv) and stays(send)):
        owners = kept(send), kept(recv)  # other threads run while this one waits
    if not launch(calls, &message, begun):
        finish(calls, (send, recv) if owners is None else owners, asked.timeout)
    if method.variant:
        unpack(calls, method.variant)
    return None


cdef object like_earlier(_Method method, object comm, Calls calls, coll_node_message *m, object send, object recv,
                         object counts, object op, dict keywords, _Asked asked, uint64_t begun):
    """Serve a call that does not go to the engine, with its message filled, by a cached plan or by ``method.first``."""
    cdef int kind = method.kind | method.variant << 20
    if calls.cached is None or m.cuts != NULL and calls.member.size > MOST_RANKS:
        return SLOW_PATH
    if m.input == m.output and send is not None and send is not IN_PLACE and not method.variant:
        return SLOW_PATH
    cdef bint in_place = send is IN_PLACE or recv is IN_PLACE
    cdef CachedPlan found = known(calls, m, kind, method.starts, in_place, asked)
    if found is None or found.repeated is not None:
        source, target = <uintptr_t>m.input, <uintptr_t>m.output
        if method.kind == COLL_NODE_BCAST:
            send, recv = recv, None
        if found is not None and asked.timeout is None:
            owners = kept(send), kept(recv)  # other threads run while MPI waits
            if found.repeated.run(comm, source, target, send, recv, op, m.root, counts):
                return None
        key = key_of(calls, m, kind, method.starts, in_place, asked)
        return method.first(comm, (key, source, target), send, recv, op, m.root, counts, keywords)
    if method.starts:
        return request_of(start_cached(calls, found, m, (held(send), held(recv)), comm, begun, True))
    run_cached(calls, found, m, (kept(send), kept(recv)), asked.timeout, begun)
    if method.variant:
        unpack(calls, method.variant)
    return None


def fast_path(str collective, slow_path, first, SUM, MISSING):
    """Make a method of a communicator: ordinary calls go to the engine or to a cached plan, others to ``slow_path``.

    ``first`` runs the first call with a key, and keeps its plan by :meth:`Calls.keep_plan`. The method is non-blocking
    if the name of ``slow_path`` is that of ``collective`` with an ``I`` before it. The methods are compiled, since a
    Python function takes as long as a collective of 8 bytes. ``SUM`` is the default op. A buffer that is not given is
    ``MISSING``, also for ``slow_path``, whose error names the method: an error of Cython's would name these functions.
    """
    cdef _Method method = _Method.__new__(_Method)
    method.kind, method.first = kind_of(collective), first
    if method.kind > EXCHANGE_KIND:
        method.variant, method.kind = method.kind - EXCHANGE_KIND, VECTOR | COLL_NODE_ALLTOALL
    method.starts = slow_path.__name__ == "I" + collective

    def reducing(self=None, sendbuf=MISSING, recvbuf=MISSING, op=SUM, *more, **keywords):
        made = SLOW_PATH if more else serve(method, self, sendbuf, recvbuf, None, op, 0, keywords)
        return made if made is not SLOW_PATH else slow_path(self, sendbuf, recvbuf, op, *more, **keywords)

    def scattering(self=None, sendbuf=MISSING, recvbuf=MISSING, recvcounts=None, op=SUM, *more, **keywords):
        ours = not more and recvcounts is not None
        made = serve(method, self, sendbuf, recvbuf, recvcounts, op, 0, keywords) if ours else SLOW_PATH
        return made if made is not SLOW_PATH else slow_path(self, sendbuf, recvbuf, recvcounts, op, *more, **keywords)

    def reducing_to_root(self=None, sendbuf=MISSING, recvbuf=MISSING, op=SUM, root=0, *more, **keywords):
        ours = not more and type(root) is int and -1 < root < 1 << 31 and recvbuf is not MISSING
        made = serve(method, self, sendbuf, recvbuf, None, op, root, keywords) if ours else SLOW_PATH
        return made if made is not SLOW_PATH else slow_path(self, sendbuf, recvbuf, op, root, *more, **keywords)

    def moving(self=None, sendbuf=MISSING, recvbuf=MISSING, *more, **keywords):
        made = SLOW_PATH if more else serve(method, self, sendbuf, recvbuf, None, None, 0, keywords)
        return made if made is not SLOW_PATH else slow_path(self, sendbuf, recvbuf, *more, **keywords)

    def rooted(self=None, sendbuf=MISSING, recvbuf=MISSING, root=0, *more, **keywords):
        ours = not more and type(root) is int and -1 < root < 1 << 31
        ours = ours and sendbuf is not MISSING and recvbuf is not MISSING  # of which some ranks need only one
        made = serve(method, self, sendbuf, recvbuf, None, None, root, keywords) if ours else SLOW_PATH
        return made if made is not SLOW_PATH else slow_path(self, sendbuf, recvbuf, root, *more, **keywords)

    def bcast(self=None, buf=MISSING, root=0, *more, **keywords):
        ours = not more and type(root) is int and -1 < root < 1 << 31
        made = serve(method, self, None, buf, None, None, root, keywords) if ours else SLOW_PATH
        return made if made is not SLOW_PATH else slow_path(self, buf, root, *more, **keywords)

    def barrier(self=None, *more, **keywords):
        made = SLOW_PATH if more else serve(method, self, None, None, None, None, 0, keywords)
        return made if made is not SLOW_PATH else slow_path(self, *more, **keywords)

    methods = {
        "allreduce": reducing, "reduce_scatter_block": reducing, "scan": reducing, "exscan": reducing,
        "reduce_scatter": scattering, "reduce": reducing_to_root, "bcast": bcast, "barrier": barrier,
        "gather": rooted, "gatherv": rooted, "scatter": rooted, "scatterv": rooted,
    }
    return dressed(methods.get(collective, moving), slow_path)


cdef object dressed(object method, object slow_path):
    for attribute in ("__doc__", "__name__", "__qualname__", "__module__"):
        setattr(method, attribute, getattr(slow_path, attribute))
    method.__signature__ = getattr(slow_path, "__signature__", None) or signature(slow_path)
    return method
