# The short way of ordinary calls: from mpi4py's arguments to the node-local engine without a Python frame; included by
# _core.pyx. What is not ordinary goes the long way, in Python, which also finds the words for what is wrong.

cdef int[256] DTYPE_OF_NUMPY  # kernels' code of each built-in NumPy type, or -1
cdef object IN_PLACE = None
cdef list OP_OBJECTS = []  # mpi4py's predefined ops, most used first
cdef list OP_CODES = []
def know(in_place, ops, dtypes):
    """Learn mpi4py's ``IN_PLACE`` and ops (object, code), and NumPy's types (number, code), for the short path."""
    global IN_PLACE
    cdef int i
    for i in range(256):
        DTYPE_OF_NUMPY[i] = -1
    for number, code in dtypes:
        DTYPE_OF_NUMPY[<int>number] = code
    IN_PLACE = in_place
    for op, code in ops:
        OP_OBJECTS.append(op)
        OP_CODES.append(code)


cdef inline bint plain(object array, bint writable):
    """Whether it is a NumPy array of a built-in type in native order, contiguous and, if asked for, writable.

    The type's number has to tell all about it: of objects, strings and records it tells neither length nor content.
    """
    if type(array) is not cnp.ndarray:
        return False
    cdef int flags = cnp.PyArray_FLAGS(<cnp.ndarray>array)
    cdef int number = cnp.PyArray_TYPE(<cnp.ndarray>array)
    return ((number < cnp.NPY_OBJECT or cnp.NPY_VOID < number < 256) and cnp.PyArray_ISNOTSWAPPED(<cnp.ndarray>array)
            and flags & (cnp.NPY_ARRAY_C_CONTIGUOUS | cnp.NPY_ARRAY_F_CONTIGUOUS)
            and (not writable or flags & cnp.NPY_ARRAY_WRITEABLE))


cdef inline bint overlap(const coll_node_message *m, size_t input, size_t output) noexcept:
    return <char *>m.input < <char *>m.output + output and <char *>m.output < <char *>m.input + input


cdef inline size_t nbytes_of(object array) noexcept:
    return cnp.PyArray_NBYTES(<cnp.ndarray>array)


cdef inline char *data_of(object array) noexcept:
    return <char *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef inline void as_bytes(coll_node_message *m, size_t nbytes) noexcept:
    m.count = nbytes
    m.itemsize = 1
    m.dtype = m.op = -1
    m.user_op = NULL


cdef inline bint elements_of(coll_node_message *m, object array, object op):
    """Take count and type from an array, and the op; False where there is no kernel."""
    cdef Py_ssize_t i
    m.dtype = DTYPE_OF_NUMPY[cnp.PyArray_TYPE(<cnp.ndarray>array)]
    m.count = cnp.PyArray_SIZE(<cnp.ndarray>array)
    m.itemsize = cnp.PyArray_ITEMSIZE(<cnp.ndarray>array)
    m.user_op = NULL
    if m.dtype < 0:
        return False
    for i in range(len(OP_OBJECTS)):
        if <void *>op == PyList_GET_ITEM(OP_OBJECTS, i):
            m.op = OP_CODES[i]
            return coll_reducep(m.dtype, m.op) != NULL
    return False


cdef inline bint alike(object a, object b, size_t times):
    """Whether two arrays have the same type, and ``b`` that many times as many elements."""
    return (cnp.PyArray_TYPE(<cnp.ndarray>a) == cnp.PyArray_TYPE(<cnp.ndarray>b)
            and <size_t>cnp.PyArray_SIZE(<cnp.ndarray>a) * times == <size_t>cnp.PyArray_SIZE(<cnp.ndarray>b))


cdef bint fill_elementwise(coll_node_message *m, object send, object recv, object op):
    """All-reduce, reduce at the root, scans: two vectors, or one in place."""
    if not plain(recv, True) or not elements_of(m, recv, op):
        return False
    m.output = data_of(recv)
    m.input = m.output
    if send is IN_PLACE:
        return True
    if not plain(send, False) or not alike(send, recv, 1):
        return False
    m.input = data_of(send)
    return m.input == m.output or not overlap(m, nbytes_of(recv), nbytes_of(recv))


cdef bint fill_reduce(coll_node_message *m, object send, object recv, object op, int rank):
    if rank == m.root:
        return fill_elementwise(m, send, recv, op)
    m.input = data_of(send) if plain(send, False) else NULL
    m.output = NULL
    return m.input != NULL and elements_of(m, send, op)


cdef bint fill_reduce_scatter(coll_node_message *m, object send, object recv, object op, int size):
    if not plain(send, False) or not plain(recv, True) or not alike(recv, send, size) or not elements_of(m, send, op):
        return False
    m.input = data_of(send)
    m.output = data_of(recv)
    return not overlap(m, nbytes_of(send), nbytes_of(recv))


