# Python objects of higher layers that are passed to compiled code once; included by _core.pyx.

cdef object DESCRIBE = None      # makes a Call of collective, algorithm, elements, codes of type and op, and root
cdef object REQUEST = None       # the class of requests of non-blocking calls
cdef object MPI = None           # the module mpi4py.MPI, which has the serializer
cdef object IN_PLACE = None      # MPI.IN_PLACE
cdef object CHECKED_ROOT = None  # converts a root to an int, or raises an error

cdef int[256] DTYPE_OF_NUMPY     # kernels' code of the element type by NumPy's type number, or -1
cdef int[256] DTYPE_OF_FORMAT    # the same code by Python's format letter, or -1
cdef list OP_OBJECTS = []        # mpi4py's predefined ops, most used first, and their codes
cdef list OP_CODES = []
cdef list DATATYPE_OBJECTS = []  # mpi4py's predefined datatypes, and the kernels' code of each
cdef list DATATYPE_CODES = []


def install(describe):
    """Set the function that makes a Call of collective, algorithm, elements, codes of type and op, and root."""
    global DESCRIBE
    DESCRIBE = describe


def install_mpi(mpi, request, checked_root, ops, dtypes, datatypes):
    """Set what calls with mpi4py's arguments need: mpi4py's module, the class of requests, the function that checks a
    root, lists of ops and of datatypes as (object, code), and of NumPy's types as (number, letter, code)."""
    global MPI, REQUEST, CHECKED_ROOT, IN_PLACE
    cdef int i
    MPI, REQUEST, CHECKED_ROOT, IN_PLACE = mpi, request, checked_root, mpi.IN_PLACE
    for i in range(256):
        DTYPE_OF_NUMPY[i] = DTYPE_OF_FORMAT[i] = -1
    for number, letter, code in dtypes:
        DTYPE_OF_NUMPY[<int>number] = code
        DTYPE_OF_FORMAT[<int>ord(letter)] = code
    OP_OBJECTS[:], OP_CODES[:] = zip(*ops)
    DATATYPE_OBJECTS[:], DATATYPE_CODES[:] = zip(*datatypes)
