# What lies above compiled code and is handed to it once; included by _core.pyx.

cdef object DESCRIBE = None      # makes a Call of collective, algorithm, elements, codes of type and op, and root
cdef object REQUEST = None       # the class of requests of non-blocking calls
cdef object MPI = None           # mpi4py's module, which has the serializer
cdef object IN_PLACE = None      # mpi4py's
cdef object CHECKED_ROOT = None  # a root as an int, or an error

cdef int[256] DTYPE_OF_NUMPY     # kernels' code of each built-in NumPy type, or -1
cdef int[256] DTYPE_OF_FORMAT    # and of each of Python's codes of one letter
cdef list OP_OBJECTS = []        # mpi4py's predefined ops, most used first, and their codes
cdef list OP_CODES = []
cdef list DATATYPE_OBJECTS = []  # mpi4py's predefined datatypes, and the kernels' code of each
cdef list DATATYPE_CODES = []


def install(describe):
    """Take the function that makes a Call of collective, algorithm, elements, codes of type and op, and root."""
    global DESCRIBE
    DESCRIBE = describe


def install_mpi(mpi, request, checked_root, ops, dtypes, datatypes):
    """Take what calls with mpi4py's arguments need: its module, the class of requests, and the function that checks a
    root; ops and datatypes (object, code), and NumPy's types (number, letter, code)."""
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
