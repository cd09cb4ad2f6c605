# Wider types for partial sums: exact accumulators (csrc/kernels/exact.h) for float32 and float64, float32 for float16
# and bfloat16; included by _core.pyx.

cdef int FLOAT32 = DTYPES.index("float32")


def wider(int dtype):
    """Code of the wider type for partial sums of ``dtype``; TypeError if there is none."""
    cdef int found = FLOAT32 if coll_widen(dtype) != NULL else coll_exact_of(dtype)
    if found < 0:
        raise TypeError(f"dtype: {DTYPES[dtype]} has no wider type")
    return found


cdef size_t _pairs(int dtype, _View wide, _View narrow) except? 0:
    """Number of elements in each of two buffers; ValueError if the numbers differ."""
    cdef size_t n = <size_t>wide.view.len // coll_dtype_size(wider(dtype))
    if <size_t>narrow.view.len != n * coll_dtype_size(dtype):
        raise ValueError("wide, narrow: the buffers have different numbers of elements")
    return n


def widen(int dtype, wide, narrow):
    """Convert the elements in ``narrow``, of type ``dtype``, to their wider type in ``wide``; contiguous buffers."""
    cdef _View w = _View(wide, True), x = _View(narrow, False)
    cdef size_t n = _pairs(dtype, w, x)
    cdef coll_widen_fn fn = coll_widen(dtype)
    with nogil:
        if fn != NULL:
            fn(<float *>w.view.buf, x.view.buf, n)
        else:
            memset(w.view.buf, 0, w.view.len)
            coll_exact_add(dtype, w.view.buf, x.view.buf, 1, n)


def narrow(int dtype, narrow, wide):
    """Round the elements in ``wide`` to ``narrow``, of type ``dtype``; contiguous buffers."""
    cdef _View x = _View(narrow, True), w = _View(wide, False)
    cdef size_t n = _pairs(dtype, w, x)
    cdef coll_narrow_fn fn = coll_narrow(dtype)
    with nogil:
        if fn != NULL:
            fn(x.view.buf, <const float *>w.view.buf, n)
        else:
            coll_exact_round(dtype, x.view.buf, w.view.buf, n)


def exact_add(int dtype, accumulators, terms):
    """Add ``terms``, of type ``dtype``, to ``accumulators``: each gets the same number of consecutive terms.

    Both are contiguous buffers. TypeError for a type without exact sums; ValueError for lengths that do not fit.
    """
    cdef _View a = _View(accumulators, True), x = _View(terms, False)
    cdef size_t n = <size_t>a.view.len // coll_dtype_size(wider(dtype)), size = coll_dtype_size(dtype)
    cdef size_t each = <size_t>x.view.len // size // n if n else 0
    if coll_exact_of(dtype) < 0:
        raise TypeError(f"exact sums are of float32 or float64, not {DTYPES[dtype]}")
    if <size_t>x.view.len != n * each * size:
        raise ValueError("terms: their number is not a multiple of that of the accumulators")
    with nogil:
        coll_exact_add(dtype, a.view.buf, x.view.buf, each, n)
