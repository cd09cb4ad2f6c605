# Collectives of Python objects: frames (_frames.pxi), then what did not fit; included by _core.pyx.

# Messages: straight to the engine on a node, by the methods of the communicator elsewhere

cdef as_array(char *data, size_t nbytes, owner):
    cdef cnp.npy_intp n = <cnp.npy_intp>nbytes
    array = cnp.PyArray_SimpleNewFromData(1, &n, cnp.NPY_UINT8, data)
    cnp.set_array_base(array, owner)
    return array


cdef Node engine_for(comm, coll_node_kind kind):
    """The node of a communicator where it serves a collective, or None."""
    node = comm._node
    return <Node>node if node is not None and open_now(<Node>node) >> <int>kind & 1 and not coll_progress_ended() else None


cdef int run(comm, Node node, coll_node_message *m, owner) except -1:
    """A filled message through the engine."""
    if not launch(node, m, coll_ticks()):
        finish(comm, node, (owner,))
    return 0


cdef int send_frames(comm, coll_node_kind kind, Frames f, char *source, char *target, size_t frames, int root) except -1:
    """A collective of frames; ``frames`` make up the vector."""
    cdef coll_node_message m
    m.kind = kind
    m.root = root
    m.input = source
    m.output = target
    m.cuts = m.input_cuts = NULL
    as_bytes(&m, frames * FRAME, -1)
    node = engine_for(comm, kind)
    if node is not None:
        return run(comm, node, &m, f)
    comm = comm._part()
    if kind == COLL_NODE_BCAST:
        comm.Bcast(as_array(target, FRAME, f), root)
    elif kind == COLL_NODE_ALLGATHER:
        comm.Allgather(IN_PLACE, as_array(target, frames * FRAME, f))
    elif kind == COLL_NODE_ALLTOALL:
        comm.Alltoall(as_array(source, frames * FRAME, f), as_array(target, frames * FRAME, f))
    else:
        comm.Scatter(as_array(source, frames * FRAME, f) if source != NULL else None, as_array(target, FRAME, f), root)
    return 0


cdef int send_stream(comm, bytes stream, int root) except -1:
    """A broadcast of a stream; its memory elsewhere than at the root."""
    cdef coll_node_message m
    m.kind = COLL_NODE_BCAST
    m.root = root
    m.input = m.output = <char *>stream
    m.cuts = m.input_cuts = NULL
    as_bytes(&m, len(stream), -1)
    node = engine_for(comm, COLL_NODE_BCAST)
    if node is not None:
        return run(comm, node, &m, stream)
    comm._part().Bcast(as_array(<char *>stream, len(stream), stream), root)
    return 0


cdef list collect_streams(comm, Frames f, bytes mine, list lengths, int root):
    """The streams of all ranks, on the root or (root -1) on all; None elsewhere."""
    cdef coll_node_message m
    cdef bint here = root < 0 or root == f.rank
    data = PyBytes_FromStringAndSize(NULL, sum(lengths)) if here else b""
    m.kind = COLL_NODE_ALLGATHER if root < 0 else COLL_NODE_GATHER
    m.root = max(root, 0)
    node = engine_for(comm, m.kind)
    if node is not None:
        m.input = <char *>mine
        m.output = <char *>data if here else NULL
        m.cuts = boundaries(node, lengths)
        m.input_cuts = NULL
        as_bytes(&m, m.cuts[f.size], -1)
        run(comm, node, &m, (mine, data))
    else:
        source = as_array(<char *>mine, len(mine), mine)
        target = [as_array(<char *>data, len(data), data), lengths] if here else None
        comm._part().Allgatherv(source, target) if root < 0 else comm._part().Gatherv(source, target, root)
    return parts_of(data, lengths) if here else None


cdef size_t *boundaries(Node node, list lengths) except NULL:
    """Boundaries of blocks of these lengths, in memory of the node's."""
    cdef size_t i = 0
    node.member.cuts[0] = 0
    for length in lengths:
        node.member.cuts[i + 1] = node.member.cuts[i] + <size_t>length
        i += 1
    return node.member.cuts


cdef list parts_of(data, list lengths):
    view, end, parts = memoryview(data), 0, []
    for length in lengths:
        parts.append(view[end : end + length])
        end += length
    return parts


# The collectives. Unpickling may itself be collective, so it comes when the turn has been given back.

def bcast_object(comm, obj, root):
    """The root's object; on the root the very same."""
    cdef Frames f = frames_of(comm)
    cdef int r = root_of(f, root)
    cdef _Parcel p = pickled(obj) if r == f.rank else None
    take_frames(comm, f)
    try:
        if p is not None:
            give_stream(comm, f, p, r)
            return obj
        stream, buffers = take_stream(comm, f, r)
    finally:
        end_turn(&f.turn.now)
    return unpickled(stream, buffers)


cdef int give_stream(comm, Frames f, _Parcel p, int root) except -1:
    """The root's part of a broadcast."""
    put(f.to, p, p.more)
    send_frames(comm, COLL_NODE_BCAST, f, f.to, f.to, 1, root)
    if p.more & 1:
        send_stream(comm, p.stream, root)
    if p.buffers is not None:
        comm._bcast_buffers(p.buffers, root)
    return 0


