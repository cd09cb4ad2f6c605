# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""NVIDIA's driver (csrc/cuda/driver.h): contexts, streams, events, copies, memory of other processes, and kernels. A
module of its own, which is imported at the first array on a GPU."""

from cpython.bytes cimport PyBytes_AsString
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free  # for cuda_kernels.pxi
from libc.string cimport memcpy

cdef extern from "cuda/driver.h" nogil:
    ctypedef uint64_t coll_cu_address
    enum:
        COLL_CUDA_NOT_READY
        COLL_CUDA_OUT_OF_MEMORY
        COLL_CUDA_BUFFER_ID
        COLL_CUDA_ORDINAL
        COLL_CUDA_NON_BLOCKING
        COLL_CUDA_NO_TIMING
        COLL_CUDA_INTERPROCESS
        COLL_CUDA_PORTABLE
        COLL_CUDA_LAZY_PEERS
    ctypedef struct coll_cu_ipc:
        char bytes[64]
    ctypedef struct coll_cuda:
        int (*version)(int *) noexcept nogil
        int (*device_count)(int *) noexcept nogil
        int (*device)(int *, int) noexcept nogil
        int (*device_name)(char *, int, int) noexcept nogil
        int (*retain)(uintptr_t *, int) noexcept nogil
        int (*release)(int) noexcept nogil
        int (*push)(uintptr_t) noexcept nogil
        int (*pop)(uintptr_t *) noexcept nogil
        int (*attribute)(void *, int, coll_cu_address) noexcept nogil
        int (*pin)(void *, size_t, unsigned) noexcept nogil
        int (*unpin)(void *) noexcept nogil
        int (*to_host)(void *, coll_cu_address, size_t, uintptr_t) noexcept nogil
        int (*to_device)(coll_cu_address, const void *, size_t, uintptr_t) noexcept nogil
        int (*copy)(coll_cu_address, coll_cu_address, size_t, uintptr_t) noexcept nogil
        int (*memory_new)(coll_cu_address *, size_t) noexcept nogil
        int (*memory_free)(coll_cu_address) noexcept nogil
        int (*range)(coll_cu_address *, size_t *, coll_cu_address) noexcept nogil
        int (*memory_export)(coll_cu_ipc *, coll_cu_address) noexcept nogil
        int (*memory_open)(coll_cu_address *, coll_cu_ipc, unsigned) noexcept nogil
        int (*memory_close)(coll_cu_address) noexcept nogil
        int (*stream_new)(uintptr_t *, unsigned) noexcept nogil
        int (*stream_free)(uintptr_t) noexcept nogil
        int (*stream_wait)(uintptr_t, uintptr_t, unsigned) noexcept nogil
        int (*stream_end)(uintptr_t) noexcept nogil
        int (*stream_capturing)(uintptr_t, int *) noexcept nogil
        int (*event_new)(uintptr_t *, unsigned) noexcept nogil
        int (*event_free)(uintptr_t) noexcept nogil
        int (*event_record)(uintptr_t, uintptr_t) noexcept nogil
        int (*event_query)(uintptr_t) noexcept nogil
        int (*event_export)(coll_cu_ipc *, uintptr_t) noexcept nogil
        int (*event_open)(uintptr_t *, coll_cu_ipc) noexcept nogil
        int (*module_load)(uintptr_t *, const void *) noexcept nogil
        int (*module_unload)(uintptr_t) noexcept nogil
        int (*module_kernel)(uintptr_t *, uintptr_t, const char *) noexcept nogil
        int (*launch)(
            uintptr_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, uintptr_t, void **, void **
        ) noexcept nogil
        int (*error_name)(int, const char **) noexcept nogil
        int (*error_text)(int, const char **) noexcept nogil
    int coll_cuda_open(coll_cuda *, const char *, char *, size_t)


class CudaError(RuntimeError):
    """A function of NVIDIA's driver failed; ``code`` is the driver's."""

    def __init__(self, str message, int code):
        super().__init__(message)
        self.code = code


cdef class CudaDriver:
    """The functions of NVIDIA's driver in ``library``; OSError with the reason if it cannot be used.

    Streams and events are integers. Streams, events, pinned memory and copies belong to the context that is current in
    the calling thread. Each method raises CudaError, or MemoryError, if the driver reports an error.
    """

    cdef coll_cuda table
    cdef readonly str library

    def __init__(self, str library):
        cdef char why[256]
        cdef bytes name = library.encode()
        cdef const char *path = name
        cdef int code
        with nogil:
            code = coll_cuda_open(&self.table, path, why, sizeof(why))
        if code:
            raise OSError(why.decode(errors="replace"))
        self.library = library

    cdef int check(self, int code, str what) except -1:
        cdef const char *name = NULL
        cdef const char *text = NULL
        if code == 0:
            return 0
        self.table.error_name(code, &name)
        self.table.error_text(code, &text)
        told = f"{what}: {(name or b'unknown error').decode()} ({code}: {(text or b'unknown').decode()})"
        if code == COLL_CUDA_OUT_OF_MEMORY:
            raise MemoryError(told)
        raise CudaError(told, code)

    def version(self):
        """The CUDA version that the driver serves, (major, minor)."""
        cdef int version = 0
        self.check(self.table.version(&version), "cuDriverGetVersion")
        return version // 1000, version % 1000 // 10

    def devices(self):
        """The names of the devices that the process may use."""
        cdef int count = 0, device = 0, i
        cdef char name[256]
        self.check(self.table.device_count(&count), "cuDeviceGetCount")
        found = []
        for i in range(count):
            self.check(self.table.device(&device, i), "cuDeviceGet")
            self.check(self.table.device_name(name, sizeof(name), device), "cuDeviceGetName")
            found.append((<bytes>name).decode(errors="replace"))
        return found

    def retain(self, int number):
        """The primary context of the device with this number, which must be released once."""
        cdef uintptr_t context = 0
        cdef int device = 0, code
        self.check(self.table.device(&device, number), "cuDeviceGet")
        with nogil:
            code = self.table.retain(&context, device)
        self.check(code, "cuDevicePrimaryCtxRetain")
        return context

    def release(self, int number):
        """Give up one reference to the primary context of a device."""
        cdef int device = 0
        self.check(self.table.device(&device, number), "cuDeviceGet")
        self.check(self.table.release(device), "cuDevicePrimaryCtxRelease")

    def push(self, uintptr_t context):
        """Make a context the current one of this thread."""
        self.check(self.table.push(context), "cuCtxPushCurrent")

    def pop(self):
        """Make the context current that was so before :meth:`push`."""
        cdef uintptr_t context = 0
        self.check(self.table.pop(&context), "cuCtxPopCurrent")

    def ordinal(self, coll_cu_address address):
        """The number of the device whose memory is at ``address``; CudaError if it is no memory of the driver's."""
        cdef int number = 0
        self.check(self.table.attribute(&number, COLL_CUDA_ORDINAL, address), "cuPointerGetAttribute")
        return number

    def allocate(self, size_t nbytes):
        """New memory of the device."""
        cdef coll_cu_address address = 0
        cdef int code
        with nogil:
            code = self.table.memory_new(&address, nbytes)
        self.check(code, "cuMemAlloc")
        return address

    def free(self, coll_cu_address address):
        """Free memory of :meth:`allocate`; this may wait for the device."""
        cdef int code
        with nogil:
            code = self.table.memory_free(address)
        self.check(code, "cuMemFree")

    def allocation(self, coll_cu_address address):
        """The allocation that has ``address``: a number that no other of the process has, its address, its bytes."""
        cdef uint64_t number = 0
        cdef coll_cu_address base = 0
        cdef size_t nbytes = 0
        self.check(self.table.attribute(&number, COLL_CUDA_BUFFER_ID, address), "cuPointerGetAttribute")
        self.check(self.table.range(&base, &nbytes, address), "cuMemGetAddressRange")
        return number, base, nbytes

    def export_memory(self, coll_cu_address base):
        """The 64 bytes by which another process opens an allocation."""
        cdef coll_cu_ipc handle
        self.check(self.table.memory_export(&handle, base), "cuIpcGetMemHandle")
        return <bytes>handle.bytes[:64]

    def open_memory(self, bytes handle):
        """The address of another process's allocation in the current context."""
        cdef coll_cu_address base = 0
        cdef coll_cu_ipc given = handle_of(handle)
        cdef int code
        with nogil:
            code = self.table.memory_open(&base, given, COLL_CUDA_LAZY_PEERS)
        self.check(code, "cuIpcOpenMemHandle")
        return base

    def close_memory(self, coll_cu_address base):
        """Undo :meth:`open_memory`, once no work on the memory is under way."""
        cdef int code
        with nogil:
            code = self.table.memory_close(base)
        self.check(code, "cuIpcCloseMemHandle")

    def pin(self, uintptr_t memory, size_t nbytes):
        """Lock memory of the host in place, so that copies from and to it run beside the program."""
        cdef int code
        with nogil:
            code = self.table.pin(<void *>memory, nbytes, COLL_CUDA_PORTABLE)
        self.check(code, "cuMemHostRegister")

    def unpin(self, uintptr_t memory):
        """Undo :meth:`pin`."""
        self.check(self.table.unpin(<void *>memory), "cuMemHostUnregister")

    def to_host(self, uintptr_t to, coll_cu_address source, size_t nbytes, uintptr_t stream):
        """Copy from the device to pinned memory, in the order of ``stream``."""
        cdef int code
        with nogil:
            code = self.table.to_host(<void *>to, source, nbytes, stream)
        self.check(code, "cuMemcpyDtoHAsync")

    def to_device(self, coll_cu_address to, uintptr_t source, size_t nbytes, uintptr_t stream):
        """Copy from pinned memory to the device, in the order of ``stream``."""
        cdef int code
        with nogil:
            code = self.table.to_device(to, <const void *>source, nbytes, stream)
        self.check(code, "cuMemcpyHtoDAsync")

    def copy(self, coll_cu_address to, coll_cu_address source, size_t nbytes, uintptr_t stream):
        """Copy between arrays on devices, in the order of ``stream``."""
        cdef int code
        with nogil:
            code = self.table.copy(to, source, nbytes, stream)
        self.check(code, "cuMemcpyDtoDAsync")

    def stream(self):
        """A new stream, which does not wait for the default stream."""
        cdef uintptr_t stream = 0
        self.check(self.table.stream_new(&stream, COLL_CUDA_NON_BLOCKING), "cuStreamCreate")
        return stream

    def free_stream(self, uintptr_t stream):
        """Free a stream once its work has ended."""
        self.check(self.table.stream_free(stream), "cuStreamDestroy")

    def finish(self, uintptr_t stream):
        """Wait until all work of a stream has ended."""
        cdef int code
        with nogil:
            code = self.table.stream_end(stream)
        self.check(code, "cuStreamSynchronize")

    def capturing(self, uintptr_t stream):
        """Whether the work of a stream is being captured in a graph, and so is not done now."""
        cdef int status = 0
        self.check(self.table.stream_capturing(stream, &status), "cuStreamIsCapturing")
        return status != 0

    def event(self):
        """A new event; until it is recorded it counts as passed."""
        cdef uintptr_t event = 0
        self.check(self.table.event_new(&event, COLL_CUDA_NO_TIMING), "cuEventCreate")
        return event

    def shared_event(self):
        """A new event that other processes may wait for, and the 64 bytes by which they open it."""
        cdef uintptr_t event = 0
        cdef coll_cu_ipc handle
        self.check(self.table.event_new(&event, COLL_CUDA_NO_TIMING | COLL_CUDA_INTERPROCESS), "cuEventCreate")
        code = self.table.event_export(&handle, event)
        if code:
            self.table.event_free(event)
        self.check(code, "cuIpcGetEventHandle")
        return event, <bytes>handle.bytes[:64]

    def open_event(self, bytes handle):
        """Another process's event, which is freed like an own one."""
        cdef uintptr_t event = 0
        self.check(self.table.event_open(&event, handle_of(handle)), "cuIpcOpenEventHandle")
        return event

    def free_event(self, uintptr_t event):
        """Free an event."""
        self.check(self.table.event_free(event), "cuEventDestroy")

    def record(self, uintptr_t event, uintptr_t stream):
        """Let ``event`` stand for the work that ``stream`` has now."""
        cdef int code
        with nogil:
            code = self.table.event_record(event, stream)
        self.check(code, "cuEventRecord")

    def order(self, uintptr_t stream, uintptr_t event):
        """Let later work of ``stream`` wait for what ``event`` stands for now."""
        cdef int code
        with nogil:
            code = self.table.stream_wait(stream, event, 0)
        self.check(code, "cuStreamWaitEvent")

    def passed(self, uintptr_t event):
        """Whether all that ``event`` stands for has ended."""
        cdef int code
        with nogil:
            code = self.table.event_query(event)
        if code == COLL_CUDA_NOT_READY:
            return False
        self.check(code, "cuEventQuery")
        return True


