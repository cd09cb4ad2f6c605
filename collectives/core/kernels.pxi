# The kernels and their tables of types, ops and instruction sets; included by _core.pyx.

def isa():
    """Name of the instruction set that the kernels use."""
    return coll_isa().decode()


def isa_supported(str name):
    """Whether this processor has the instruction set ``name``, and there are kernels for it."""
    return bool(coll_isa_supported(name.encode()))


def select_isa(str name):
    """Let the kernels use the instruction set ``name`` from now on; ValueError if this processor lacks it."""
    if coll_isa_select(name.encode()):
        raise ValueError(f"name: {name!r} is unknown, or this processor does not have it")


def partition(size_t n, size_t parts):
    """First element of each of ``parts`` balanced parts of ``n`` elements, and ``n``: ``parts + 1`` ints."""
    if parts == 0:
        raise ValueError("parts: expected at least 1, not 0")
    return [coll_part(n, parts, i) for i in range(parts + 1)]


def itemsize(int dtype):
    """Bytes of one element of the type with code ``dtype``."""
    return coll_dtype_size(dtype)


def address(array):
    """Address of the first element of a NumPy array, as an int; twenty times faster than ``array.ctypes.data``."""
    return <uintptr_t>cnp.PyArray_DATA(<cnp.ndarray?>array)


def dlpack_type(capsule):
    """Type code, bits and lanes of the elements of a DLPack capsule, and the number of its device type."""
    cdef const unsigned char *tensor
    if PyCapsule_IsValid(capsule, b"dltensor_versioned"):  # version, context, deleter and flags come first
        tensor = <const unsigned char *>PyCapsule_GetPointer(capsule, b"dltensor_versioned") + 32
    else:
        tensor = <const unsigned char *>PyCapsule_GetPointer(capsule, b"dltensor")
    cdef int device = (<const int *>tensor)[2]  # type of the device: after the address, before the device's number
    return tensor[20], tensor[21], tensor[22] + 256 * tensor[23], device


def has_kernel(int dtype, int op):
    """Whether there is a kernel for the op with code ``op`` on the type with code ``dtype``."""
    return coll_reducep(dtype, op) != NULL


cdef class _View:
    """A contiguous buffer of ``obj``, held as long as this object lives."""

    cdef Py_buffer view

    def __cinit__(self, obj, bint writable):
        PyObject_GetBuffer(obj, &self.view, PyBUF_SIMPLE | (PyBUF_WRITABLE if writable else 0))

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef coll_reduce2_fn _reduce2(int dtype, int op) except NULL:
    cdef coll_reduce2_fn fn = coll_reduce2(dtype, op)
    if fn == NULL:
        raise TypeError(f"op: {OPS[op]} does not apply to {DTYPES[dtype]}")
    return fn


def reduce2(int dtype, int op, dst, left, right):
    """``dst[i] = left[i] op right[i]`` on contiguous buffers of one length; TypeError if there is no kernel."""
    cdef _View d = _View(dst, True), a = _View(left, False), b = _View(right, False)
    if d.view.len != a.view.len or d.view.len != b.view.len:
        raise ValueError("the buffers have different lengths")
    cdef coll_reduce2_fn fn = _reduce2(dtype, op)
    cdef size_t n = <size_t>d.view.len // coll_dtype_size(dtype)
    with nogil:
        fn(d.view.buf, a.view.buf, b.view.buf, n)


def reducep(int dtype, int op, list targets, list sources):
    """Set each of ``targets`` to ``sources[0] op sources[1] op ...``, folded from the left.

    All are contiguous buffers of one length, else ValueError; TypeError if there is no kernel.
    """
    cdef coll_reducep_fn fn = coll_reducep(dtype, op)
    if fn == NULL:
        raise TypeError(f"op: {OPS[op]} does not apply to {DTYPES[dtype]}")
    cdef list dst = [_View(t, True) for t in targets], src = [_View(s, False) for s in sources]
    cdef int p = len(src), q = len(dst), i
    if p < 1 or q < 1 or len({(<_View>v).view.len for v in dst + src}) != 1:
        raise ValueError("targets, sources: expected at least one of each, all of one length")
    cdef size_t n = <size_t>(<_View>src[0]).view.len // coll_dtype_size(dtype)
    cdef void **pointers = <void **>PyMem_Malloc((p + q) * sizeof(void *))
    if pointers == NULL:
        raise MemoryError
    for i in range(p + q):
        pointers[i] = (<_View>(src[i] if i < p else dst[i - p])).view.buf
    with nogil:
        fn(pointers + p, q, <const void **>pointers, p, n)
    PyMem_Free(pointers)


def scale(int dtype, dst, src, int p):
    """``dst[i] = src[i] / p`` on contiguous buffers of one length; TypeError if there is no kernel."""
    cdef _View d = _View(dst, True), s = _View(src, False)
    cdef coll_scale_fn fn = coll_scale(dtype)
    if fn == NULL:
        raise TypeError(f"op: avg does not apply to {DTYPES[dtype]}")
    if d.view.len != s.view.len:
        raise ValueError("the buffers have different lengths")
    with nogil:
        fn(d.view.buf, s.view.buf, p, <size_t>d.view.len // coll_dtype_size(dtype))
