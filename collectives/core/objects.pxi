# Collectives of Python objects: frames (frames.pxi), then what does not fit in them; included by _core.pyx.

# Messages: directly by the node-local engine if it serves them, else by the communicator's methods

cdef as_array(char *data, size_t nbytes, owner):
    cdef cnp.npy_intp n = <cnp.npy_intp>nbytes
    array = cnp.PyArray_SimpleNewFromData(1, &n, cnp.NPY_UINT8, data)
    cnp.set_array_base(array, owner)
    return array


cdef bint engine_serves(Calls calls, coll_node_kind kind):
    """Whether the engine serves a collective of bytes whose number all ranks know."""
    return open_now(calls) >> <int>kind & 1 and not coll_progress_ended()


cdef int run(Calls calls, coll_node_message *m, owner) except -1:
    """Run the filled message ``m`` on the engine; ``owner`` keeps its memory alive."""
    if not launch(calls, m, coll_ticks()):
        finish(calls, owner, None)
    return 0


cdef int send_frames(comm, Calls calls, coll_node_kind kind, char *source, char *target, size_t frames, int root) except -1:
    """Run a collective of frames; ``frames`` is their number in the whole vector."""
    cdef coll_node_message m
    m.kind = kind
    m.root = root
    m.input = source
    m.output = target
    m.cuts = m.input_cuts = NULL
    as_bytes(&m, frames * FRAME, -1)
    cdef _Frames f = calls.frames
    if engine_serves(calls, kind):
        return run(calls, &m, f)
    comm = EXCHANGE(comm).part()
    if kind == COLL_NODE_BCAST:
        comm.Bcast(as_array(target, FRAME, f), root)
    elif kind == COLL_NODE_ALLGATHER:
        comm.Allgather(IN_PLACE, as_array(target, frames * FRAME, f))
    elif kind == COLL_NODE_ALLTOALL:
        comm.Alltoall(as_array(source, frames * FRAME, f), as_array(target, frames * FRAME, f))
    else:
        comm.Scatter(as_array(source, frames * FRAME, f) if source != NULL else None, as_array(target, FRAME, f), root)
    return 0


cdef int send_stream(comm, Calls calls, bytes stream, int root) except -1:
    """Broadcast ``stream``; on ranks other than the root, receive into its memory."""
    cdef coll_node_message m
    m.kind = COLL_NODE_BCAST
    m.root = root
    m.input = m.output = <char *>stream
    m.cuts = m.input_cuts = NULL
    as_bytes(&m, len(stream), -1)
    if engine_serves(calls, COLL_NODE_BCAST):
        return run(calls, &m, stream)
    EXCHANGE(comm).part().Bcast(as_array(<char *>stream, len(stream), stream), root)
    return 0


cdef list collect_streams(comm, Calls calls, bytes mine, list lengths, int root):
    """Gather the streams of all ranks on the root, or on all ranks if ``root`` is -1; None on other ranks."""
    cdef coll_node_message m
    cdef bint here = root < 0 or root == calls.member.rank
    data = PyBytes_FromStringAndSize(NULL, sum(lengths)) if here else b""
    m.kind = COLL_NODE_ALLGATHER if root < 0 else COLL_NODE_GATHER
    m.root = max(root, 0)
    if engine_serves(calls, m.kind):
        m.input = <char *>mine
        m.output = <char *>data if here else NULL
        m.cuts = boundaries(calls, lengths)
        m.input_cuts = NULL
        as_bytes(&m, m.cuts[calls.member.size], -1)
        run(calls, &m, (mine, data))
    else:
        source = as_array(<char *>mine, len(mine), mine)
        target = [as_array(<char *>data, len(data), data), lengths] if here else None
        EXCHANGE(comm).part().Allgatherv(source, target) if root < 0 else EXCHANGE(comm).part().Gatherv(source, target, root)
    return parts_of(data, lengths) if here else None


cdef size_t *boundaries(Calls calls, list lengths) except NULL:
    """The boundaries of blocks of these lengths, in the communicator's table, which the next call overwrites."""
    cdef size_t i = 0
    calls.member.cuts[0] = 0
    for length in lengths:
        calls.member.cuts[i + 1] = calls.member.cuts[i] + <size_t>length
        i += 1
    return calls.member.cuts


