# Plans for repeated calls, between hosts or by a schedule that was asked for. The first call with a key leaves its
# choice and a plan here; later calls with that key run without a Python frame. Included by _core.pyx.

cdef enum:
    KEPT = 65536            # most bytes of a plan that a CachedPlan keeps for itself
    KEPT_IN_ALL = 4 << 20   # most bytes of all these plans of one communicator
    MOST_IDLE = 64          # most plans of one CachedPlan: so many calls with its key may be under way at once

    MOST_CACHED = 1000  # most keys of one communicator
    MOST_RANKS = 256  # most ranks whose counts may be part of a key, for the memory that they take


@cython.final
cdef class Kept:
    """Bytes of the plans that the CachedPlans of one communicator keep for themselves."""

    cdef size_t nbytes


@cython.final
cdef class CachedPlan:
    """What the calls with one key have in common, and idle plans for the next of them.

    ``key`` is their choice, shape and group of the node-local engine, ``kind`` a number made from choice and shape,
    ``describe()`` makes a Call. ``repeated``, if it is not None, has the MPI library serve blocking calls in Python.
    """

    cdef readonly object key
    cdef str collective, algorithm
    cdef size_t nbytes
    cdef uint32_t kind
    cdef object describe, repeated
    cdef Kept among
    cdef list idle

    def __cinit__(self, key, uint32_t kind, describe, repeated=None):
        self.key, self.kind, self.describe, self.repeated, self.idle = key, kind, describe, repeated, []
        choice, shape, _ = key
        self.collective, self.algorithm, self.nbytes = shape.name, choice.algorithm.name, shape.nbytes

    cdef Task take(self):
        """Take a plan that is kept here; None if all are in use."""
        cdef Task plan = None
        if self.idle:
            plan = self.idle.pop()
            self.among.nbytes -= plan.footprint
        return plan

    cdef bint put(self, Task plan) except -1:
        """Keep ``plan``, which is idle now, for a call with this key; False if there is no room."""
        cdef size_t nbytes = plan.footprint
        if len(self.idle) >= MOST_IDLE or nbytes > KEPT or self.among.nbytes + nbytes > KEPT_IN_ALL:
            return False
        self.idle.append(plan)
        self.among.nbytes += nbytes
        return True


cdef Operation begin_cached(Calls calls, CachedPlan found, coll_node_message *m, owners):
    """An operation for a call with a known key, on a kept plan or, if all are in use, on another one."""
    cdef Operation made = Operation.__new__(Operation)
    made.context, made.cached, made.plan, made.buffers = calls, found, found.take(), owners
    if made.plan is None:
        made.plan = calls.plan_for(found)
    made.input, made.vector = m.input, m.output
    return made


cdef int run_cached(Calls calls, CachedPlan found, coll_node_message *m, owners, timeout, uint64_t begun) except -1:
    """Run a blocking call with a known key."""
    cdef int depth = calls.turn.now.depth
    cdef Operation made = None
    if len(PENDING):
        sweep()
    if is_free(&calls.turn.now):
        begin_turn(&calls.turn.now)
    else:  # another thread has taken the turn
        calls.take_turn()
    try:
        made = begin_cached(calls, found, m, owners)
        calls.progressing = made
        wait_briefly(calls, made, found, timeout)
    except BaseException as e:
        if made is not None:
            calls.interrupted(made, e)
        raise
    finally:
        calls.progressing = None
        if calls.turn.now.depth > depth:
            end_turn(&calls.turn.now)
    made.release()
    note_ended(calls, found.collective, found.algorithm, found.nbytes, m.root, begun)
    return 0


cdef int wait_briefly(Calls calls, Operation made, CachedPlan found, timeout) except -1:
    """Start an operation and wait for a slice of 20 ms; ``calls.finish`` waits on, or raises the error."""
    cdef coll_task task = made.plan.task
    cdef long limit = PATIENCE
    cdef bint yields = calls.yield_at_once
    cdef int status
    if timeout is not None:
        made.timeout = timeout
    else:
        timeout = calls.timeout
    if timeout is not None:
        limit = <long>min(<double>PATIENCE, <double>timeout * 1e9)
    made.begin = coll_ticks()
    made.tag = calls.count(found.kind, found.describe)
    made.take_number()
    made.plan.begin(made.input, made.vector, made.tag)
    with nogil:
        status = coll_progress_wait(&task, NULL, yields, limit)
    if status != COLL_OK or some_gave_up(calls):
        calls.finish(made, timeout, None if status >= 0 else error(status, "collective"))
    return 0


cdef Operation start_cached(Calls calls, CachedPlan found, coll_node_message *m, owners, holder, uint64_t begun,
                            bint visible):
    """Start a non-blocking call with a known key; ``visible``: it gets an MPI request."""
    cdef Operation made = begin_cached(calls, found, m, owners)
    made.holder = holder
    if visible:
        made.request.mpi = calls.attribute.api
    try:
        made.tag = calls.count(found.kind, found.describe)
        made.launch()
        if some_gave_up(calls):
            calls.look_for_quitters(made)
    except BaseException as e:
        calls.fail(made, e)
    note_started(calls, made, found.collective, found.algorithm, found.nbytes, begun)
    return made


cdef tuple key_of(Calls calls, const coll_node_message *m, int kind, bint starts, bint in_place, _Asked asked):
    """The key of a call: all that its choice, shape and plan depend on; the addresses are not in it."""
    cdef Py_ssize_t table = (calls.member.size + 1) * sizeof(size_t)
    cuts = None
    if m.cuts != NULL:
        cuts = PyBytes_FromStringAndSize(<char *>m.cuts, table)
        if m.input_cuts != NULL:
            cuts += PyBytes_FromStringAndSize(<char *>m.input_cuts, table)
        if m.starts != NULL:  # and input_starts
            cuts += PyBytes_FromStringAndSize(<char *>m.starts, table) + PyBytes_FromStringAndSize(<char *>m.input_starts, table)
    deterministic = calls.deterministic if asked.deterministic is None else asked.deterministic
    return (kind | starts << 8 | in_place << 16, m.count, m.itemsize, m.dtype, m.op, m.type, m.root, cuts, asked.algorithm,
            deterministic)


cdef CachedPlan known(Calls calls, const coll_node_message *m, int kind, bint starts, bint in_place, _Asked asked):
    """The cached plan for a call, or None. A call like the last one needs no key."""
    if calls.cached is None:
        return None
    cdef const coll_node_message *last = &calls.last_message
    cdef bint plain = asked is NOTHING_ASKED and m.cuts == NULL
    cdef int number = kind | starts << 8 | in_place << 16 | calls.deterministic << 24
    if plain and calls.last_cached is not None and number == calls.last_kind and m.count == last.count and (
            m.itemsize == last.itemsize and m.dtype == last.dtype and m.op == last.op and m.type == last.type and
            m.root == last.root):
        return calls.last_cached
    cdef CachedPlan found = calls.cached.get(key_of(calls, m, kind, starts, in_place, asked))
    if plain and found is not None:
        calls.last_cached, calls.last_message, calls.last_kind = found, m[0], number
    return found
