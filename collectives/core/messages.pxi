# The parser of ordinary arguments, which fills a message to the node-local engine; included by _core.pyx.

cdef int BYTES = DTYPES.index("uint8")  # also MPI_BYTE; bytes may be part of elements of any type
cdef tuple BUFFERS = (array.array, bytearray, bytes, memoryview)


cdef struct View:
    char *data
    size_t nbytes, count  # number of bytes, and of elements
    int kind              # element type: the kernels' code, or -2 - n for NumPy's type number n


cdef inline bint view_array(object array, bint writable, View *v):
    """View a NumPy array of a built-in type in native byte order, contiguous and, if asked for, writable; else False.

    NumPy's type number must define the type completely; for objects, strings and records it does not.
    """
    if type(array) is not cnp.ndarray:
        return False
    cdef int flags = cnp.PyArray_FLAGS(<cnp.ndarray>array)
    cdef int number = cnp.PyArray_TYPE(<cnp.ndarray>array)
    if not ((number < cnp.NPY_OBJECT or cnp.NPY_VOID < number < 256) and cnp.PyArray_ISNOTSWAPPED(<cnp.ndarray>array)
            and flags & (cnp.NPY_ARRAY_C_CONTIGUOUS | cnp.NPY_ARRAY_F_CONTIGUOUS)
            and (not writable or flags & cnp.NPY_ARRAY_WRITEABLE)):
        return False
    v.data = <char *>cnp.PyArray_DATA(<cnp.ndarray>array)
    if cnp.PyArray_NDIM(<cnp.ndarray>array) == 1:  # quicker than the general function
        v.count = cnp.PyArray_DIMS(<cnp.ndarray>array)[0]
    else:
        v.count = cnp.PyArray_SIZE(<cnp.ndarray>array)
    v.nbytes = v.count * cnp.PyArray_ITEMSIZE(<cnp.ndarray>array)
    v.kind = DTYPE_OF_NUMPY[number]
    if v.kind < 0:
        v.kind = -2 - number
    return True


cdef bint view_buffer(object memory, bint writable, View *v):
    """View one of Python's own buffers, of a built-in type; False for others."""
    cdef Py_buffer b
    cdef int code
    if type(memory) not in BUFFERS:
        return False
    try:
        PyObject_GetBuffer(memory, &b, PyBUF_ND | PyBUF_FORMAT | (PyBUF_WRITABLE if writable else PyBUF_SIMPLE))
    except BufferError:
        return False
    code = DTYPE_OF_FORMAT[<unsigned char>b.format[0]] if b.format != NULL and b.format[1] == 0 else -1
    if code >= 0:  # else elements may have no bytes
        v.data, v.nbytes, v.count, v.kind = <char *>b.buf, b.len, b.len // b.itemsize, code
    PyBuffer_Release(&b)
    return code >= 0


cdef inline bint view_memory(object memory, bint writable, View *v):
    return view_array(memory, writable, v) or view_buffer(memory, writable, v)


cdef bint names_type_of(object datatype, const View *v):
    """Whether ``datatype`` is MPI's predefined datatype of the view's elements."""
    cdef Py_ssize_t i
    for i in range(len(DATATYPE_OBJECTS)):
        if <void *>datatype == PyList_GET_ITEM(DATATYPE_OBJECTS, i):
            return <int>DATATYPE_CODES[i] == v.kind and v.kind >= 0
    return False


cdef bint view_parts(object spec, bint writable, size_t blocks, View *v):
    """View ``[memory, count, datatype]``, or that without count or datatype; ``count`` is that of one block."""
    cdef Py_ssize_t n
    cdef int beyond
    cdef long long count
    cdef size_t itemsize
    if type(spec) is not list and type(spec) is not tuple:
        return False
    n = len(spec)
    if n < 2 or n > 3 or not view_memory(spec[0], writable, v):
        return False
    if n > 1 and names_type_of(spec[n - 1], v):
        n -= 1
    if n == 1:
        return True
    if n == 3 or type(spec[1]) is not int:
        return False
    count = PyLong_AsLongLongAndOverflow(spec[1], &beyond)
    if beyond or count < 0 or <size_t>count > v.count or <size_t>count * blocks > v.count:
        return False
    itemsize = v.nbytes // v.count if v.count else 0
    v.count = <size_t>count * blocks
    v.nbytes = v.count * itemsize
    return True


cdef inline bint view(object spec, bint writable, size_t blocks, View *v):
    """View an ordinary buffer of ``blocks`` equal blocks of whole elements; False if ``spec`` is none."""
    if not (view_array(spec, writable, v) or view_parts(spec, writable, blocks, v) or view_buffer(spec, writable, v)):
        return False
    return blocks == 1 or v.count % blocks == 0


cdef inline bint overlap(const coll_node_message *m, size_t input, size_t output) noexcept:
    return <char *>m.input < <char *>m.output + output and <char *>m.output < <char *>m.input + input


cdef inline void as_bytes(coll_node_message *m, size_t nbytes, int kind) noexcept:
    """Make ``m`` a message of bytes; ``kind``, if it is a kernels' code, must be the same on all ranks."""
    m.count = nbytes
    m.itemsize = 1
    m.variant = 0
    m.starts = m.input_starts = NULL
    m.dtype = m.op = -1
    m.type = kind + 1 if nbytes and kind >= 0 and kind != BYTES else 0
    m.user_op = NULL