cdef tuple take_stream(comm, Frames f, int root):
    """Another rank's part: the stream, and the buffers beside it or None."""
    cdef Head head
    send_frames(comm, COLL_NODE_BCAST, f, f.of, f.of, 1, root)
    head = (<Head *>f.of)[0]
    if not head.more & 1:
        stream = stream_in(f.of)
    else:
        stream = PyBytes_FromStringAndSize(NULL, head.length)
        send_stream(comm, stream, root)
    return stream, comm._bcast_buffers(sizes_in(stream, head.buffers), root) if head.buffers else None


def gather_objects(comm, obj, root=None, int end=-1):
    """The objects of the ranks before ``end`` (of all: -1), on the root, or on all ranks if it is None; else None."""
    cdef Frames f = frames_of(comm)
    cdef int r = -1 if root is None else root_of(f, root)
    cdef _Parcel p = pickled(obj)
    take_frames(comm, f)
    try:
        streams, buffers = gather_streams(comm, f, p, r, f.size if end < 0 else end)
    finally:
        end_turn(&f.turn.now)
    if streams is None:
        return None
    if buffers is not None:
        return unpickle(streams, buffers)[: f.size if end < 0 else end]
    loads = MPI.pickle.loads
    return [loads(stream) for stream in streams]


cdef tuple gather_streams(comm, Frames f, _Parcel p, int root, int end):
    """Streams, and buffers beside them or None: on the root or (-1) on all ranks; all ranks get all frames, so that they
    agree on what follows."""
    cdef char *own = f.of + <size_t>f.rank * FRAME
    cdef int more, i
    put(own, p, p.more)
    send_frames(comm, COLL_NODE_ALLGATHER, f, own, f.of, f.size, 0)
    more = more_of_all(f.of, f.size)
    here = root < 0 or root == f.rank
    if more == 0:
        return [stream_in(f.of + <size_t>i * FRAME) for i in range(end)] if here else None, None
    counts = [(<Head *>(f.of + <size_t>i * FRAME)).buffers for i in range(f.size)]
    if more & 1:
        streams = collect_streams(comm, f, p.stream, lengths_of(f.of, f.size), root)
    else:
        streams = [stream_in(f.of + <size_t>i * FRAME) for i in range(f.size)]
    if more >> 1:
        buffers = comm._gather_buffers(streams, counts, p.buffers or [], more >> 1, None if root < 0 else root)
        return (streams, buffers) if here else (None, None)
    return streams[:end] if here else None, None


def scatter_object(comm, objects, root):
    """One of the root's objects, one for each rank."""
    cdef Frames f = frames_of(comm)
    cdef int r = root_of(f, root)
    parcels = pickled_for_all(objects, f.size) if r == f.rank else None
    take_frames(comm, f)
    try:
        stream, buffers = scatter_streams(comm, f, parcels, r)
    finally:
        end_turn(&f.turn.now)
    return MPI.pickle.loads(stream) if buffers is None else unpickle([stream], [buffers])[0]


cdef tuple scatter_streams(comm, Frames f, parcels, int root):
    """This rank's stream, and the buffers beside it, or None where no rank has any."""
    cdef Head head
    if parcels is not None:
        put_all(f.to, parcels)
    send_frames(comm, COLL_NODE_SCATTER, f, f.to if parcels is not None else NULL, f.of, f.size, root)
    head = (<Head *>f.of)[0]
    if head.more == 0:
        return stream_in(f.of), None
    stream = stream_in(f.of) if not head.more & 1 else comm._deal(streams_of(parcels), head.length, root)
    if head.more >> 1 == 0:
        return stream, None
    return stream, comm._scatter_buffers(stream, head.buffers, buffers_of(parcels), head.more >> 1, root)


def alltoall_objects(comm, objects):
    """An object from every rank, for one to every rank."""
    cdef Frames f = frames_of(comm)
    parcels = pickled_for_all(objects, f.size)
    take_frames(comm, f)
    try:
        streams, buffers = swap_streams(comm, f, parcels)
    finally:
        end_turn(&f.turn.now)
    if buffers is not None:
        return unpickle(streams, buffers)
    loads = MPI.pickle.loads
    return [loads(stream) for stream in streams]


cdef tuple swap_streams(comm, Frames f, list parcels):
    """Streams from all ranks, and the buffers beside them, or None where no rank has any."""
    cdef int more, i
    put_all(f.to, parcels)
    send_frames(comm, COLL_NODE_ALLTOALL, f, f.to, f.of, f.size, 0)
    more = more_of_all(f.of, f.size)
    counts = [(<Head *>(f.of + <size_t>i * FRAME)).buffers for i in range(f.size)] if more >> 1 else None
    if more & 1:
        streams = comm._swap(streams_of(parcels), lengths_of(f.of, f.size))
    else:
        streams = [stream_in(f.of + <size_t>i * FRAME) for i in range(f.size)]
    return streams, comm._swap_buffers(streams, counts, buffers_of(parcels), more >> 1) if more >> 1 else None


def sizes_in(stream, int buffers):
    """Sizes of the buffers beside a stream."""
    sizes = array.array("q")
    sizes.frombytes(bytes(stream[: 8 * buffers]))
    return sizes.tolist()


cdef list streams_of(parcels):
    return [(<_Parcel>p).stream for p in parcels] if parcels is not None else None


cdef list buffers_of(parcels):
    return [(<_Parcel>p).buffers or [] for p in parcels] if parcels is not None else None
