# Python objects as frames of fixed length, and messages for what does not fit in them; included by _core.pyx.
#
# A pickled object has a stream and, separately, large buffers (PEP 574). Each call first exchanges frames. A frame
# holds a short stream completely and says what follows: a message of all streams if one of them is too long, and a
# message for each buffer. All ranks conclude the same from the frames. The length of a frame was chosen so that it
# holds the stream of a small array; the ranks of a node exchange a single cache line hardly faster.

cdef enum:
    FRAME = 512
    SMALL = 8192  # most bytes of an array for which a message of its own does not pay

cdef struct Head:
    int64_t length   # bytes of the stream, which follows the head if it fits
    int32_t buffers  # number of buffers of the object
    int32_t more     # what this rank sends later in the call; bit 0: a long stream; above: most buffers of an object

cdef size_t ROOM = FRAME - sizeof(Head)


cdef class _Frames:
    """A communicator's memory for frames: one to each rank (``to``), and one from each rank (``of``)."""

    cdef char *to
    cdef char *of
    cdef int rank, size

    def __cinit__(self, int rank, int size):
        self.to = <char *>calloc(2 * <size_t>size, FRAME)
        if self.to == NULL:
            raise MemoryError
        self.of = self.to + <size_t>size * FRAME
        self.rank = rank
        self.size = size

    def __dealloc__(self):
        free(self.to)


cdef Calls calls_of(comm):
    """The calls of the communicator ``comm``; an error if it cannot be used."""
    context = context_of(comm)
    if context is None or not open_now(<Calls>context):
        context = EXCHANGE(comm).enter()
    cdef Calls calls = <Calls>context
    if calls.frames is None:
        calls.frames = _Frames(calls.member.rank, calls.member.size)
    return calls


cdef int take_frames(Calls calls) except -1:
    """Take the turn for a call with objects, which may consist of several calls."""
    if calls.turn.now.thread == 0:
        begin_turn(&calls.turn.now)
    else:
        calls.take_turn()
    return 0


cdef int root_of(Calls calls, root) except -1:
    if type(root) is int and 0 <= root < calls.member.size:
        return root
    return CHECKED_ROOT(root, calls.member.size)


# Pickling

cdef class _Parcel:
    """A pickled object. If there are buffers, the stream begins with their lengths in bytes, as int64."""

    cdef bytes stream
    cdef list buffers
    cdef int more


cdef bint surely_small(o, int depth):
    """Whether it is certain that ``o`` has no large buffers; the serializer is slower if it has to look for them."""
    kind = type(o)
    if o is None or kind is int or kind is float or kind is str or kind is bool or kind is bytes:
        return True
    if kind is cnp.ndarray:
        return cnp.PyArray_TYPE(<cnp.ndarray>o) < cnp.NPY_OBJECT and cnp.PyArray_NBYTES(<cnp.ndarray>o) <= SMALL
    if depth == 0 or kind is not tuple and kind is not list and kind is not dict or len(o) > 8:
        return False
    if kind is dict:
        for key, value in (<dict>o).items():
            if not surely_small(key, depth - 1) or not surely_small(value, depth - 1):
                return False
        return True
    for item in o:
        if not surely_small(item, depth - 1):
            return False
    return True


cdef _Parcel pickled(obj):
    cdef _Parcel p = _Parcel.__new__(_Parcel)
    serializer = MPI.pickle
    buffers = None
    if surely_small(obj, 2):
        data = serializer.dumps(obj)
    else:
        try:
            data, buffers = serializer.dumps_oob(obj)
        except TypeError:  # the program has given mpi4py a serializer without out-of-band buffers
            data = serializer.dumps(obj)
    if buffers:
        p.buffers = buffers
        data = array.array("q", [len(b) for b in buffers]).tobytes() + data
    p.stream = data
    p.more = (len(p.stream) > <Py_ssize_t>ROOM) | (len(p.buffers) if p.buffers is not None else 0) << 1
    return p


cdef inline int both(int more, int other) noexcept:
    """The field ``more`` of two frames together."""
    return max(more >> 1, other >> 1) << 1 | (more | other) & 1


cpdef list one_for_each(objects, int size):
    """The objects for ``size`` ranks as a list; None stands for a None for each, as in mpi4py."""
    items = list(objects) if objects is not None else [None] * size
    if len(items) != size:
        raise ValueError(f"sendobj: expected {size} objects, one for each rank, got {len(items)}")
    return items


cdef list pickled_for_all(objects, int size):
    return [pickled(item) for item in one_for_each(objects, size)]


cdef void put(char *frame, _Parcel p, int more) noexcept:
    cdef Head *head = <Head *>frame
    head.length = len(p.stream)
    head.buffers = <int32_t>len(p.buffers) if p.buffers is not None else 0
    head.more = more
    if <size_t>head.length <= ROOM:
        memcpy(frame + sizeof(Head), <char *>p.stream, head.length)


cdef int put_all(char *frames, list parcels) except -1:
    """Write a frame for each rank; all have the field ``more`` of all objects together, which is returned."""
    cdef int more = 0
    for parcel in parcels:
        more = both(more, (<_Parcel>parcel).more)
    for parcel in parcels:
        put(frames, <_Parcel>parcel, more)
        frames += FRAME
    return more


cdef int more_of_all(const char *frames, size_t size) noexcept:
    cdef int more = 0
    cdef size_t i
    for i in range(size):
        more = both(more, (<const Head *>(frames + i * FRAME)).more)
    return more


cdef list lengths_of(const char *frames, size_t size):
    return [(<const Head *>(frames + i * FRAME)).length for i in range(size)]


cdef bytes stream_in(const char *frame):
    return PyBytes_FromStringAndSize(frame + sizeof(Head), (<const Head *>frame).length)


cdef list streams_in(const char *frames, size_t n):
    cdef size_t i
    cdef list found = []
    for i in range(n):
        found.append(stream_in(frames + i * FRAME))
    return found


cdef list counts_of(const char *frames, size_t size):
    return [(<const Head *>(frames + i * FRAME)).buffers for i in range(size)]


cdef object unpickled(stream, buffers):
    if buffers is None:
        return MPI.pickle.loads(stream)
    return MPI.pickle.loads_oob(memoryview(stream)[8 * len(buffers) :], buffers)


def unpickle(list streams, list buffers):
    """Unpickle the objects with these ``streams``; ``buffers`` has a list of buffers for each, which may be empty."""
    return [unpickled(stream, beside or None) for stream, beside in zip(streams, buffers)]
