/* Devices, contexts, memory and failures of the stand-in for NVIDIA's driver. */
#include "stand_in_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 1024, DEPTH = 16 };

long stand_in_counts[KINDS];
static Device devices[DEVICES] = {{0, NULL}, {1, NULL}};
static Range memory[MOST], pinned[MOST], unused[MOST]; /* the last: addresses of memory that was freed */
static size_t used, room = SIZE_MAX;                   /* bytes of device memory */
static uint64_t made;
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

Range *stand_in_memory(const char *at, size_t nbytes) {
    return found(memory, at, nbytes);
}

int stand_in_keep(Range range) {
    return keep(memory, range);
}

char *stand_in_alias(const void *at, size_t nbytes) {
    Range *range = found(memory, at, nbytes);
    return range ? range->alias + ((const char *)at - range->at) : NULL;
}

static size_t whole_pages(size_t nbytes) {
    return (nbytes + PAGE - 1) / PAGE * PAGE;
}

/* An address that freed memory of the same length had, as a driver would give it again; NULL if there is none. */
static char *used_before(size_t whole) {
    char *at = NULL;
    pthread_mutex_lock(&stand_in_lock);
    for (Range *r = unused; r < unused + MOST && !at; r++)
        if (r->at && r->nbytes == whole) {
            at = r->at;
            r->at = NULL;
        }
    pthread_mutex_unlock(&stand_in_lock);
    return at;
}

int cuMemAlloc_v2(char **address, size_t nbytes) {
    BEGIN("cuMemAlloc");
    size_t whole = whole_pages(nbytes);
    if (!nbytes || whole > room - used)
        return nbytes ? OUT_OF_MEMORY : INVALID_VALUE;
    int file = stand_in_file(whole);
    if (file < 0)
        return OUT_OF_MEMORY;
    char *again = used_before(whole);
    Range range = {mmap(again, whole, PROT_NONE, MAP_SHARED | (again ? MAP_FIXED : 0), file, 0),
                   mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0),
                   nbytes,
                   device->number,
                   file,
                   ++made};
    if (range.at == MAP_FAILED || range.alias == MAP_FAILED)
        return OUT_OF_MEMORY;
    memset(range.alias, 0xAB, whole);
    used += whole;
    *address = range.at;
    stand_in_counts[ALLOCATIONS]++;
    return stand_in_keep(range);
}

/* Other processes that have opened the memory see other values from now on. */
int cuMemFree_v2(char *address) {
    BEGIN("cuMemFree");
    Range *range = found(memory, address, 1);
    if (!range || range->at != address || range->file < 0)
        return INVALID_VALUE;
    stand_in_drain(NULL);
    size_t whole = whole_pages(range->nbytes);
    memset(range->alias, 0xEE, whole);
    munmap(range->alias, whole);
    mmap(range->at, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    keep(unused, (Range){.at = range->at, .nbytes = whole});
    close(range->file);
    used -= whole;
    range->at = NULL;
    stand_in_counts[ALLOCATIONS]--;
    return OK;
}

int cuMemGetAddressRange_v2(char **base, size_t *nbytes, char *address) {
    int failure = stand_in_failure("cuMemGetAddressRange");
    Range *range = found(memory, address, 1);
    if (failure || !range)
        return failure ? failure : INVALID_VALUE;
    *base = range->at;
    *nbytes = range->nbytes;
    return OK;
}

int cuIpcGetMemHandle(Handle *handle, char *base) {
    BEGIN("cuIpcGetMemHandle");
    Range *range = found(memory, base, 1);
    if (!range || range->at != base || range->file < 0)
        return INVALID_VALUE;
    stand_in_export(handle, range->file, range->nbytes);
    return OK;
}

int cuIpcOpenMemHandle_v2(char **base, Handle handle, unsigned flags) {
    BEGIN("cuIpcOpenMemHandle");
    int file = flags == 1 ? stand_in_import(&handle) : -1;
    if (file < 0)
        return INVALID_VALUE;
    size_t whole = whole_pages(handle.nbytes);
    Range range = {mmap(NULL, whole, PROT_NONE, MAP_SHARED, file, 0),
                   mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0),
                   handle.nbytes,
                   device->number,
                   -1,
                   0};
    close(file);
    *base = range.at;
    stand_in_counts[OPENED]++;
    return stand_in_keep(range);
}

int cuIpcCloseMemHandle(char *base) {
    BEGIN("cuIpcCloseMemHandle");
    Range *range = found(memory, base, 1);
    if (!range || range->at != base || range->file >= 0)
        return INVALID_VALUE;
    munmap(range->alias, whole_pages(range->nbytes));
    munmap(range->at, whole_pages(range->nbytes));
    range->at = NULL;
    stand_in_counts[OPENED]--;
    return OK;
}

int cuMemHostRegister_v2(char *address, size_t nbytes, unsigned flags) {
    BEGIN("cuMemHostRegister");
    (void)flags;
    if ((uintptr_t)address % 4096 || !nbytes || found(pinned, address, 1))
        return INVALID_VALUE;
    stand_in_counts[PINNED]++;
    return keep(pinned, (Range){address, address, nbytes, device->number, -1, 0});
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

int cuPointerGetAttribute(void *value, int attribute, char *address) {
    int failure = stand_in_failure("cuPointerGetAttribute");
    Range *range = found(memory, address, 1);
    if (failure || !range)
        return failure ? failure : INVALID_VALUE;
    switch (attribute) {
    case 7:
        *(uint64_t *)value = range->number;
        return OK;
    case 9:
        *(int *)value = range->device;
        return OK;
    default:
        return INVALID_VALUE;
    }
}

/* Copies. Of memory that is not pinned the driver takes a copy first, or waits until the copy is there. */

int cuMemcpyDtoHAsync_v2(char *to, char *from, size_t nbytes, uintptr_t handle) {
    BEGIN("cuMemcpyDtoHAsync");
    Stream *stream = stand_in_stream(device, handle);
    Range *range = found(memory, from, nbytes);
    if (!stream || !range)
        return stream ? INVALID_VALUE : INVALID_HANDLE;
    stand_in_add(stream, (Work){.to = to, .from = range->alias + (from - range->at), .nbytes = nbytes});
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
    stand_in_add(
        stream,
        (Work){.to = range->alias + (to - range->at), .from = copy ? copy : from, .nbytes = nbytes, .owned = copy});
    return OK;
}

int cuMemcpyDtoDAsync_v2(const char *to, const char *from, size_t nbytes, uintptr_t handle) {
    BEGIN("cuMemcpyDtoDAsync");
    Stream *stream = stand_in_stream(device, handle);
    Work work = {.to = stand_in_alias(to, nbytes), .from = stand_in_alias(from, nbytes), .nbytes = nbytes};
    if (!stream || !work.to || !work.from)
        return stream ? INVALID_VALUE : INVALID_HANDLE;
    stand_in_add(stream, work);
    return OK;
}
