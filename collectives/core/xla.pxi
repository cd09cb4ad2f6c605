# The calls that programs compiled by XLA make, for collectives.jax (csrc/xla/handler.h); included by _core.pyx.

cdef list SITES = []  # every Site; XLA's programs name them by their numbers
cdef object XLA_FAILURE = None  # the exception of the last call of XLA's that failed


cdef class Site:
    """A call in programs of XLA: all that is known of it before it runs. It has a ``number``, and stays for ever.

    ``function`` names the call in errors. ``slow(source, target)`` runs it on memory at two addresses, 0 where there is
    no operand or no result, if the fast path cannot. ``inputs`` and ``outputs`` are the numbers of their elements, -1
    if there are none. With ``collective`` the fast path serves the call on ``comm``, with the parameters of
    :func:`run_memory`.
    """

    cdef readonly int number
    cdef str function
    cdef object comm, slow
    cdef int64_t inputs, outputs
    cdef int kind, dtype, op, root
    cdef size_t count

    def __init__(self, str function, comm, slow, int64_t inputs, int64_t outputs, str collective=None, size_t count=0,
                 int dtype=-1, int op=-1, int root=0):
        self.function, self.comm, self.slow, self.inputs, self.outputs = function, comm, slow, inputs, outputs
        self.kind = -1 if collective is None else kind_of(collective)
        self.count, self.dtype, self.op, self.root = count, dtype, op, root
        self.number = len(SITES)
        SITES.append(self)

    cdef int serve(self, const coll_xla_call *call) except -1:
        if call.inputs != self.inputs or call.outputs != self.outputs:
            raise ValueError("the program was compiled for other shapes")
        if self.kind < 0 or not self.at_once(call):
            self.slow(<uintptr_t>call.input, <uintptr_t>call.output)
        return 0

    cdef bint at_once(self, const coll_xla_call *call) except -1:
        """Run the call on the fast path; False, with nothing done, if that cannot serve it."""
        cdef coll_node_message message
        cdef uint64_t begun = coll_ticks()
        cdef uintptr_t source = <uintptr_t>call.input, target = <uintptr_t>call.output
        context = context_of(self.comm)
        if context is None:
            return False
        cdef Calls calls = <Calls>context
        if self.kind == BARRIER:
            source = target = <uintptr_t>&calls.byte
        elif self.kind == COLL_NODE_BCAST:  # the root's operand is its result
            source = target = source or target
        if not fill_memory(&message, calls, self.kind, source, target, self.count, self.dtype, self.op, self.root):
            return False
        return run_message(calls, &message, self.kind, None, None, None, begun)


cdef int serve_xla(const coll_xla_call *call, char **message) noexcept with gil:
    """Serve a call of XLA's, in whichever thread; returns 1, or 0 with a message for malloc's ``free``."""
    global XLA_FAILURE
    cdef Site site = None
    try:
        if not 0 <= call.site < len(SITES):
            raise ValueError("the program was compiled in another process")
        site = <Site>SITES[call.site]
        site.serve(call)
        return 1
    except BaseException as e:
        XLA_FAILURE = e
        message[0] = copied(f"collectives.jax{'' if site is None else '.' + site.function}: {type(e).__name__}: {e}")
        if isinstance(e, KeyboardInterrupt):
            PyErr_SetInterrupt()  # for the program, which else sees XLA's error only
    return 0


cdef char *copied(str text) noexcept:
    """The text in memory of malloc's; NULL if there is none."""
    cdef bytes data = text.encode(errors="replace")
    cdef char *copy = <char *>malloc(len(data) + 1)
    if copy != NULL:
        memcpy(copy, <const char *>data, len(data) + 1)
    return copy


def xla_handler():
    """A capsule with the function that XLA calls; calls are served from now on."""
    coll_xla_install(serve_xla)
    return PyCapsule_New(<void *>coll_xla_handler, NULL, NULL)


def xla_failure():
    """The exception of the last call of XLA's that failed; None if none has failed."""
    return XLA_FAILURE
