# The parser of ordinary arguments of exchanges: all-to-allw, and the collectives of neighbours. They are all-to-alls
# whose blocks lie where the program has them, most of them empty; included by _core.pyx.

cdef struct Block:
    size_t at, nbytes  # from the beginning of the buffer


@cython.final
cdef class Peers:
    """With whom this rank exchanges blocks: ``sources`` and ``targets`` are ranks, in the order of the program's blocks;
    negative numbers stand for neighbours that do not exist. ``crossed``: what is sent as block 2i arrives as block 2i + 1,
    and the reverse, as between the neighbours of a Cartesian grid."""

    cdef readonly tuple sources, targets
    cdef readonly bint crossed
    cdef bint distinct           # whether no rank is twice among the sources, or among the targets
    cdef int *ranks              # the sources, then the targets
    cdef int size
    cdef size_t *tables          # cuts, input_cuts, starts, input_starts of the present call
    cdef Block *blocks

    def __cinit__(self, int size, tuple sources, tuple targets, bint crossed=False):
        cdef int i
        both = sources + targets
        if any(rank >= size for rank in both):
            raise ValueError(f"peers: {max(both)} is not a rank of a communicator of {size}")
        self.sources, self.targets, self.size, self.crossed = sources, targets, size, crossed
        self.distinct = all(len(set(each)) == len(each) for each in
                            ([rank for rank in side if rank >= 0] for side in (sources, targets)))
        self.ranks = <int *>malloc((len(both) + 1) * sizeof(int))
        self.tables = <size_t *>malloc(4 * (size + 1) * sizeof(size_t))
        self.blocks = <Block *>malloc((max(len(sources), len(targets)) + 1) * sizeof(Block))
        if self.ranks == NULL or self.tables == NULL or self.blocks == NULL:
            raise MemoryError
        for i in range(len(both)):
            self.ranks[i] = both[i]

    def __dealloc__(self):
        free(self.ranks)
        free(self.tables)
        free(self.blocks)


cdef bint equal_blocks(object spec, bint writable, int n, bint same, Block *blocks, View *v) except? False:
    """View ``n`` blocks of equal length, one after the other; with ``same`` the one block that is sent to all."""
    cdef int i
    cdef size_t each
    if n == 0 or not view(spec, writable, 1 if same else n, v):
        return False
    each = v.nbytes if same else v.nbytes // <size_t>n
    for i in range(n):
        blocks[i].at = 0 if same else i * each
        blocks[i].nbytes = each
    return True


