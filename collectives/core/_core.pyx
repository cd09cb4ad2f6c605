# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The interface to C: buffers become pointers, names become codes, and error codes become exceptions."""

from cpython.buffer cimport (
    Py_buffer, PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_INCREF
from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset, strerror

import array
import collections
import os
from inspect import signature

cimport cython
cimport numpy as cnp

cnp.import_array()

cdef extern from "Python.h":
    void *PyList_GET_ITEM(list, Py_ssize_t)
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    bint PyObject_CheckBuffer(object)
    object PyMemoryView_FromObject(object)
    object PyWeakref_NewRef(object, void *)
    int Py_AddPendingCall(int (*)(void *) noexcept, void *) noexcept nogil
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

__all__ = [
    "DTYPES", "OPS", "Endpoint", "Followed", "GivenUpError", "InProcess", "MPILibrary", "MismatchError", "OpError", "Plan", "Task", "Program",
    "address", "broken", "count_signal", "dlpack_type", "ended", "exact_add", "has_kernel", "hold", "isa", "isa_supported", "itemsize", "leave_note",
    "mended", "narrow", "outstanding", "partition", "reduce2", "reducep",
    "scale", "select_isa", "signals", "stop_progress", "survived", "widen", "wider", "write_handle",
]

#: Names of the element types and ops; the index in the tuple is the code that the C functions take.
DTYPES = tuple(coll_dtype_name(i).decode() for i in range(coll_ndtypes()))
OPS = tuple(coll_op_name(i).decode() for i in range(coll_nops()))

cdef int FAILED_ISA = coll_isa_select(NULL)
if FAILED_ISA:
    raise ImportError(
        f"COLLECTIVES_ISA={os.environ.get('COLLECTIVES_ISA')!r}: this processor has none of that name; "
        f"known: {', '.join(n for n in ('baseline', 'avx2', 'avx512') if coll_isa_supported(n.encode()))}"
    )


class MismatchError(RuntimeError):
    """Another rank's message, or its part in the node-local engine, is of a different call."""


class GivenUpError(RuntimeError):
    """This rank or another one has given up the call."""


class OpError(RuntimeError):
    """A user-defined op failed on this rank."""


cdef object error(int code, str what):
    """The exception for the C error code ``code``; ``what`` begins its message."""
    if code == COLL_ERR_MEMORY:
        return MemoryError(f"{what}: out of memory")
    if code == COLL_ERR_MESSAGE:
        return MismatchError("the ranks' calls differ in collective, length, type, op or root")
    if code == COLL_ERR_MPI:
        return RuntimeError(f"{what}: MPI reported an error")
    if code == COLL_ERR_OP:
        return OpError(f"{what}: the user-defined op failed")
    if code == COLL_ERR_READ:
        return RuntimeError(f"{what}: the system does not let this process read another rank's memory (any more)")
    if code == COLL_ERR_GIVEN_UP:
        return GivenUpError(f"{what}: a rank gave it up")
    if code == COLL_ERR_WITHIN:
        return RuntimeError(f"{what}: cannot be waited for in an op, nor by what interrupts one")
    if code == COLL_ERR_SCHEDULE:
        return ValueError(f"{what}: malformed schedule")
    return ValueError(f"{what}: argument out of range")


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
include "calls.pxi"
include "operations.pxi"
include "messages.pxi"
include "vectors.pxi"
include "cached_plans.pxi"
include "fast_path.pxi"
include "frames.pxi"
include "objects.pxi"
