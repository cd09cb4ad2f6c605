# Kernels for devices (csrc/cuda/kernels.h); included by _cuda.pyx.

cdef extern from "cuda/kernels.h" nogil:
    enum:
        COLL_CUDA_SOURCES
        COLL_CUDA_FITS
    struct coll_cuda_args:
        pass
    struct coll_cuda_launch:
        int kernel
        unsigned grid, block
        coll_cuda_args args
    const char *coll_cuda_reason(int)
    int coll_cuda_reducep(coll_cuda_launch *, int, int, void *, const void *const *, int, size_t)
    int coll_cuda_scale(coll_cuda_launch *, int, void *, const void *, int, size_t)
    int coll_cuda_kernels()
    const char *coll_cuda_kernel_name(int)
    int coll_cuda_able(int, int)

#: The most arrays that a kernel folds, and the bytes of what a kernel is given.
SOURCES = COLL_CUDA_SOURCES
ARGUMENTS = sizeof(coll_cuda_args)


cdef class Kernels:
    """The reductions for devices (csrc/cuda/kernels.h), loaded from ``image`` in the current context."""

    cdef CudaDriver own
    cdef uintptr_t module
    cdef uintptr_t *found  # each kernel is looked up once

    def __init__(self, CudaDriver own, bytes image):
        cdef const char *data = PyBytes_AsString(image)
        cdef int code
        self.own = own
        self.found = <uintptr_t *>calloc(coll_cuda_kernels(), sizeof(uintptr_t))
        if self.found == NULL:
            raise MemoryError
        with nogil:
            code = own.table.module_load(&self.module, data)
        own.check(code, "cuModuleLoadData")

    def __dealloc__(self):
        free(self.found)

    def fold(self, int dtype, int op, coll_cu_address target, list sources, size_t n, uintptr_t stream):
        """target[i] = sources[0][i] op sources[1][i] op ..., folded from the left, in the order of ``stream``.

        ``dtype`` and ``op`` are the kernels' codes. ValueError if no kernel can do it.
        """
        cdef coll_cuda_launch launch
        cdef const void *given[COLL_CUDA_SOURCES]
        cdef int p = len(sources), i
        for i in range(min(p, COLL_CUDA_SOURCES)):
            given[i] = <const void *><uintptr_t>sources[i]
        self.start(coll_cuda_reducep(&launch, dtype, op, <void *><uintptr_t>target, given, p, n), &launch, stream)

    def scale(self, int dtype, coll_cu_address array, int divisor, size_t n, uintptr_t stream):
        """array[i] = array[i] / divisor, in the order of ``stream``; ValueError if no kernel can do it."""
        cdef coll_cuda_launch launch
        cdef void *there = <void *><uintptr_t>array
        self.start(coll_cuda_scale(&launch, dtype, there, there, divisor, n), &launch, stream)

    cdef int start(self, int refusal, coll_cuda_launch *launch, uintptr_t stream) except -1:
        cdef void *parameters[1]
        cdef uintptr_t kernel
        cdef int code
        if refusal != COLL_CUDA_FITS:
            raise ValueError((<bytes>coll_cuda_reason(refusal)).decode())
        if launch.grid == 0:
            return 0
        kernel = self.kernel(launch.kernel)
        parameters[0] = &launch.args
        with nogil:
            code = self.own.table.launch(kernel, launch.grid, 1, 1, launch.block, 1, 1, 0, stream, parameters, NULL)
        return self.own.check(code, "cuLaunchKernel")

    cdef uintptr_t kernel(self, int number) except 0:
        cdef const char *name = coll_cuda_kernel_name(number)
        if not self.found[number]:
            self.own.check(self.own.table.module_kernel(&self.found[number], self.module, name), "cuModuleGetFunction")
        return self.found[number]

    def free(self):
        """Unload the kernels, once none is under way."""
        self.own.check(self.own.table.module_unload(self.module), "cuModuleUnload")


def kernel_names():
    """The names of all kernels."""
    return [(<bytes>coll_cuda_kernel_name(i)).decode() for i in range(coll_cuda_kernels())]


def no_kernel(int dtype, int op):
    """Why no kernel applies an op to a type, or None; both are the kernels' codes."""
    cdef int refusal = coll_cuda_able(dtype, op)
    return None if refusal == COLL_CUDA_FITS else (<bytes>coll_cuda_reason(refusal)).decode()
