# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The interface to C: buffers become pointers, names become codes, and error codes become exceptions."""

from cpython.buffer cimport (
    Py_buffer, PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject, PyObject_TypeCheck, PyTypeObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_INCREF
from libc.errno cimport errno
from libc.stdint cimport SIZE_MAX, int32_t, int64_t, intptr_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset, strerror

import array
import functools
import itertools
import os
import sys
from inspect import signature

cimport cython
from cpython.ref cimport PyObject
cimport numpy as cnp

cnp.import_array()

cdef extern from "Python.h":
    void *PyList_GET_ITEM(list, Py_ssize_t)
    PyObject **PySequence_Fast_ITEMS(object)
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    bint PyObject_CheckBuffer(object)
    object PyMemoryView_FromObject(object)
    object PyWeakref_NewRef(object, void *)
    void PyErr_SetInterrupt()
    int PyGC_Disable()
    int PyGC_Enable()
    int Py_AddPendingCall(int (*)(void *) noexcept, void *) noexcept nogil
    int Py_IsInitialized() noexcept nogil
    object PyCapsule_New(void *, const char *, void *)
    bint PyCapsule_IsValid(object, const char *)
    void *PyCapsule_GetPointer(object, const char *) except NULL

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyDataMemAllocator:
        void *ctx
        void *(*malloc)(void *, size_t) noexcept nogil
        void *(*calloc)(void *, size_t, size_t) noexcept nogil
        void *(*realloc)(void *, void *, size_t) noexcept nogil
        void (*free)(void *, void *, size_t) noexcept nogil
    ctypedef struct PyDataMem_Handler:
        char name[127]
        unsigned char version
        PyDataMemAllocator allocator
    object PyDataMem_SetHandler(object)

cdef extern from "dlfcn.h" nogil:
    void *dlopen(const char *, int)
    void *dlsym(void *, const char *)
    const char *dlerror()
    enum:
        RTLD_NOW
        RTLD_LOCAL

#: Names of the element types and ops; the index in the tuple is the code that the C functions take.
DTYPES = tuple(coll_dtype_name(i).decode() for i in range(coll_ndtypes()))
OPS = tuple(coll_op_name(i).decode() for i in range(coll_nops()))

cdef int FAILED_ISA = coll_isa_select(NULL)
if FAILED_ISA:
    raise ImportError(
        f"COLLECTIVES_ISA={os.environ.get('COLLECTIVES_ISA')!r}: unknown, or this processor does not have it; "
        f"expected one of {', '.join(n for n in ('baseline', 'avx2', 'avx512') if coll_isa_supported(n.encode()))}"
    )


class MismatchError(RuntimeError):
    """Another rank's message, or its part in the node-local engine, is of a different call."""


class GivenUpError(RuntimeError):
    """This rank or another one has given up the call."""


class OpError(RuntimeError):
    """A user-defined op failed on this rank."""


cdef dict ERRORS = {  # exception and message for each error code; "{}" is what was tried
    COLL_ERR_MEMORY: (MemoryError, "{}: out of memory"),
    COLL_ERR_ARGUMENT: (ValueError, "{}: an argument is out of range"),
    COLL_ERR_SCHEDULE: (ValueError, "{}: malformed schedule"),
    COLL_ERR_MESSAGE: (MismatchError, "the ranks' calls differ in collective, length, type, op or root"),
    COLL_ERR_MPI: (RuntimeError, "{}: MPI reported an error"),
    COLL_ERR_OP: (OpError, "{}: the user-defined op failed"),
    COLL_ERR_READ: (RuntimeError, "{}: the system no longer lets this process read another rank's memory"),
    COLL_ERR_GIVEN_UP: (GivenUpError, "{}: a rank has given up this call"),
    COLL_ERR_WITHIN: (RuntimeError, "{}: cannot be waited for in an op, nor in a signal handler that runs during one"),
    COLL_ERR_CALLBACK: (RuntimeError, "{}: the function called at its end failed"),
}


cdef object error(int code, str what):
    """The exception for the C error code ``code``; ``what`` begins its message."""
    kind, text = ERRORS[code]
    return kind(text.format(what))


cdef int check(int code, str what) except -1:
    if code < 0:
        raise error(code, what)
    return code


include "installed.pxi"
include "kernels.pxi"
include "exact_sums.pxi"
include "requests.pxi"
include "schedules.pxi"
include "heap.pxi"
include "followed.pxi"
include "call_sites.pxi"
include "trace.pxi"
include "turn.pxi"
include "node.pxi"
include "point_to_point.pxi"
include "hierarchy.pxi"
include "calls.pxi"
include "operations.pxi"
include "messages.pxi"
include "vectors.pxi"
include "exchanges.pxi"
include "cached_plans.pxi"
include "fast_path.pxi"
include "xla.pxi"
include "frames.pxi"
include "objects.pxi"
include "folded_objects.pxi"
include "simulation.pxi"
