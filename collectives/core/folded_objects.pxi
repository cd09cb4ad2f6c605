# Reductions of Python objects: by folds of all objects, or along a tree if they are long; included by _core.pyx.

cdef object TOO_LONG = object()  # in the place of the streams of all ranks


def reduce_objects(comm, obj, op, root, bint once, int most, sendable):
    """The objects of all ranks, folded by ``op(left, right)``, on the root, or on all ranks if ``root`` is None.

    With ``once``, rank 0 folds for all ranks, and they get copies. Otherwise each rank that has the result folds. If
    all objects together have more than ``most`` bytes, they are folded along a tree, which ends on rank 0. Of an error
    that ends a fold for other ranks these raise a copy, ``sendable(error)``.
    """
    cdef Calls calls = calls_of(comm)
    cdef int r = -1 if root is None else root_of(calls, root)
    collective = "allreduce" if r < 0 else "reduce"
    streams, buffers = in_turn(gather_unless_long, collective, comm, calls, pickled(obj), 0 if once else r, most)
    if not once and streams is not TOO_LONG:
        return None if streams is None else functools.reduce(op, loaded(streams, buffers))
    value = error = None
    try:
        if streams is TOO_LONG:
            value, error = folded_along_tree(collective, comm, calls, obj, op, sendable)
        elif streams is not None:
            value, error = folded_or_error(op, streams, buffers)
        streams = buffers = None  # before the result comes
        streams, buffers = given(collective, comm, calls, value, error, r, sendable)
    except BaseException as e:  # of a signal handler, perhaps: the other ranks wait
        if calls.broken is None:
            calls.torn(collective, e)
        raise
    value, told = unpickled(streams, buffers or None)
    if told is not None:
        raise told if error is None else error
    return value


cdef tuple gather_unless_long(object comm, Calls calls, object sent, int root, int most):
    """As ``gather_streams``; but ``TOO_LONG``, None on all ranks if the objects have more than ``most`` bytes."""
    announce(comm, calls, sent)
    if bytes_of_all(calls.frames.of, calls.frames.size) > most:
        return TOO_LONG, None
    return collect(comm, calls, sent, root, calls.frames.size)


cdef int64_t bytes_of_all(const char *frames, size_t size) noexcept:
    """Bytes of all objects: of their streams, and of the buffers of those whose streams are in the frames."""
    cdef int64_t total = 0
    cdef const Head *head
    cdef size_t i
    cdef int k
    for i in range(size):
        head = <const Head *>(frames + i * FRAME)
        total += head.length
        if <size_t>head.length <= ROOM:
            for k in range(head.buffers):
                total += (<const int64_t *>(frames + i * FRAME + sizeof(Head)))[k]
    return total


cdef tuple folded_or_error(op, streams, buffers):
    """The objects folded, and None; or None and the error of an op, or of unpickling."""
    try:
        return functools.reduce(op, loaded(streams, buffers)), None
    except Exception as e:
        return None, e


cdef tuple folded_along_tree(str collective, comm, Calls calls, obj, op, sendable):
    """On rank 0 all objects folded, and None; or None and an error. On other ranks None, None.

    Rank 1's object goes to rank 0, rank 3's to rank 2, and so on; then rank 2's result to rank 0, rank 6's to rank 4.
    So a rank holds at most its own object and one other, beside copies on their way.
    """
    cdef int rank = calls.frames.rank, size = calls.frames.size, step = 1
    cdef _Parcel own = pickled(obj), nothing = pickled((None, None))
    value, error = obj if rank % 2 else unpickled(own.stream, copies_of(own)), None  # since an op may change it
    own = None
    while step < size:
        parcels = [nothing] * size
        if rank % (2 * step) == step:
            parcels[rank - step] = outcome(value, error, sendable)
            value = error = None
        streams, buffers = in_turn(swap_streams, collective, comm, calls_of(comm), parcels)
        if rank % (2 * step) == 0 and rank + step < size:
            beside = None if buffers is None else buffers[rank + step] or None
            value, error = folded_pair(op, value, error, streams[rank + step], beside)
        step *= 2
    return value, error


cdef tuple folded_pair(op, value, error, stream, buffers):
    """The outcome (value, error) joined with that of the ranks behind, which was received."""
    try:
        other, failed = unpickled(stream, buffers)
        if error is None and failed is None:
            return op(value, other), None
    except Exception as e:
        failed = e
    return None, failed if error is None else error


cdef tuple given(str collective, comm, Calls calls, value, error, int root, sendable):
    """Stream and buffers of rank 0's outcome on the root (-1: on all ranks); on others, of the pair (None, None)."""
    cdef bint first = calls.frames.rank == 0
    cdef _Parcel made = outcome(value, error, sendable) if first else None
    if root < 0:
        return bcast_parcel(comm, calls_of(comm), made, 0)
    parcels = [pickled((None, None))] * calls.frames.size if first else None
    if first:
        parcels[root] = made
    return in_turn(scatter_streams, collective, comm, calls_of(comm), parcels, 0)


cdef _Parcel outcome(value, error, sendable):
    """The pickled pair of a value and an error, one of which is None; of a value that cannot be pickled, the reason."""
    if error is None:
        try:
            return pickled((value, None))
        except Exception as e:
            error = e
    return pickled((None, sendable(error)))