cdef list parts_of(data, list lengths):
    view, end, parts = memoryview(data), 0, []
    for length in lengths:
        parts.append(view[end : end + length])
        end += length
    return parts


# The collectives. Unpickling may call collectives itself, so it begins after the end of the turn.

#: The part of a collective that needs the turn: from what this rank sends to the streams and buffers that it receives.
ctypedef tuple (*exchange)(object comm, Calls calls, object sent, int root, int end)


cdef tuple in_turn(exchange run, str collective, comm, Calls calls, sent, int root=-1, int end=-1):
    """The result of ``run``, which has the turn. If an exception ends it after its first part has begun, the call is
    given up, since other ranks wait for the next parts."""
    cdef long long begun = calls.number()
    take_frames(calls)
    try:
        return run(comm, calls, sent, root, end)
    except BaseException as e:
        if calls.broken is None and calls.number() != begun:
            calls.torn(collective, e)
        raise
    finally:
        end_turn(&calls.turn.now)


cdef list loaded(list streams, buffers):
    """The objects of these streams; ``buffers`` has a list of buffers for each, or is None."""
    if buffers is not None:
        return unpickle(streams, buffers)
    loads = MPI.pickle.loads
    return [loads(stream) for stream in streams]


cdef tuple CONSTANTS = (type(None), bool, int, float, complex, str, bytes)


def bcast_object(comm, obj, root):
    """A copy of the root's object; on the root itself a None, number or string is returned as it is."""
    cdef Calls calls = calls_of(comm)
    cdef int r = root_of(calls, root)
    cdef bint here = r == calls.frames.rank
    stream, buffers = bcast_parcel(comm, calls, pickled(obj) if here else None, r)
    return obj if here and type(obj) in CONSTANTS else unpickled(stream, buffers)


cdef tuple bcast_parcel(comm, Calls calls, _Parcel sent, int root):
    """The stream of the root's parcel, and the object's buffers or None; on the root, copies of them."""
    if root != calls.frames.rank:
        return in_turn(take_stream, "bcast", comm, calls, None, root)
    in_turn(give_stream, "bcast", comm, calls, sent, root)
    return sent.stream, copies_of(sent)


cdef list copies_of(_Parcel parcel):
    return None if parcel.buffers is None else [bytearray(buffer) for buffer in parcel.buffers]


cdef tuple give_stream(object comm, Calls calls, object sent, int root, int end):
    """The root's part of the broadcast of the pickled object ``sent``."""
    cdef _Frames f = calls.frames
    cdef _Parcel p = <_Parcel>sent
    put(f.to, p, p.more)
    send_frames(comm, calls, COLL_NODE_BCAST, f.to, f.to, 1, root)
    if p.more & 1:
        send_stream(comm, calls, p.stream, root)
    if p.buffers is not None:
        EXCHANGE(comm).bcast(p.buffers, root)
    return None


cdef tuple take_stream(object comm, Calls calls, object sent, int root, int end):
    """The part of ranks other than the root: returns the stream, and the buffers or None."""
    cdef _Frames f = calls.frames
    cdef Head head
    send_frames(comm, calls, COLL_NODE_BCAST, f.of, f.of, 1, root)
    head = (<Head *>f.of)[0]
    if not head.more & 1:
        stream = stream_in(f.of)
    else:
        stream = PyBytes_FromStringAndSize(NULL, head.length)
        send_stream(comm, calls, stream, root)
    return stream, EXCHANGE(comm).bcast(sizes_in(stream, head.buffers), root) if head.buffers else None


def gather_objects(comm, obj, root=None, int end=-1):
    """The objects of the ranks before ``end`` (-1: of all ranks), on the root, or on all ranks if ``root`` is None.

    On other ranks than the root the result is None.
    """
    cdef Calls calls = calls_of(comm)
    cdef int r = -1 if root is None else root_of(calls, root)
    end = calls.frames.size if end < 0 else end
    collective = "gather" if r >= 0 else "allgather"
    streams, buffers = in_turn(gather_streams, collective, comm, calls, pickled(obj), r, end)
    if streams is None:
        return None
    return loaded(streams[:end], None if buffers is None else buffers[:end])


cdef tuple gather_streams(object comm, Calls calls, object sent, int root, int end):
    """Streams, and buffers or None, on the root, or on all ranks if ``root`` is -1; None, None on others."""
    announce(comm, calls, sent)
    return collect(comm, calls, sent, root, end)


