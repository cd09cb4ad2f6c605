# The parser of ordinary arguments of exchanges: all-to-allw, and the collectives of neighbours. They are all-to-alls
# whose blocks lie where the program has them, most of them empty; included by _core.pyx.

cdef enum:
    MOST_COMPARED = 256    # pairs of a block that is sent and one that is received
    MOST_PACKED = 4 << 20  # bytes that a rank sends, or receives, in a call that the fast path packs

cdef struct Block:
    size_t at, nbytes  # from the beginning of the buffer

cdef struct Edges:  # what a rank receives in an exchange, or what it sends
    int *ranks             # of the neighbours, in the order of the program's blocks; negative: there is none
    int *order             # the blocks that have a neighbour, in the order of the ranks and of their messages
    int number, existing   # lengths of the two
    Block *blocks
    size_t *cuts           # boundaries of the data of all ranks
    size_t *starts         # where they are, from the first block on
    unsigned char *memory  # the program's buffer
    size_t first, end      # the bytes of it that the blocks span
    unsigned char *packed  # room for the data of all ranks side by side; NULL before it is needed


@cython.final
cdef class Peers:
    """With whom this rank exchanges blocks: ``sources`` and ``targets`` are ranks, in the order of the program's blocks;
    negative numbers stand for neighbours that do not exist. ``crossed``: what is sent as block 2i arrives as block 2i + 1,
    and the reverse, as between the neighbours of a Cartesian grid. ``orders`` has, for sources and for targets, the
    blocks that have a neighbour, in the order of the ranks and of the messages that a rank sends."""

    cdef readonly tuple sources, targets, orders
    cdef Edges[2] edges        # of what arrives, and of what is sent, in the present call
    cdef bint scattered        # whether what arrives in the present call must be unpacked
    cdef int *ranks            # memory of the tables of `edges`
    cdef size_t *tables
    cdef Block *blocks

    def __cinit__(self, int size, tuple sources, tuple targets, bint crossed=False):
        cdef int i, n = len(sources), both = len(sources) + len(targets)
        cdef Edges *e
        if any(rank >= size for rank in sources + targets):
            raise ValueError(f"peers: {max(sources + targets)} is not a rank of a communicator of {size}")
        self.sources, self.targets = sources, targets
        self.orders = in_order(sources, crossed), in_order(targets, False)
        self.ranks = <int *>malloc((2 * both + 1) * sizeof(int))
        self.tables = <size_t *>malloc(4 * (size + 1) * sizeof(size_t))
        self.blocks = <Block *>malloc((both + 1) * sizeof(Block))
        if self.ranks == NULL or self.tables == NULL or self.blocks == NULL:
            raise MemoryError
        for i, ranks in enumerate((sources, targets)):
            e = &self.edges[i]
            e.number, e.existing = len(ranks), len(self.orders[i])
            e.ranks, e.order, e.blocks = self.ranks + i * n, self.ranks + both + i * n, self.blocks + i * n
            e.cuts, e.starts = self.tables + i * (size + 1), self.tables + (2 + i) * (size + 1)
            copy_integers(ranks, e.ranks)
            copy_integers(self.orders[i], e.order)

    def __dealloc__(self):
        free(self.ranks)
        free(self.tables)
        free(self.blocks)
        free(self.edges[0].packed)
        free(self.edges[1].packed)


cdef tuple in_order(tuple ranks, bint crossed):
    """The blocks that have a neighbour, in the order of the ranks and of their messages."""
    messages = (i ^ crossed for i in range(len(ranks)))
    return tuple(sorted((i for i in messages if ranks[i] >= 0), key=ranks.__getitem__))


cdef int copy_integers(tuple values, int *to) except -1:
    cdef int i
    for i in range(len(values)):
        to[i] = values[i]
    return 0


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
        if typed:
            size = 0 if types[i] is None else bytes_of_type(types[i], v)
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


cdef bint lay_out(Edges *e, int size) noexcept:
    """Write boundaries and places of the data of all ranks; False if the blocks of a rank are not one run of bytes."""
    cdef int k, rank
    cdef const Block *block
    cdef bint runs = True
    memset(e.cuts, 0, (size + 1) * sizeof(size_t))
    memset(e.starts, 0, (size + 1) * sizeof(size_t))
    e.first, e.end = <size_t>-1, 0
    for k in range(e.existing):
        block, rank = &e.blocks[e.order[k]], e.ranks[e.order[k]]
        if block.nbytes == 0:
            continue
        e.first, e.end = min(e.first, block.at), max(e.end, block.at + block.nbytes)
        if e.cuts[rank + 1] == 0:
            e.starts[rank] = block.at
        runs = runs and e.starts[rank] + e.cuts[rank + 1] == block.at
        e.cuts[rank + 1] += block.nbytes
    e.first = e.first if e.end else 0
    for rank in range(size):
        if e.cuts[rank + 1]:
            e.starts[rank] -= e.first
        e.cuts[rank + 1] += e.cuts[rank]
    return runs


