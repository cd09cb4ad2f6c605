# Python objects of higher layers that are passed to compiled code once; included by _core.pyx.

cdef object DESCRIBE = None      # makes a Call of collective, algorithm, elements, codes of type and op, and root
cdef type REQUEST = None         # the class of requests of non-blocking calls
cdef object MPI = None           # the module mpi4py.MPI, which has the serializer
cdef object IN_PLACE = None      # MPI.IN_PLACE
cdef object BYTE = None          # MPI.BYTE
cdef object EXCHANGE = None      # the class of what calls with objects need of their communicator
cdef object CHECKED_ROOT = None  # converts a root to an int, or raises an error

cdef int[256] DTYPE_OF_NUMPY     # kernels' code of the element type by NumPy's type number, or -1
cdef int[256] DTYPE_OF_FORMAT    # the same code by Python's format letter, or -1
cdef list OP_OBJECTS = []        # mpi4py's predefined ops, most used first, and their codes
cdef list OP_CODES = []
cdef list DATATYPE_OBJECTS = []  # mpi4py's predefined datatypes, and the kernels' code of each
cdef list DATATYPE_CODES = []


# Where objects of Python classes have what compiled code reads and writes, in bytes from their beginning.
cdef type COMMUNICATOR = None    # the class of communicators
cdef Py_ssize_t CONTEXT_AT = 0
cdef type MPI_REQUEST = None     # mpi4py's class of requests, from which REQUEST derives
cdef tuple NO_ARGUMENTS = ()
cdef Py_ssize_t OPERATION_AT = 0, HANDLE_AT = 0, HANDLE_BYTES = 0


cdef extern from *:
    """
    #include <structmember.h>
    static Py_ssize_t offset_of_slot(PyObject *slot) {
        return Py_IS_TYPE(slot, &PyMemberDescr_Type) ? ((PyMemberDescrObject *)slot)->d_member->offset : 0;
    }
    """
    Py_ssize_t offset_of_slot(object slot)


def install(describe):
    """Set the function that makes a Call of collective, algorithm, elements, codes of type and op, and root."""
    global DESCRIBE
    DESCRIBE = describe


def install_objects(exchange):
    """Set the class of what calls with objects need: :class:`collectives.core.interfaces.Exchange` of a communicator."""
    global EXCHANGE
    EXCHANGE = exchange


def install_mpi(mpi, request, checked_root, ops, dtypes, datatypes):
    """Set what calls with mpi4py's arguments need: mpi4py's module, the class of requests, the function that checks a
    root, lists of ops and of datatypes as (object, code), and of NumPy's types as (number, letter, code)."""
    global MPI, REQUEST, CHECKED_ROOT, IN_PLACE, BYTE, MPI_REQUEST, OPERATION_AT, HANDLE_AT, HANDLE_BYTES
    cdef int i
    MPI, REQUEST, CHECKED_ROOT, IN_PLACE, BYTE = mpi, request, checked_root, mpi.IN_PLACE, mpi.BYTE
    for i in range(256):
        DTYPE_OF_NUMPY[i] = DTYPE_OF_FORMAT[i] = -1
    for number, letter, code in dtypes:
        DTYPE_OF_NUMPY[<int>number] = code
        DTYPE_OF_FORMAT[<int>ord(letter)] = code
    MPI_REQUEST, OPERATION_AT = mpi.Request, offset_of_slot(request.__dict__["_operation"])
    sample = request()
    HANDLE_AT, HANDLE_BYTES = mpi._addressof(sample) - id(sample), mpi._sizeof(sample)
    OP_OBJECTS[:], OP_CODES[:] = zip(*ops)
    DATATYPE_OBJECTS[:], DATATYPE_CODES[:] = zip(*datatypes)


def install_communicator(type communicator):
    """Set the class of communicators, which has a slot ``_context``."""
    global COMMUNICATOR, CONTEXT_AT
    COMMUNICATOR, CONTEXT_AT = communicator, offset_of_slot(communicator.__dict__["_context"])


cdef inline object context_of(object comm):
    """``comm._context``; read from the slot, since a look-up of the attribute costs more than parsing the arguments.

    TypeError for anything but a communicator of this library; ``isinstance`` would believe what a proxy says.
    """
    cdef PyObject *context
    if not PyObject_TypeCheck(comm, <PyTypeObject *>COMMUNICATOR):
        raise TypeError(f"self: expected a collectives.Communicator, not {type(comm).__name__}")
    if not CONTEXT_AT:
        return comm._context
    context = (<PyObject **>(<char *><void *>comm + CONTEXT_AT))[0]
    return None if context == NULL else <object>context