cdef inline bint elements_of(coll_node_message *m, const View *v, object op):
    """Set count, type and op of the message; False if there is no kernel for them."""
    cdef Py_ssize_t i
    m.dtype = v.kind
    m.count = v.count
    m.type = m.variant = 0
    m.starts = m.input_starts = NULL
    m.user_op = NULL
    if m.dtype < 0:
        return False
    m.itemsize = coll_dtype_size(m.dtype)
    for i in range(len(OP_OBJECTS)):
        if <void *>op == PyList_GET_ITEM(OP_OBJECTS, i):
            m.op = OP_CODES[i]
            return coll_reducep(m.dtype, m.op) != NULL
    return False


cdef inline bint alike(const View *a, const View *b, size_t times) noexcept:
    """Whether two views have the same type, and ``b`` has ``times`` as many elements as ``a``."""
    return a.kind == b.kind and a.count * times == b.count


cdef bint fill_elementwise(coll_node_message *m, object send, object recv, object op):
    """Fill an all-reduce, a reduce at the root, or a scan: two vectors, or one in place."""
    cdef View v, w
    if not view(recv, True, 1, &v) or not elements_of(m, &v, op):
        return False
    m.output = v.data
    m.input = m.output
    if send is IN_PLACE:
        return True
    if not view(send, False, 1, &w) or not alike(&w, &v, 1):
        return False
    m.input = w.data
    return m.input == m.output or not overlap(m, v.nbytes, v.nbytes)


cdef bint fill_reduce(coll_node_message *m, object send, object recv, object op, int rank):
    cdef View v
    if rank == m.root:
        return fill_elementwise(m, send, recv, op)
    if not view(send, False, 1, &v):
        return False
    m.input = v.data
    m.output = NULL
    return elements_of(m, &v, op)


cdef bint fill_reduce_scatter(coll_node_message *m, object send, object recv, object op, int size):
    cdef View v, w
    if not view(send, False, size, &v) or not view(recv, True, 1, &w):
        return False
    if not alike(&w, &v, size) or not elements_of(m, &v, op):
        return False
    m.input = v.data
    m.output = w.data
    return not overlap(m, v.nbytes, w.nbytes)


cdef bint fill_gather(coll_node_message *m, object send, object recv, int rank, int size, bint whole):
    """Fill a gather or all-gather; ``whole``: this rank receives the whole vector."""
    cdef View v, w
    cdef size_t each
    if not whole:
        if not view(send, False, 1, &v):
            return False
        m.input = v.data
        m.output = NULL
        as_bytes(m, v.nbytes * size, v.kind)
        return True
    if not view(recv, True, size, &w):
        return False
    as_bytes(m, w.nbytes, w.kind)
    each = m.count // size
    m.output = w.data
    if send is IN_PLACE:
        m.input = <char *>m.output + rank * each
        return True
    if not view(send, False, 1, &v) or not alike(&v, &w, size):
        return False
    m.input = v.data
    return not overlap(m, each, m.count)


cdef bint fill_scatter(coll_node_message *m, object send, object recv, int rank, int size):
    cdef View v, w
    cdef size_t each
    if rank != m.root:
        if not view(recv, True, 1, &w):
            return False
        m.input = NULL
        m.output = w.data
        as_bytes(m, w.nbytes * size, w.kind)
        return True
    if not view(send, False, size, &v):
        return False
    as_bytes(m, v.nbytes, v.kind)
    each = m.count // size
    m.input = v.data
    if recv is IN_PLACE:
        m.output = <char *>m.input + rank * each
        return True
    if not view(recv, True, 1, &w) or not alike(&w, &v, size):
        return False
    m.output = w.data
    return not overlap(m, m.count, each)


cdef bint fill_alltoall(coll_node_message *m, object send, object recv, int size):
    cdef View v, w
    if not view(send, False, size, &v) or not view(recv, True, size, &w) or not alike(&v, &w, 1):
        return False
    m.input = v.data
    m.output = w.data
    as_bytes(m, v.nbytes, v.kind)
    return not overlap(m, m.count, m.count)


cdef bint fill_bcast(coll_node_message *m, object buffer, int rank):
    cdef View v
    if not view(buffer, rank != m.root, 1, &v):
        return False
    m.input = m.output = v.data
    as_bytes(m, v.nbytes, v.kind)
    return True


cdef bint fill(coll_node_message *m, const Member *of, object send, object recv, object op):
    """Fill the message of a call with equal blocks; False if the call is not ordinary."""
    cdef coll_node_kind kind = m.kind
    if kind == COLL_NODE_ALLREDUCE:
        return fill_elementwise(m, send, recv, op)
    if kind == COLL_NODE_SCAN or kind == COLL_NODE_EXSCAN:
        return fill_elementwise(m, send, recv, op) and OPS[m.op] != "avg"
    if kind == COLL_NODE_REDUCE:
        return fill_reduce(m, send, recv, op, of.rank)
    if kind == COLL_NODE_REDUCE_SCATTER:
        return fill_reduce_scatter(m, send, recv, op, of.size)
    if kind == COLL_NODE_BCAST:
        return fill_bcast(m, recv, of.rank)
    if kind == COLL_NODE_SCATTER:
        return fill_scatter(m, send, recv, of.rank, of.size)
    if kind == COLL_NODE_ALLTOALL:
        return fill_alltoall(m, send, recv, of.size)
    return fill_gather(m, send, recv, of.rank, of.size, kind == COLL_NODE_ALLGATHER or of.rank == m.root)
