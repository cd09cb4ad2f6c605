/* Devices, contexts, memory and failures of the stand-in for NVIDIA's driver. */
#include "stand_in_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 1024, DEPTH = 16 };

typedef struct Range {
    char *at, *alias; /* the program's address, and the streams' */
    size_t nbytes;
    int device;
} Range;

long stand_in_counts[KINDS];
static Device devices[DEVICES] = {{0, NULL}, {1, NULL}};
static Range memory[MOST], pinned[MOST];
static size_t used, room = SIZE_MAX; /* bytes of device memory */
static _Thread_local Device *stack[DEPTH];
static _Thread_local int depth;

/* Failures on demand. */

static struct {
    char symbol[64];
    int left, code, sticks;
} planned;

/* Let the n-th call of a function from now on fail; with code 700, a fault on the device, all later calls fail too. */
void stand_in_fail(const char *symbol, int n, int code) {
    snprintf(planned.symbol, sizeof planned.symbol, "%s", symbol);
    planned.left = n;
    planned.code = code;
    planned.sticks = 0;
}

int stand_in_failure(const char *symbol) {
    int code = planned.sticks;
    pthread_mutex_lock(&stand_in_lock);
    if (planned.left && strcmp(symbol, planned.symbol) == 0 && --planned.left == 0) {
        code = planned.code;
        planned.sticks = code == 700 ? code : 0;
    }
    pthread_mutex_unlock(&stand_in_lock);
    return code;
}

/* What is counted, see the header; -1: contexts on this thread's stack. */
long stand_in_count(int kind) {
    return kind < 0 ? depth : stand_in_counts[kind];
}

void stand_in_limit(size_t nbytes) {
    room = nbytes;
}

/* Devices and contexts. */

int cuInit(unsigned flags) {
    int failure = stand_in_failure("cuInit");
    const char *broken = getenv("STAND_IN_BROKEN");
    return broken ? atoi(broken) : failure ? failure : flags ? INVALID_VALUE : OK;
}

int cuDriverGetVersion(int *version) {
    *version = 12040;
    return OK;
}

int cuDeviceGetCount(int *count) {
    *count = DEVICES;
    return OK;
}

int cuDeviceGet(int *device, int number) {
    *device = number;
    return number >= 0 && number < DEVICES ? OK : 101;
}

int cuDeviceGetName(char *name, int length, int device) {
    snprintf(name, (size_t)length, "stand-in device %d", device);
    return OK;
}

int cuDevicePrimaryCtxRetain(Device **context, int device) {
    int failure = stand_in_failure("cuDevicePrimaryCtxRetain");
    if (failure)
        return failure;
    *context = &devices[device];
    stand_in_counts[REFERENCES]++;
    return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    stand_in_counts[REFERENCES]--;
    return OK;
}

int cuCtxPushCurrent_v2(Device *context) {
    int failure = stand_in_failure("cuCtxPushCurrent");
    if (!failure && depth < DEPTH)
        stack[depth++] = context;
    return failure;
}

int cuCtxPopCurrent_v2(Device **context) {
    if (!depth)
        return INVALID_CONTEXT;
    *context = stack[--depth];
    return OK;
}

Device *stand_in_current(void) {
    return depth ? stack[depth - 1] : NULL;
}

int cuGetErrorName(int code, const char **name) {
    *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_STAND_IN";
    return OK;
}

int cuGetErrorString(int code, const char **text) {
    *text = code == OUT_OF_MEMORY ? "out of memory" : "on demand";
    return OK;
}

/* Memory. */

static Range *found(Range *ranges, const char *at, size_t nbytes) {
    Range *which = NULL;
    pthread_mutex_lock(&stand_in_lock);
    for (Range *r = ranges; r < ranges + MOST; r++)
        if (r->at && at >= r->at && at + nbytes <= r->at + r->nbytes)
            which = r;
    pthread_mutex_unlock(&stand_in_lock);
    return which;
}

