# The short way of collectives with blocks of different lengths; included by _core.pyx.

cdef list DATATYPE_OBJECTS = []  # mpi4py's predefined datatypes, and the kernels' code of each
cdef list DATATYPE_CODES = []
def know_datatypes(datatypes):
    """Learn mpi4py's predefined datatypes (object, kernels' code) for the short way."""
    for datatype, code in datatypes:
        DATATYPE_OBJECTS.append(datatype)
        DATATYPE_CODES.append(code)


cdef bint names_type_of(object datatype, object array):
    """Whether an MPI datatype is that of an array's elements."""
    cdef Py_ssize_t i
    cdef int code = DTYPE_OF_NUMPY[cnp.PyArray_TYPE(<cnp.ndarray>array)]
    for i in range(len(DATATYPE_OBJECTS)):
        if <void *>datatype == PyList_GET_ITEM(DATATYPE_OBJECTS, i):
            return <int>DATATYPE_CODES[i] == code and code >= 0
    return False


cdef object only_array(object spec, bint writable):
    """The array of a specification of one block that names all of it; None where it is not so simple."""
    if plain(spec, writable):
        return spec
    if type(spec) is not list and type(spec) is not tuple:
        return None
    cdef Py_ssize_t n = len(spec)
    if n < 2 or n > 3 or not plain(spec[0], writable):
        return None
    if n == 3 and (type(spec[1]) is not int or spec[1] != cnp.PyArray_SIZE(<cnp.ndarray>spec[0])):
        return None
    if not names_type_of(spec[n - 1], spec[0]):
        return spec[0] if n == 2 and type(spec[1]) is int and spec[1] == cnp.PyArray_SIZE(<cnp.ndarray>spec[0]) else None
    return spec[0]


cdef bint take_integers(object numbers, size_t *into, int n):
    """Copy a sequence of n integers that are not negative, nor so large that sums of bytes could overflow; False where
    it is no such thing."""
    cdef int i, beyond
    cdef long long each
    if type(numbers) is not list and type(numbers) is not tuple:
        if type(numbers) is not cnp.ndarray or cnp.PyArray_SIZE(<cnp.ndarray>numbers) != n:
            return False
        numbers = (<cnp.ndarray>numbers).tolist()
        if type(numbers) is not list:
            return False
    if len(numbers) != n:
        return False
    for i in range(n):
        if type(numbers[i]) is not int:
            return False
        each = PyLong_AsLongLongAndOverflow(numbers[i], &beyond)
        if beyond or each < 0 or each > <long long>1 << 40:
            return False
        into[i] = each
    return True


cdef bint cuts_of(object counts, object displs, size_t *cuts, int n, size_t scale):
    """Boundaries from counts; False where displacements leave gaps or change the order."""
    cdef int i
    cdef size_t at = 0, each
    if not take_integers(counts, cuts + 1, n):
        return False
    cuts[0] = 0
    for i in range(n):
        if displs is not None and displs[i] != at:
            return False
        each = cuts[i + 1]
        at += each
        cuts[i + 1] = cuts[i] + each * scale
    return True


cdef object vector_of(object spec, bint writable, size_t *cuts, int n):
    """The array of ``[array, counts]``, ``[array, (counts, displs)]``, either with a datatype, or with displacements by
    themselves; and the boundaries of its blocks in bytes. None where it is something else."""
    cdef Py_ssize_t parts
    if type(spec) is not list and type(spec) is not tuple:
        return None
    parts = len(spec)
    if parts < 2 or parts > 4 or not plain(spec[0], writable):
        return None
    array, counts, displs = spec[0], spec[1], None
    if parts > 2 and not names_type_of(spec[parts - 1], array):
        return None
    if parts == 4:
        displs = spec[2]
    elif type(counts) is tuple:
        if len(counts) != 2:
            return None
        counts, displs = counts
    if displs is not None and (type(displs) not in (list, tuple, cnp.ndarray) or len(displs) != n):
        return None
    if not cuts_of(counts, displs, cuts, n, cnp.PyArray_ITEMSIZE(<cnp.ndarray>array)) or cuts[n] > nbytes_of(array):
        return None
    return array


cdef void alone(size_t *cuts, int rank, int n, size_t nbytes) noexcept:
    """Boundaries of the blocks where only the own one is known."""
    cdef int i
    for i in range(n + 1):
        cuts[i] = nbytes if i > rank else 0


cdef bint fill_gatherv(coll_node_message *m, Node node, object send, object recv, bint whole):
    """Gather and all-gather; ``whole``: this rank gets the whole vector."""
    cdef size_t each
    cdef size_t *cuts = node.cuts
    source = None if send is IN_PLACE else only_array(send, False)
    if not whole:
        if source is None:
            return False
        m.input = data_of(source)
        m.output = NULL
        alone(cuts, node.rank, node.size, nbytes_of(source))
    else:
        target = vector_of(recv, True, cuts, node.size)
        if target is None:
            return False
        each = cuts[node.rank + 1] - cuts[node.rank]
        m.output = data_of(target)
        m.input = <char *>m.output + cuts[node.rank]
        if send is not IN_PLACE:
            if source is None or nbytes_of(source) != each:
                return False
            m.input = data_of(source)
            if overlap(m, each, cuts[node.size]):
                return False
    as_bytes(m, cuts[node.size])
    m.cuts = cuts
    return True