cdef coll_cu_ipc handle_of(bytes handle) except *:
    cdef coll_cu_ipc found
    if len(handle) != sizeof(found):
        raise ValueError("a handle of another length")
    memcpy(found.bytes, PyBytes_AsString(handle), sizeof(found))
    return found


def dlpack_array(capsule):
    """What a DLPack capsule describes: the address, the device's type and number, shape, strides in elements (None:
    contiguous), the type (code, bits, lanes), and whether it is read-only."""
    cdef const char *tensor
    cdef bint readonly = False
    if PyCapsule_IsValid(capsule, b"dltensor_versioned"):  # version, context, deleter and flags come first
        tensor = <const char *>PyCapsule_GetPointer(capsule, b"dltensor_versioned") + 32
        readonly = (<const uint64_t *>(tensor - 8))[0] & 1
    else:
        tensor = <const char *>PyCapsule_GetPointer(capsule, b"dltensor")
    cdef int ndim = (<const int32_t *>tensor)[4], i
    cdef const unsigned char *kind = <const unsigned char *>tensor + 20
    cdef const int64_t *shape = (<const int64_t **>tensor)[3]
    cdef const int64_t *strides = (<const int64_t **>tensor)[4]
    return (
        (<const uint64_t *>tensor)[0] + (<const uint64_t *>tensor)[5],
        (<const int32_t *>tensor)[2],
        (<const int32_t *>tensor)[3],
        tuple([shape[i] for i in range(ndim)]),
        None if strides == NULL else tuple([strides[i] for i in range(ndim)]),
        (kind[0], kind[1], kind[2] + 256 * kind[3]),
        readonly,
    )


include "cuda_kernels.pxi"
