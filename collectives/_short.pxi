# The short way of ordinary calls: from mpi4py's arguments to the node-local engine without a Python frame; included by
# _core.pyx. What is not ordinary goes the long way, in Python, which also finds the words for what is wrong.

cdef bint ordinary(coll_node_message *m, Node node, int kind, object send, object recv, object counts, object op,
                   int root):
    """Fill the message of a call, if it is an ordinary one that this engine serves; else False, with nothing done."""
    cdef bint filled
    if not open_now(node) >> kind & 1 or coll_progress_ended() or root < 0 or root >= node.size or not is_free(node.holder):
        return False
    m.root = root
    m.cuts = m.input_cuts = NULL
    if kind == BARRIER:
        m.kind = COLL_NODE_ALLREDUCE
        m.input = m.output = NULL
        as_bytes(m, 0, -1)
        return True
    m.kind = <coll_node_kind>(kind & ~VECTOR)
    if kind & VECTOR:
        filled = fill_vector(m, &node.member, send, recv, counts, op)
    else:
        filled = fill(m, &node.member, send, recv, op)
    return filled and m.count * m.itemsize <= node.longest[kind]


cdef enum:
    PATIENCE = 20_000_000  # ns until Python looks at signals

#: What a method does with a call: run it, start it, or set it up to be started.
FORMS = ("blocks", "starts", "lasts")
cdef enum:
    STARTS = 1
    LASTS = 2


cdef bint launch(Node node, coll_node_message *m, uint64_t begun) except -1:
    """Run a filled message; False when it is under way or failed, to be gone on with by ``node.wait``.

    The turn is the caller's then.
    """
    coll_node_begin(&node.job.call, node.node, m)
    cdef int status = coll_node_progress(&node.job.call) if node.yield_at_once else coll_node_spin(&node.job.call)
    cdef coll_task task
    if node.holder.thread != 0:
        node.holder.inner = False
    node.begun = begun
    if status == COLL_PENDING:
        task = coll_node_task(&node.job)
        begin_turn(node.holder)
        with nogil:
            status = coll_progress_wait(&task, NULL, node.yield_at_once, PATIENCE)
        if status == COLL_OK:
            end_turn(node.holder)
    elif status != COLL_OK:
        begin_turn(node.holder)
    if status != COLL_OK:  # an error too: `wait` raises it where the communicator learns of it
        return False
    node.ended = coll_ticks()
    if node.log is not None:
        node.log.short(node)
    return True


def node_call(str collective, Node node, send, recv, op=None, int root=0):
    """An ordinary collective on a node: 1: done; 0: not an ordinary one; -1: begun, for ``node.wait`` to go on with."""
    cdef coll_node_message message
    cdef uint64_t begun = coll_ticks()
    if not ordinary(&message, node, kind_of(collective), send, recv, None, op, root):
        return 0
    return 1 if launch(node, &message, begun) else -1


def short_kind(str collective):
    """What :func:`node_memory` knows a collective by."""
    return kind_of(collective)


cdef bint fill_memory(coll_node_message *m, Node node, int kind, uintptr_t source, uintptr_t target, size_t count,
                      int dtype, int op, int root):
    """The message of an ordinary call on memory at two addresses; False where it is not ordinary."""
    if not open_now(node) >> kind & 1 or coll_progress_ended() or not 0 <= root < node.size or not is_free(node.holder):
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
    return m.count * m.itemsize <= node.longest[kind]


def node_memory(Node node not None, int kind, uintptr_t source, uintptr_t target, size_t count, int dtype=-1,
                int op=-1, int root=0):
    """:func:`node_call` for memory at two addresses, apart or the same, whose owners the caller keeps.

    ``count`` is that of all blocks together: elements of ``dtype`` where an op is applied, else bytes.
    """
    cdef coll_node_message message
    cdef uint64_t begun = coll_ticks()
    if not fill_memory(&message, node, kind, source, target, count, dtype, op, root):
        return 0
    return 1 if launch(node, &message, begun) else -1


def node_flight(Node node not None, context, owners, int kind, uintptr_t source, uintptr_t target, size_t count,
                int dtype=-1, int op=-1, int root=0):
    """The same begun, to go on by itself, or None where it is not an ordinary call; ``owners`` keep the memory."""
    cdef coll_node_message message
    cdef uint64_t begun = coll_ticks()
    if not node.background or not fill_memory(&message, node, kind, source, target, count, dtype, op, root):
        return None
    cdef NodeCall made = flight_of(node, &message, None, owners)
    made.take_off(context, None, begun, False)
    return made


cpdef object hold(object memory):
    """What keeps memory where it is while it lives: an array is not resized, another buffer neither resized nor closed.

    NumPy resizes no array that has a weak reference; it counts no exports of buffers.
    """
    global HOLDS
    while isinstance(memory, cnp.ndarray):
        base = cnp.PyArray_BASE(<cnp.ndarray>memory)
        if base == NULL:
            return PyWeakref_NewRef(memory, NULL)
        memory = <object>base
    if type(memory) is not HeapBlock:  # which nobody resizes or closes
        HOLDS = True
    return PyMemoryView_FromObject(memory) if PyObject_CheckBuffer(memory) else memory


cdef inline object held(object spec, bint arrays):
    """The same of an ordinary specification; of an array only if asked for."""
    if type(spec) is list or type(spec) is tuple:
        spec = spec[0]
    if spec is IN_PLACE or spec is None or (not arrays and type(spec) is cnp.ndarray):
        return None
    return hold(spec)