cdef int announce(comm, Calls calls, _Parcel sent) except -1:
    """All-gather the frames of all ranks, so that they agree on the messages that follow."""
    cdef _Frames f = calls.frames
    cdef char *own = f.of + <size_t>f.rank * FRAME
    put(own, sent, sent.more)
    return send_frames(comm, calls, COLL_NODE_ALLGATHER, own, f.of, f.size, 0)


cdef tuple collect(comm, Calls calls, _Parcel sent, int root, int end):
    """What :func:`gather_streams` returns, once the frames have been exchanged."""
    cdef _Frames f = calls.frames
    cdef int more = more_of_all(f.of, f.size)
    here = root < 0 or root == f.rank
    if more == 0:
        return streams_in(f.of, end) if here else None, None
    counts = counts_of(f.of, f.size)
    if more & 1:
        streams = collect_streams(comm, calls, sent.stream, lengths_of(f.of, f.size), root)
    else:
        streams = streams_in(f.of, f.size)
    buffers = None
    if more >> 1:
        buffers = EXCHANGE(comm).gather(streams, counts, sent.buffers or [], more >> 1, None if root < 0 else root)
    return (streams, buffers) if here else (None, None)


def scatter_object(comm, objects, root):
    """On rank i the i-th of the root's ``objects``, which has one for each rank."""
    cdef Calls calls = calls_of(comm)
    cdef int r = root_of(calls, root)
    parcels = pickled_for_all(objects, calls.frames.size) if r == calls.frames.rank else None
    stream, buffers = in_turn(scatter_streams, "scatter", comm, calls, parcels, r)
    return loaded([stream], None if buffers is None else [buffers])[0]


cdef tuple scatter_streams(object comm, Calls calls, object sent, int root, int end):
    """This rank's stream, and its object's buffers, or None if no object has any; the root has sent the parcels."""
    cdef _Frames f = calls.frames
    cdef Head head
    if sent is not None:
        put_all(f.to, sent)
    send_frames(comm, calls, COLL_NODE_SCATTER, f.to if sent is not None else NULL, f.of, f.size, root)
    head = (<Head *>f.of)[0]
    if head.more == 0:
        return stream_in(f.of), None
    stream = stream_in(f.of) if not head.more & 1 else EXCHANGE(comm).deal(streams_of(sent), head.length, root)
    if head.more >> 1 == 0:
        return stream, None
    return stream, EXCHANGE(comm).scatter(stream, head.buffers, buffers_of(sent), head.more >> 1, root)


def alltoall_objects(comm, objects):
    """Send the i-th of ``objects`` to rank i; the objects received from all ranks, in rank order."""
    cdef Calls calls = calls_of(comm)
    parcels = pickled_for_all(objects, calls.frames.size)
    streams, buffers = in_turn(swap_streams, "alltoall", comm, calls, parcels)
    return loaded(streams, buffers)


cdef tuple swap_streams(object comm, Calls calls, object sent, int root, int end):
    """The streams from all ranks, and the objects' buffers, or None if no object has any."""
    cdef _Frames f = calls.frames
    cdef int more
    put_all(f.to, sent)
    send_frames(comm, calls, COLL_NODE_ALLTOALL, f.to, f.of, f.size, 0)
    more = more_of_all(f.of, f.size)
    counts = counts_of(f.of, f.size) if more >> 1 else None
    if more & 1:
        streams = EXCHANGE(comm).swap(streams_of(sent), lengths_of(f.of, f.size))
    else:
        streams = streams_in(f.of, f.size)
    return streams, EXCHANGE(comm).alltoall(streams, counts, buffers_of(sent), more >> 1) if more >> 1 else None


def sizes_in(stream, int buffers):
    """Lengths in bytes of an object's buffers, of which there are ``buffers``, from the begin of its stream."""
    sizes = array.array("q")
    sizes.frombytes(bytes(stream[: 8 * buffers]))
    return sizes.tolist()


cdef list streams_of(parcels):
    return [(<_Parcel>p).stream for p in parcels] if parcels is not None else None


cdef list buffers_of(parcels):
    return [(<_Parcel>p).buffers or [] for p in parcels] if parcels is not None else None
