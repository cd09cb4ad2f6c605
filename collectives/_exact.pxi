# Accumulators of exact sums (csrc/kernels/exact.h); included by _core.pyx.


def exact_of(int dtype):
    """The type of the accumulators for float32 or float64; TypeError for others."""
    cdef int found = coll_exact_of(dtype)
    if found < 0:
        raise TypeError(f"no exact sums of {DTYPES[dtype]}")
    return found


def exact_add(int dtype, accumulators, terms):
    """Add terms to accumulators, equally many to each, in order; contiguous buffers of bytes."""
    cdef _View a = _View(accumulators, True), x = _View(terms, False)
    cdef size_t n = <size_t>a.view.len // coll_dtype_size(exact_of(dtype)), size = coll_dtype_size(dtype)
    cdef size_t each = <size_t>x.view.len // size // n if n else 0
    if <size_t>x.view.len != n * each * size:
        raise ValueError("the terms cannot be divided among the accumulators")
    with nogil:
        coll_exact_add(dtype, a.view.buf, x.view.buf, each, n)


def exact_round(int dtype, dst, accumulators):
    """The sums, rounded to the type of the terms; contiguous buffers of bytes."""
    cdef _View d = _View(dst, True), a = _View(accumulators, False)
    cdef size_t n = <size_t>a.view.len // coll_dtype_size(exact_of(dtype))
    if <size_t>d.view.len != n * coll_dtype_size(dtype):
        raise ValueError("buffers of different lengths")
    with nogil:
        coll_exact_round(dtype, d.view.buf, a.view.buf, n)