cdef inline bint stays(object spec):
    """Whether a blocking call needs not hold a specification."""
    return type(spec) is cnp.ndarray or spec is None or spec is IN_PLACE


cdef object finish(object comm, Node node, tuple owners):
    """Wait for a call that was launched; ``owners`` keep its memory.

    An exception may come from a handler of a signal before it is waited for, or after that.
    """
    cdef int depth = node.holder.depth
    try:
        comm._finish(owners)
    except BaseException as e:
        comm._context.interrupted(owners, e)
        if node.holder.depth == depth:
            end_turn(node.holder)
        raise


cdef object LONG_WAY = object()  # what `serve` returns where it has done nothing


cdef inline object serve(object comm, str collective, int kind, int form, object send, object recv, object counts,
                         object op, int root, dict keywords):
    """The result of an ordinary call: None or a request; LONG_WAY, with nothing done, for others."""
    cdef coll_node_message message
    cdef uint64_t begun = coll_ticks()
    node = comm._node
    if node is None or (keywords and not asks_for_engine(keywords)) or not ordinary(
            &message, <Node>node, kind, send, recv, counts, op, root):
        cache = comm._cached
        if cache is None or form == LASTS:
            return LONG_WAY
        return call_cached(comm, <CachedPlans>cache, collective, kind, form, send, recv, counts, op, root, keywords, begun)
    if form == STARTS:
        return start(comm, <Node>node, &message, send, recv, begun)
    if form == LASTS:
        return set_up(comm, <Node>node, &message, send, recv)
    kept = None
    if not (stays(recv) and stays(send)):
        kept = held(send, False), held(recv, False)  # other threads run while this one waits
    return None if launch(<Node>node, &message, begun) else finish(comm, <Node>node, (send, recv, kept))


cdef bint asks_for_engine(dict keywords) except -1:
    """Whether keywords say no more than that the engine is to serve the call."""
    return len(keywords) == 1 and keywords.get("algorithm") == "shm"


def short_way(str collective, long_way, SUM, str does="blocks"):
    """A method of a communicator: ordinary calls go straight to the engine, or to a cached plan, others ``long_way``.

    ``does`` is one of FORMS. Written here because a Python function would take as long as the collective of 8 bytes
    that it calls.
    """
    cdef int kind = kind_of(collective), form = FORMS.index(does)

    def reducing(self, sendbuf, recvbuf, op=SUM, *more, **keywords):
        made = LONG_WAY if more else serve(self, collective, kind, form, sendbuf, recvbuf, None, op, 0, keywords)
        return made if made is not LONG_WAY else long_way(self, sendbuf, recvbuf, op, *more, **keywords)

    def scattering(self, sendbuf, recvbuf, recvcounts=None, op=SUM, *more, **keywords):
        ours = not more and recvcounts is not None
        made = serve(self, collective, kind, form, sendbuf, recvbuf, recvcounts, op, 0, keywords) if ours else LONG_WAY
        return made if made is not LONG_WAY else long_way(self, sendbuf, recvbuf, recvcounts, op, *more, **keywords)

    def reducing_to_root(self, sendbuf, recvbuf, op=SUM, root=0, *more, **keywords):
        ours = not more and type(root) is int and -1 < root < 1 << 31
        made = serve(self, collective, kind, form, sendbuf, recvbuf, None, op, root, keywords) if ours else LONG_WAY
        return made if made is not LONG_WAY else long_way(self, sendbuf, recvbuf, op, root, *more, **keywords)

    def moving(self, sendbuf, recvbuf, *more, **keywords):
        made = LONG_WAY if more else serve(self, collective, kind, form, sendbuf, recvbuf, None, None, 0, keywords)
        return made if made is not LONG_WAY else long_way(self, sendbuf, recvbuf, *more, **keywords)

    def rooted(self, sendbuf, recvbuf, root=0, *more, **keywords):
        ours = not more and type(root) is int and -1 < root < 1 << 31
        made = serve(self, collective, kind, form, sendbuf, recvbuf, None, None, root, keywords) if ours else LONG_WAY
        return made if made is not LONG_WAY else long_way(self, sendbuf, recvbuf, root, *more, **keywords)

    def bcast(self, buf, root=0, *more, **keywords):
        ours = not more and type(root) is int and -1 < root < 1 << 31
        made = serve(self, collective, kind, form, None, buf, None, None, root, keywords) if ours else LONG_WAY
        return made if made is not LONG_WAY else long_way(self, buf, root, *more, **keywords)

    def barrier(self, *more, **keywords):
        made = LONG_WAY if more else serve(self, collective, kind, form, None, None, None, None, 0, keywords)
        return made if made is not LONG_WAY else long_way(self, *more, **keywords)

    methods = {
        "allreduce": reducing, "reduce_scatter_block": reducing, "scan": reducing, "exscan": reducing,
        "reduce_scatter": scattering, "reduce": reducing_to_root, "bcast": bcast, "barrier": barrier,
        "gather": rooted, "gatherv": rooted, "scatter": rooted, "scatterv": rooted,
    }
    return dressed(methods.get(collective, moving), long_way)


cdef object dressed(object method, object long_way):
    for attribute in ("__doc__", "__name__", "__qualname__", "__module__"):
        setattr(method, attribute, getattr(long_way, attribute))
    method.__signature__ = getattr(long_way, "__signature__", None) or signature(long_way)
    return method
