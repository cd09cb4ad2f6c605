# The parser of ordinary arguments of collectives with blocks of different lengths; included by _core.pyx.

cdef object sequence_of(object numbers, int n):
    """A list or tuple of the ``n`` numbers in a list, tuple or array; None if ``numbers`` is no such thing."""
    if type(numbers) is cnp.ndarray and cnp.PyArray_SIZE(<cnp.ndarray>numbers) == n:
        numbers = (<cnp.ndarray>numbers).tolist()
    if (type(numbers) is not list and type(numbers) is not tuple) or len(numbers) != n:
        return None
    return numbers


cdef bint take_integer(object number, size_t *into) except? False:
    """Copy an integer from 0 to 2^40, so that sums of bytes cannot overflow; False if ``number`` is no such integer."""
    cdef int beyond
    cdef long long taken
    if type(number) is not int:
        return False
    taken = PyLong_AsLongLongAndOverflow(number, &beyond)
    into[0] = taken
    return not beyond and 0 <= taken <= <long long>1 << 40


cdef bint cuts_of(object counts, object displs, size_t *cuts, int n, size_t scale) except? False:
    """Compute boundaries from counts, times ``scale``; False if displacements leave gaps or change the order."""
    cdef int i
    cdef size_t at = 0, each, place
    cdef PyObject **lengths
    cdef PyObject **places = NULL
    counts = sequence_of(counts, n)
    if counts is None:
        return False
    lengths = PySequence_Fast_ITEMS(counts)
    if displs is not None:
        displs = sequence_of(displs, n)
        if displs is None:
            return False
        places = PySequence_Fast_ITEMS(displs)
    cuts[0] = 0
    for i in range(n):
        if places != NULL and (not take_integer(<object>places[i], &place) or place != at):
            return False
        if not take_integer(<object>lengths[i], &each):
            return False
        at += each
        cuts[i + 1] = at * scale
    return True


cdef bint view_vector(object spec, bint writable, size_t *cuts, int n, View *v) except? False:
    """View ``[memory, counts]`` or ``[memory, (counts, displs)]``, without or with a datatype at the end, or ``[memory,
    counts, displs, datatype]``; compute the boundaries of the blocks in bytes. False for anything else."""
    cdef Py_ssize_t parts
    if type(spec) is not list and type(spec) is not tuple:
        return False
    parts = len(spec)
    if parts < 2 or parts > 4 or not view_memory(spec[0], writable, v):
        return False
    counts, displs = spec[1], None
    if parts > 2 and not names_type_of(spec[parts - 1], v):
        return False
    if parts == 4:
        displs = spec[2]
    elif type(counts) is tuple:
        if len(counts) != 2:
            return False
        counts, displs = counts
    return cuts_of(counts, displs, cuts, n, v.nbytes // v.count if v.count else 1) and cuts[n] <= v.nbytes


cdef void alone(size_t *cuts, int rank, int n, size_t nbytes) noexcept:
    """Boundaries of blocks of which this rank knows only its own, of ``nbytes`` bytes; the others count as empty."""
    cdef int i
    for i in range(n + 1):
        cuts[i] = nbytes if i > rank else 0


cdef bint fill_gatherv(coll_node_message *m, const Member *of, object send, object recv, bint whole):
    """Fill a gather or all-gather; ``whole``: this rank receives the whole vector."""
    cdef View v, w
    cdef size_t each
    cdef int kind
    cdef size_t *cuts = of.cuts
    if send is not IN_PLACE and not view(send, False, 1, &v):
        return False
    if not whole:
        if send is IN_PLACE:
            return False
        kind = v.kind
        m.input = v.data
        m.output = NULL
        alone(cuts, of.rank, of.size, v.nbytes)
    else:
        if not view_vector(recv, True, cuts, of.size, &w):
            return False
        kind = w.kind
        each = cuts[of.rank + 1] - cuts[of.rank]
        m.output = w.data
        m.input = <char *>m.output + cuts[of.rank]
        if send is not IN_PLACE:
            if v.nbytes != each or v.kind != w.kind:
                return False
            m.input = v.data
            if overlap(m, each, cuts[of.size]):
                return False
    as_bytes(m, cuts[of.size], kind)
    m.cuts = cuts
    return True


cdef bint fill_scatterv(coll_node_message *m, const Member *of, object send, object recv):
    cdef View v, w
    cdef size_t each
    cdef int kind
    cdef size_t *cuts = of.cuts
    if recv is not IN_PLACE and not view(recv, True, 1, &w):
        return False
    if of.rank != m.root:
        if recv is IN_PLACE:
            return False
        kind = w.kind
        m.input = NULL
        m.output = w.data
        alone(cuts, of.rank, of.size, w.nbytes)
    else:
        if not view_vector(send, False, cuts, of.size, &v):
            return False
        kind = v.kind
        each = cuts[of.rank + 1] - cuts[of.rank]
        m.input = v.data
        m.output = <char *>m.input + cuts[of.rank]
        if recv is not IN_PLACE:
            if w.nbytes != each or w.kind != v.kind:
                return False
            m.output = w.data
            if overlap(m, cuts[of.size], each):
                return False
    as_bytes(m, cuts[of.size], kind)
    m.cuts = cuts
    return True


cdef bint fill_alltoallv(coll_node_message *m, const Member *of, object send, object recv):
    cdef View v, w
    cdef size_t *cuts = of.cuts
    cdef size_t *input_cuts = of.cuts + of.size + 1
    cdef int r = of.rank
    if not view_vector(send, False, input_cuts, of.size, &v) or not view_vector(recv, True, cuts, of.size, &w):
        return False
    if cuts[r + 1] - cuts[r] != input_cuts[r + 1] - input_cuts[r] or v.kind != w.kind:
        return False
    m.input = v.data
    m.output = w.data
    as_bytes(m, cuts[of.size], -1)  # pairs of ranks may exchange elements of different types
    m.cuts = cuts
    m.input_cuts = input_cuts
    return not overlap(m, input_cuts[of.size], cuts[of.size])


cdef bint fill_reduce_scatterv(coll_node_message *m, const Member *of, object send, object recv, object counts, object op):
    cdef View v, w
    cdef size_t *cuts = of.cuts
    cdef int r = of.rank
    if not view(send, False, 1, &v) or not view(recv, True, 1, &w) or v.kind != w.kind or not elements_of(m, &v, op):
        return False
    if not cuts_of(counts, None, cuts, of.size, 1) or cuts[of.size] != m.count:
        return False
    if w.count != cuts[r + 1] - cuts[r]:
        return False
    m.input = v.data
    m.output = w.data
    m.cuts = cuts
    return not overlap(m, v.nbytes, w.nbytes)


cdef bint fill_vector(coll_node_message *m, const Member *of, object send, object recv, object counts, object op):
    """Fill the message of a call with blocks of different lengths; False if the call is not ordinary."""
    if m.kind == COLL_NODE_ALLTOALL:
        return fill_alltoallv(m, of, send, recv)
    if m.kind == COLL_NODE_SCATTER:
        return fill_scatterv(m, of, send, recv)
    if m.kind == COLL_NODE_REDUCE_SCATTER:
        return fill_reduce_scatterv(m, of, send, recv, counts, op)
    return fill_gatherv(m, of, send, recv, m.kind == COLL_NODE_ALLGATHER or of.rank == m.root)


cdef inline size_t most_moved(const coll_node_message *m, int size) noexcept:
    """Bytes of a message that this rank receives, or that it sends if these are more."""
    cdef size_t sent = m.input_cuts[size] if m.input_cuts != NULL else 0
    return max(m.count, sent) * m.itemsize