static int keep(Range *ranges, Range range) {
    Range *free = NULL;
    pthread_mutex_lock(&stand_in_lock);
    for (Range *r = ranges; r < ranges + MOST && !free; r++)
        if (!r->at)
            free = r;
    if (free)
        *free = range;
    pthread_mutex_unlock(&stand_in_lock);
    return free ? OK : OUT_OF_MEMORY;
}

int cuMemAlloc_v2(char **address, size_t nbytes) {
    BEGIN("cuMemAlloc");
    size_t whole = (nbytes + 4095) / 4096 * 4096;
    if (!nbytes || whole > room - used)
        return nbytes ? OUT_OF_MEMORY : INVALID_VALUE;
    int file = memfd_create("device", 0);
    if (file < 0 || ftruncate(file, (off_t)whole))
        return OUT_OF_MEMORY;
    Range range = {mmap(NULL, whole, PROT_NONE, MAP_SHARED, file, 0),
                   mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), nbytes, device->number};
    close(file);
    if (range.at == MAP_FAILED || range.alias == MAP_FAILED)
        return OUT_OF_MEMORY;
    memset(range.alias, 0xAB, whole);
    used += whole;
    *address = range.at;
    stand_in_counts[ALLOCATIONS]++;
    return keep(memory, range);
}

int cuMemFree_v2(char *address) {
    BEGIN("cuMemFree");
    Range *range = found(memory, address, 0);
    if (!range || range->at != address)
        return INVALID_VALUE;
    stand_in_drain(NULL);
    size_t whole = (range->nbytes + 4095) / 4096 * 4096;
    munmap(range->alias, whole);
    munmap(range->at, whole);
    used -= whole;
    range->at = NULL;
    stand_in_counts[ALLOCATIONS]--;
    return OK;
}

int cuMemHostRegister_v2(char *address, size_t nbytes, unsigned flags) {
    BEGIN("cuMemHostRegister");
    (void)flags;
    if ((uintptr_t)address % 4096 || !nbytes || found(pinned, address, 1))
        return INVALID_VALUE;
    stand_in_counts[PINNED]++;
    return keep(pinned, (Range){address, address, nbytes, device->number});
}

int cuMemHostUnregister(char *address) {
    BEGIN("cuMemHostUnregister");
    Range *range = found(pinned, address, 1);
    if (!range || range->at != address)
        return INVALID_VALUE;
    range->at = NULL;
    stand_in_counts[PINNED]--;
    return OK;
}

int cuPointerGetAttribute(int *value, int attribute, char *address) {
    int failure = stand_in_failure("cuPointerGetAttribute");
    Range *range = found(memory, address, 1);
    if (failure || !range || attribute != 9)
        return failure ? failure : INVALID_VALUE;
    *value = range->device;
    return OK;
}

/* Copies. Of memory that is not pinned the driver takes a copy first, or waits until the copy is there. */

int cuMemcpyDtoHAsync_v2(char *to, char *from, size_t nbytes, uintptr_t handle) {
    BEGIN("cuMemcpyDtoHAsync");
    Stream *stream = stand_in_stream(device, handle);
    Range *range = found(memory, from, nbytes);
    if (!stream || !range)
        return stream ? INVALID_VALUE : INVALID_HANDLE;
    stand_in_copy(stream, to, range->alias + (from - range->at), nbytes, NULL);
    if (!found(pinned, to, nbytes)) {
        stand_in_counts[PAGEABLE]++;
        stand_in_drain(stream);
    }
    return OK;
}

int cuMemcpyHtoDAsync_v2(char *to, const char *from, size_t nbytes, uintptr_t handle) {
    BEGIN("cuMemcpyHtoDAsync");
    Stream *stream = stand_in_stream(device, handle);
    Range *range = found(memory, to, nbytes);
    char *copy = NULL;
    if (!stream || !range)
        return stream ? INVALID_VALUE : INVALID_HANDLE;
    if (!found(pinned, from, nbytes)) {
        stand_in_counts[PAGEABLE]++;
        copy = malloc(nbytes + 1);
        memcpy(copy, from, nbytes);
    }
    stand_in_copy(stream, range->alias + (to - range->at), copy ? copy : from, nbytes, copy);
    return OK;
}