cdef bint fill_gather(coll_node_message *m, object send, object recv, int rank, int size, bint whole):
    """Gather and all-gather; ``whole``: this rank gets the whole vector."""
    cdef size_t each
    if not whole:
        if not plain(send, False):
            return False
        m.input = data_of(send)
        m.output = NULL
        as_bytes(m, nbytes_of(send) * size)
        return True
    if not plain(recv, True) or nbytes_of(recv) % size:
        return False
    as_bytes(m, nbytes_of(recv))
    each = m.count // size
    m.output = data_of(recv)
    if send is IN_PLACE:
        m.input = <char *>m.output + rank * each
        return True
    if not plain(send, False) or not alike(send, recv, size):
        return False
    m.input = data_of(send)
    return not overlap(m, each, m.count)


cdef bint fill_scatter(coll_node_message *m, object send, object recv, int rank, int size):
    cdef size_t each
    if rank != m.root:
        if not plain(recv, True):
            return False
        m.input = NULL
        m.output = data_of(recv)
        as_bytes(m, nbytes_of(recv) * size)
        return True
    if not plain(send, False) or nbytes_of(send) % size:
        return False
    as_bytes(m, nbytes_of(send))
    each = m.count // size
    m.input = data_of(send)
    if recv is IN_PLACE:
        m.output = <char *>m.input + rank * each
        return True
    if not plain(recv, True) or not alike(recv, send, size):
        return False
    m.output = data_of(recv)
    return not overlap(m, m.count, each)


cdef bint fill_alltoall(coll_node_message *m, object send, object recv, int size):
    if not plain(send, False) or not plain(recv, True) or not alike(send, recv, 1) or nbytes_of(send) % size:
        return False
    m.input = data_of(send)
    m.output = data_of(recv)
    as_bytes(m, nbytes_of(send))
    return not overlap(m, m.count, m.count)


cdef bint fill_bcast(coll_node_message *m, object buffer, int rank):
    if not plain(buffer, rank != m.root):
        return False
    m.input = m.output = data_of(buffer)
    as_bytes(m, nbytes_of(buffer))
    return True


cdef bint fill(coll_node_message *m, Node node, object send, object recv, object op):
    """The message of an ordinary call; False where it is not ordinary. ``m`` has kind and root already."""
    cdef coll_node_kind kind = m.kind
    m.cuts = m.input_cuts = NULL
    if m.root < 0 or m.root >= node.size:
        return False
    if kind == COLL_NODE_ALLREDUCE:
        return fill_elementwise(m, send, recv, op)
    if kind == COLL_NODE_SCAN or kind == COLL_NODE_EXSCAN:
        return fill_elementwise(m, send, recv, op) and OPS[m.op] != "avg"
    if kind == COLL_NODE_REDUCE:
        return fill_reduce(m, send, recv, op, node.rank)
    if kind == COLL_NODE_REDUCE_SCATTER:
        return fill_reduce_scatter(m, send, recv, op, node.size)
    if kind == COLL_NODE_BCAST:
        return fill_bcast(m, recv, node.rank)
    if kind == COLL_NODE_SCATTER:
        return fill_scatter(m, send, recv, node.rank, node.size)
    if kind == COLL_NODE_ALLTOALL:
        return fill_alltoall(m, send, recv, node.size)
    return fill_gather(m, send, recv, node.rank, node.size, kind == COLL_NODE_ALLGATHER or node.rank == m.root)


cdef enum:
    PATIENCE = 20_000_000  # ns until Python looks at signals


cdef int launch(Node node, coll_node_message *m, uint64_t begun) except -2:
    """Run a filled message: 1 when it is done, -1 when it is under way or failed, to be gone on with by ``node.wait``."""
    coll_node_begin(&node.job.call, node.node, m)
    cdef int status = coll_node_progress(&node.job.call) if node.yield_at_once else coll_node_spin(&node.job.call)
    cdef coll_task task
    if status == COLL_PENDING:
        task = coll_node_task(&node.job)
        with nogil:
            status = coll_progress_wait(&task, NULL, node.yield_at_once, PATIENCE)
    node.begun = begun
    if status != COLL_OK:  # an error too: `wait` raises it where the communicator learns of it
        return -1
    node.ended = coll_ticks()
    if node.log is not None:
        node.log.short(node)
    return 1


cdef int take_short_way(Node node, int kind, object send, object recv, object op, int root) except -2:
    """A collective on the node, if the call is an ordinary one.

    1: done; 0: not an ordinary one, nothing has been done; -1: begun, and to be gone on with by ``node.wait``.
    """
    cdef coll_node_message message
    cdef uint64_t begun = coll_ticks()
    message.kind = <coll_node_kind>kind
    message.root = root
    if not node.usable >> kind & 1 or coll_progress_ended() or not fill(&message, node, send, recv, op):
        return 0
    if message.count * message.itemsize > node.longest[kind]:
        return 0
    return launch(node, &message, begun)


def node_call(str collective, Node node, send, recv, op=None, int root=0):
    """:func:`take_short_way` by name."""
    return take_short_way(node, kind_of(collective), send, recv, op, root)


