/* NVIDIA's driver as a table of functions, which is filled by dlopen. Neither cuda.h nor a library is needed to build.
 *
 * The functions have the names and the types of the driver's interface, with integers in the place of its handles.
 * Each returns the driver's code, 0 for success. */
#ifndef COLL_CUDA_DRIVER_H
#define COLL_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef uintptr_t coll_cu_handle; /* a context, a stream or an event */
typedef uint64_t coll_cu_address; /* an address on a device */

/* What another process opens an allocation or an event by. The driver takes it by value. */
typedef struct coll_cu_ipc {
    char bytes[64];
} coll_cu_ipc;

/* Name in the table, symbol in the library, parameters. */
#define COLL_CUDA_FUNCTIONS(X)                                                                                         \
    X(init, "cuInit", (unsigned flags))                                                                                \
    X(version, "cuDriverGetVersion", (int *version))                                                                   \
    X(device_count, "cuDeviceGetCount", (int *count))                                                                  \
    X(device, "cuDeviceGet", (int *device, int number))                                                                \
    X(device_name, "cuDeviceGetName", (char *name, int room, int device))                                              \
    X(retain, "cuDevicePrimaryCtxRetain", (coll_cu_handle * context, int device))                                      \
    X(release, "cuDevicePrimaryCtxRelease_v2", (int device))                                                           \
    X(push, "cuCtxPushCurrent_v2", (coll_cu_handle context))                                                           \
    X(pop, "cuCtxPopCurrent_v2", (coll_cu_handle * context))                                                           \
    X(attribute, "cuPointerGetAttribute", (void *value, int attribute, coll_cu_address address))                       \
    X(pin, "cuMemHostRegister_v2", (void *memory, size_t nbytes, unsigned flags))                                      \
    X(unpin, "cuMemHostUnregister", (void *memory))                                                                    \
    X(to_host, "cuMemcpyDtoHAsync_v2", (void *to, coll_cu_address from, size_t nbytes, coll_cu_handle stream))         \
    X(to_device, "cuMemcpyHtoDAsync_v2", (coll_cu_address to, const void *from, size_t nbytes, coll_cu_handle stream)) \
    X(copy, "cuMemcpyDtoDAsync_v2", (coll_cu_address to, coll_cu_address from, size_t nbytes, coll_cu_handle stream))  \
    X(memory_new, "cuMemAlloc_v2", (coll_cu_address * address, size_t nbytes))                                         \
    X(memory_free, "cuMemFree_v2", (coll_cu_address address))                                                          \
    X(range, "cuMemGetAddressRange_v2", (coll_cu_address * base, size_t *nbytes, coll_cu_address address))             \
    X(memory_export, "cuIpcGetMemHandle", (coll_cu_ipc * handle, coll_cu_address base))                                \
    X(memory_open, "cuIpcOpenMemHandle_v2", (coll_cu_address * base, coll_cu_ipc handle, unsigned flags))              \
    X(memory_close, "cuIpcCloseMemHandle", (coll_cu_address base))                                                     \
    X(stream_new, "cuStreamCreate", (coll_cu_handle * stream, unsigned flags))                                         \
    X(stream_free, "cuStreamDestroy_v2", (coll_cu_handle stream))                                                      \
    X(stream_wait, "cuStreamWaitEvent", (coll_cu_handle stream, coll_cu_handle event, unsigned flags))                 \
    X(stream_end, "cuStreamSynchronize", (coll_cu_handle stream))                                                      \
    X(stream_capturing, "cuStreamIsCapturing", (coll_cu_handle stream, int *status))                                   \
    X(event_new, "cuEventCreate", (coll_cu_handle * event, unsigned flags))                                            \
    X(event_free, "cuEventDestroy_v2", (coll_cu_handle event))                                                         \
    X(event_record, "cuEventRecord", (coll_cu_handle event, coll_cu_handle stream))                                    \
    X(event_query, "cuEventQuery", (coll_cu_handle event))                                                             \
    X(event_export, "cuIpcGetEventHandle", (coll_cu_ipc * handle, coll_cu_handle event))                               \
    X(event_open, "cuIpcOpenEventHandle", (coll_cu_handle * event, coll_cu_ipc handle))                                \
    X(module_load, "cuModuleLoadData", (coll_cu_handle * module, const void *image))                                   \
    X(module_unload, "cuModuleUnload", (coll_cu_handle module))                                                        \
    X(module_kernel, "cuModuleGetFunction", (coll_cu_handle * kernel, coll_cu_handle module, const char *name))        \
    X(launch, "cuLaunchKernel",                                                                                        \
      (coll_cu_handle kernel, unsigned grid, unsigned grid_y, unsigned grid_z, unsigned block, unsigned block_y,       \
       unsigned block_z, unsigned shared, coll_cu_handle stream, void **parameters, void **extra))                     \
    X(error_name, "cuGetErrorName", (int code, const char **name))                                                     \
    X(error_text, "cuGetErrorString", (int code, const char **text))

typedef struct coll_cuda {
#define COLL_MEMBER(name, symbol, parameters) int(*name) parameters;
    COLL_CUDA_FUNCTIONS(COLL_MEMBER)
#undef COLL_MEMBER
} coll_cuda;

enum {
    COLL_CUDA_NOT_READY = 600,
    COLL_CUDA_OUT_OF_MEMORY = 2,
    COLL_CUDA_BUFFER_ID = 7,    /* attributes of an address: a number that no other allocation of the process has */
    COLL_CUDA_ORDINAL = 9,      /* the number of its device */
    COLL_CUDA_NON_BLOCKING = 1, /* flags of a stream, of an event, of pinned memory, of memory that is opened */
    COLL_CUDA_NO_TIMING = 2,
    COLL_CUDA_INTERPROCESS = 4,
    COLL_CUDA_PORTABLE = 1,
    COLL_CUDA_LAZY_PEERS = 1,
};

/* Fills the table from `library` and calls cuInit. Returns 0, or -1 with the reason in `why`, of `room` bytes. The
 * library stays loaded in any case, since a driver must not be unloaded. */
int coll_cuda_open(coll_cuda *table, const char *library, char *why, size_t room);

#endif