cdef int bytes_of_type(object datatype, const View *v) noexcept:
    """Bytes of an element of a predefined datatype; 0 for others. None: the type of the view's elements."""
    cdef Py_ssize_t i
    if datatype is None:
        return <int>(v.nbytes // v.count) if v.count else 1
    if datatype is BYTE:
        return 1
    for i in range(len(DATATYPE_OBJECTS)):
        if <void *>datatype == PyList_GET_ITEM(DATATYPE_OBJECTS, i):
            return <int>coll_dtype_size(<int>DATATYPE_CODES[i])
    return 0


cdef bint counted_blocks(object spec, bint writable, int n, bint typed, Block *blocks, View *v) except? False:
    """View ``n`` blocks with counts, or counts and displacements, as :func:`view_vector` takes them, in any order; with
    ``typed`` there is a datatype for each block, and displacements are in bytes."""
    cdef int i, size
    cdef size_t at = 0, count, place = 0
    cdef Py_ssize_t parts
    if type(spec) is not list and type(spec) is not tuple:
        return False
    parts = len(spec)
    if parts < 2 + typed or parts > 4 or not view_memory(spec[0], writable, v):
        return False
    counts, displs, types = spec[1], None, spec[parts - 1] if parts > 2 else None
    if parts == 4:
        displs = spec[2]
    elif type(counts) is tuple:
        if len(counts) != 2:
            return False
        counts, displs = counts
    counts = sequence_of(counts, n)
    displs = None if displs is None else sequence_of(displs, n)
    if counts is None or (displs is None and (typed or parts == 4)):
        return False
    if typed and ((type(types) is not list and type(types) is not tuple) or len(types) != n):
        return False
    size = 1 if typed else bytes_of_type(types, v)
    if types is not None and not typed and types is not BYTE and not names_type_of(types, v):
        return False
    for i in range(n):
        size = bytes_of_type(types[i], v) if typed else size
        if not size or not take_integer(counts[i], &count):
            return False
        if displs is not None and not take_integer(displs[i], &place):
            return False
        blocks[i].nbytes = count * <size_t>size
        blocks[i].at = at if displs is None else place if typed else place * <size_t>size
        at += blocks[i].nbytes
        if count and blocks[i].at + blocks[i].nbytes > v.nbytes:
            return False
    return True


cdef size_t lay_out(const Block *blocks, const int *ranks, int n, int size, size_t *cuts, size_t *starts,
                    size_t *extent) noexcept:
    """Write boundaries and places of the blocks of distinct ranks; returns where the first one begins, and in *extent
    where the last one ends. Places are counted from the first one on."""
    cdef int i
    cdef size_t first = <size_t>-1, end = 0
    memset(cuts, 0, (size + 1) * sizeof(size_t))
    memset(starts, 0, (size + 1) * sizeof(size_t))
    for i in range(n):
        if ranks[i] >= 0 and blocks[i].nbytes:
            first = min(first, blocks[i].at)
            end = max(end, blocks[i].at + blocks[i].nbytes)
    first = first if end else 0
    for i in range(n):
        if ranks[i] >= 0 and blocks[i].nbytes:
            cuts[ranks[i] + 1] = blocks[i].nbytes
            starts[ranks[i]] = blocks[i].at - first
    for i in range(size):
        cuts[i + 1] += cuts[i]
    extent[0] = end
    return first


cdef bint fill_side(Calls calls, Peers peers, int variant, object spec, bint writable, View *v) except? False:
    cdef int n = len(peers.sources) if writable else len(peers.targets)
    if variant == 2 or variant == 4 or (variant == 3 and not writable):  # allgather, alltoall; allgatherv sends one block
        return equal_blocks(spec, writable, n, not writable and variant != 4, peers.blocks, v)
    return counted_blocks(spec, writable, n, variant == 1 or variant == 6, peers.blocks, v)


cdef bint fill_exchange(Calls calls, coll_node_message *m, int variant, object send, object recv) except? False:
    """Fill the message of an exchange; False if the call is not ordinary."""
    cdef Peers peers = calls.all_peers if variant == 1 else calls.near_peers
    cdef View v, w
    cdef int n = calls.member.size + 1
    cdef size_t first, other, end, input_end
    cdef size_t *tables
    if peers is None or not peers.distinct:
        return False
    tables = peers.tables
    if not fill_side(calls, peers, variant, recv, True, &w):
        return False
    first = lay_out(peers.blocks, peers.ranks, len(peers.sources), n - 1, tables, tables + 2 * n, &end)
    if not fill_side(calls, peers, variant, send, False, &v):
        return False
    other = lay_out(peers.blocks, peers.ranks + len(peers.sources), len(peers.targets), n - 1, tables + n,
                    tables + 3 * n, &input_end)
    if v.data + other < w.data + end and w.data + first < v.data + input_end:  # perhaps they overlap
        return False
    m.kind = COLL_NODE_ALLTOALL
    m.input = v.data + other
    m.output = w.data + first
    as_bytes(m, tables[n - 1], -1)
    m.cuts, m.input_cuts, m.starts, m.input_starts = tables, tables + n, tables + 2 * n, tables + 3 * n
    m.variant = variant
    cdef int r = calls.member.rank
    return tables[r + 1] - tables[r] == tables[n + r + 1] - tables[n + r]  # what this rank sends to itself