cdef bint fill_scatterv(coll_node_message *m, Node node, object send, object recv):
    cdef size_t each
    cdef size_t *cuts = node.cuts
    target = None if recv is IN_PLACE else only_array(recv, True)
    if node.rank != m.root:
        if target is None:
            return False
        m.input = NULL
        m.output = data_of(target)
        alone(cuts, node.rank, node.size, nbytes_of(target))
    else:
        source = vector_of(send, False, cuts, node.size)
        if source is None:
            return False
        each = cuts[node.rank + 1] - cuts[node.rank]
        m.input = data_of(source)
        m.output = <char *>m.input + cuts[node.rank]
        if recv is not IN_PLACE:
            if target is None or nbytes_of(target) != each:
                return False
            m.output = data_of(target)
            if overlap(m, cuts[node.size], each):
                return False
    as_bytes(m, cuts[node.size])
    m.cuts = cuts
    return True


cdef bint fill_alltoallv(coll_node_message *m, Node node, object send, object recv):
    cdef size_t *cuts = node.cuts
    cdef size_t *input_cuts = node.cuts + node.size + 1
    cdef int r = node.rank
    source, target = vector_of(send, False, input_cuts, node.size), vector_of(recv, True, cuts, node.size)
    if source is None or target is None or cuts[r + 1] - cuts[r] != input_cuts[r + 1] - input_cuts[r]:
        return False
    m.input = data_of(source)
    m.output = data_of(target)
    as_bytes(m, cuts[node.size])
    m.cuts = cuts
    m.input_cuts = input_cuts
    return not overlap(m, input_cuts[node.size], cuts[node.size])


cdef bint fill_reduce_scatterv(coll_node_message *m, Node node, object send, object recv, object counts, object op):
    cdef size_t *cuts = node.cuts
    cdef int r = node.rank
    if not plain(send, False) or not plain(recv, True) or not alike(recv, recv, 1) or not elements_of(m, send, op):
        return False
    if cnp.PyArray_TYPE(<cnp.ndarray>send) != cnp.PyArray_TYPE(<cnp.ndarray>recv):
        return False
    if not cuts_of(counts, None, cuts, node.size, 1) or cuts[node.size] != m.count:
        return False
    if <size_t>cnp.PyArray_SIZE(<cnp.ndarray>recv) != cuts[r + 1] - cuts[r]:
        return False
    m.input = data_of(send)
    m.output = data_of(recv)
    m.cuts = cuts
    return not overlap(m, nbytes_of(send), nbytes_of(recv))


cdef int take_short_way_v(Node node, int kind, object send, object recv, object counts, object op, int root) except -2:
    """As :func:`take_short_way`, for blocks of different lengths."""
    cdef coll_node_message message
    cdef uint64_t begun = coll_ticks()
    cdef bint filled
    message.kind = <coll_node_kind>kind
    message.root = root
    message.cuts = message.input_cuts = NULL
    if not node.usable >> (VECTOR | kind) & 1 or coll_progress_ended() or root < 0 or root >= node.size:
        return 0
    if kind == COLL_NODE_ALLTOALL:
        filled = fill_alltoallv(&message, node, send, recv)
    elif kind == COLL_NODE_SCATTER:
        filled = fill_scatterv(&message, node, send, recv)
    elif kind == COLL_NODE_REDUCE_SCATTER:
        filled = fill_reduce_scatterv(&message, node, send, recv, counts, op)
    else:
        filled = fill_gatherv(&message, node, send, recv, kind == COLL_NODE_ALLGATHER or node.rank == root)
    if not filled or message.count * message.itemsize > node.longest[VECTOR | kind]:
        return 0
    return launch(node, &message, begun)


def short_way_v(str collective, long_way, SUM):
    """As :func:`short_way`, for blocks of different lengths."""
    cdef int kind = kind_of(collective) & ~VECTOR

    def moving(self, sendbuf, recvbuf, **keywords):
        cdef int state
        node = self._node
        if node is not None and not keywords:
            state = take_short_way_v(<Node>node, kind, sendbuf, recvbuf, None, None, 0)
            if state > 0:
                return
            if state < 0:
                return self._finish(sendbuf, recvbuf)
        return long_way(self, sendbuf, recvbuf, **keywords)

    def rooted(self, sendbuf, recvbuf, root=0, **keywords):
        cdef int state
        node = self._node
        if node is not None and not keywords and type(root) is int:
            state = take_short_way_v(<Node>node, kind, sendbuf, recvbuf, None, None, root)
            if state > 0:
                return
            if state < 0:
                return self._finish(sendbuf, recvbuf)
        return long_way(self, sendbuf, recvbuf, root, **keywords)

    def reducing(self, sendbuf, recvbuf, recvcounts=None, op=SUM, **keywords):
        cdef int state
        node = self._node
        if node is not None and not keywords and recvcounts is not None:
            state = take_short_way_v(<Node>node, kind, sendbuf, recvbuf, recvcounts, op, 0)
            if state > 0:
                return
            if state < 0:
                return self._finish(sendbuf, recvbuf)
        return long_way(self, sendbuf, recvbuf, recvcounts, op, **keywords)

    method = {"gatherv": rooted, "scatterv": rooted, "reduce_scatter": reducing}.get(collective, moving)
    return dressed(method, long_way)