cdef bint has_room(Edges *e, int size) except? False:
    """Have all data side by side in ``packed``; False if that takes too much memory."""
    if e.cuts[size] > MOST_PACKED:
        return False
    if e.packed == NULL:
        e.packed = <unsigned char *>malloc(MOST_PACKED)
        if e.packed == NULL:
            raise MemoryError
    memcpy(e.starts, e.cuts, size * sizeof(size_t))
    return True


cdef void move_blocks(const Edges *e, bint packs) noexcept:
    """Copy the blocks to ``packed``, or back."""
    cdef int k
    cdef size_t at = 0
    cdef const Block *block
    for k in range(e.existing):
        block = &e.blocks[e.order[k]]
        if packs:
            memcpy(e.packed + at, e.memory + block.at, block.nbytes)
        else:
            memcpy(e.memory + block.at, e.packed + at, block.nbytes)
        at += block.nbytes


cdef bint are_apart(const Edges *a, const Edges *b) noexcept:
    """Whether no block of one side overlaps one of the other; False, too, if there are many to compare."""
    cdef int i, j
    cdef const Block *x
    cdef const Block *y
    if a.memory + a.first >= b.memory + b.end or b.memory + b.first >= a.memory + a.end:
        return True
    if <long>a.existing * b.existing > MOST_COMPARED:
        return False
    for i in range(a.existing):
        x = &a.blocks[a.order[i]]
        for j in range(b.existing):
            y = &b.blocks[b.order[j]]
            if x.nbytes and y.nbytes and a.memory + x.at < b.memory + y.at + y.nbytes and (
                    b.memory + y.at < a.memory + x.at + x.nbytes):
                return False
    return True


cdef inline Peers peers_of(Calls calls, int variant):
    return calls.all_peers if variant == 1 else calls.near_peers


cdef void unpack(Calls calls, int variant) noexcept:
    """Copy what has arrived in an exchange to the program's blocks, if it is not there."""
    cdef Peers peers = peers_of(calls, variant)
    if peers.scattered:
        move_blocks(&peers.edges[0], False)


cdef bint fill_side(Edges *e, int variant, object spec, bint writable) except? False:
    cdef View v
    cdef bint ordinary
    if variant == 2 or variant == 4 or (variant == 3 and not writable):  # allgather, alltoall; allgatherv sends one block
        ordinary = equal_blocks(spec, writable, e.number, not writable and variant != 4, e.blocks, &v)
    else:
        ordinary = counted_blocks(spec, writable, e.number, variant == 1 or variant == 6, e.blocks, &v)
    e.memory = <unsigned char *>v.data if ordinary else NULL
    return ordinary


cdef bint fill_exchange(Calls calls, coll_node_message *m, _Method method, object send, object recv) except? False:
    """Fill the message of an exchange; False if the call is not ordinary.

    Blocks are used as they lie if those of each rank are one run of bytes. Otherwise they are packed, and ``unpack``
    must be called after the call.
    """
    cdef Peers peers = peers_of(calls, method.variant)
    cdef int size = calls.member.size, rank = calls.member.rank
    cdef bint packs
    cdef Edges *source
    cdef Edges *target
    if peers is None:
        return False
    target, source = &peers.edges[0], &peers.edges[1]
    if not fill_side(target, method.variant, recv, True) or not fill_side(source, method.variant, send, False):
        return False
    peers.scattered = not lay_out(target, size)
    packs = not lay_out(source, size)
    if target.cuts[rank + 1] - target.cuts[rank] != source.cuts[rank + 1] - source.cuts[rank]:  # for this rank itself
        return False
    if not are_apart(source, target):
        return False
    if packs or peers.scattered:
        if method.starts or packs and not has_room(source, size) or peers.scattered and not has_room(target, size):
            return False
        if packs:
            move_blocks(source, True)
    m.kind = COLL_NODE_ALLTOALL
    m.input = source.packed if packs else source.memory + source.first
    m.output = target.packed if peers.scattered else target.memory + target.first
    as_bytes(m, target.cuts[size], -1)
    m.cuts, m.input_cuts, m.starts, m.input_starts = target.cuts, source.cuts, target.starts, source.starts
    m.variant = method.variant
    return True