def short_kind(str collective):
    """What :func:`node_memory` knows a collective by."""
    return kind_of(collective)


def node_memory(Node node not None, int kind, uintptr_t source, uintptr_t target, size_t count, int dtype=-1,
                int op=-1, int root=0):
    """:func:`take_short_way` for memory at two addresses, apart or the same, whose owners the caller keeps.

    ``count`` is that of all blocks together: elements of ``dtype`` where an op is applied, else bytes.
    """
    cdef coll_node_message m
    cdef uint64_t begun = coll_ticks()
    if not node.usable >> kind & 1 or coll_progress_ended():
        return 0
    if kind == BARRIER:
        return short_barrier(node)
    m.kind = <coll_node_kind>kind
    m.root = root
    m.cuts = m.input_cuts = NULL
    as_bytes(&m, count)
    if folding(m.kind):
        if not 0 <= dtype < coll_ndtypes() or not 0 <= op < coll_nops() or coll_reducep(dtype, op) == NULL:
            return 0
        m.dtype = dtype
        m.op = op
        m.itemsize = coll_dtype_size(dtype)
    if not 0 <= root < node.size or m.count * m.itemsize > node.longest[kind]:
        return 0
    m.input = <const void *>source
    m.output = <void *>target
    return launch(node, &m, begun)


def short_way(str collective, long_way, SUM):
    """A method of a communicator: an ordinary call on a node goes straight to the engine, others to ``long_way``.

    Written here because a Python function would take as long as the collective of 8 bytes that it calls.
    """
    if kind_of(collective) & VECTOR and collective != "barrier":
        return short_way_v(collective, long_way, SUM)
    cdef int kind = kind_of(collective)

    def reducing(self, sendbuf, recvbuf, op=SUM, **keywords):
        cdef int state
        node = self._node
        if node is not None and not keywords:
            state = take_short_way(<Node>node, kind, sendbuf, recvbuf, op, 0)
            if state > 0:
                return
            if state < 0:
                return self._finish(sendbuf, recvbuf)
        return long_way(self, sendbuf, recvbuf, op, **keywords)

    def reducing_to_root(self, sendbuf, recvbuf, op=SUM, root=0, **keywords):
        cdef int state
        node = self._node
        if node is not None and not keywords and type(root) is int:
            state = take_short_way(<Node>node, kind, sendbuf, recvbuf, op, root)
            if state > 0:
                return
            if state < 0:
                return self._finish(sendbuf, recvbuf)
        return long_way(self, sendbuf, recvbuf, op, root, **keywords)

    def moving(self, sendbuf, recvbuf, **keywords):
        cdef int state
        node = self._node
        if node is not None and not keywords:
            state = take_short_way(<Node>node, kind, sendbuf, recvbuf, None, 0)
            if state > 0:
                return
            if state < 0:
                return self._finish(sendbuf, recvbuf)
        return long_way(self, sendbuf, recvbuf, **keywords)

    def rooted(self, sendbuf, recvbuf, root=0, **keywords):
        cdef int state
        node = self._node
        if node is not None and not keywords and type(root) is int:
            state = take_short_way(<Node>node, kind, sendbuf, recvbuf, None, root)
            if state > 0:
                return
            if state < 0:
                return self._finish(sendbuf, recvbuf)
        return long_way(self, sendbuf, recvbuf, root, **keywords)

    def bcast(self, buf, root=0, **keywords):
        cdef int state
        node = self._node
        if node is not None and not keywords and type(root) is int:
            state = take_short_way(<Node>node, kind, None, buf, None, root)
            if state > 0:
                return
            if state < 0:
                return self._finish(buf, buf)
        return long_way(self, buf, root, **keywords)

    def barrier(self, **keywords):
        cdef int state
        node = self._node
        if node is not None and not keywords and (<Node>node).usable >> BARRIER & 1 and not coll_progress_ended():
            state = short_barrier(<Node>node)
            if state > 0:
                return
            if state < 0:
                return self._finish(None, None)
        return long_way(self, **keywords)

    if collective in ("allreduce", "reduce_scatter_block", "scan", "exscan"):
        method = reducing
    elif collective in ("gather", "scatter"):
        method = rooted
    else:
        method = {"reduce": reducing_to_root, "bcast": bcast, "barrier": barrier}.get(collective, moving)
    return dressed(method, long_way)


cdef object dressed(object method, object long_way):
    for attribute in ("__doc__", "__name__", "__qualname__", "__module__"):
        setattr(method, attribute, getattr(long_way, attribute))
    method.__signature__ = getattr(long_way, "__signature__", None) or signature(long_way)
    return method


cdef int short_barrier(Node node) except -2:
    cdef coll_node_message message
    message.kind = COLL_NODE_ALLREDUCE
    message.root = 0
    message.input = message.output = NULL
    message.cuts = message.input_cuts = NULL
    as_bytes(&message, 0)
    return launch(node, &message, coll_ticks())
