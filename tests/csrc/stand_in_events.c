/* Events of the stand-in for NVIDIA's driver, what other processes may open, and kernels. */
#include "stand_in_cuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INTERPROCESS = 4 };
static const uint32_t FATBIN = 0xBA55ED50; /* how nvcc's images begin */

_Static_assert(sizeof(Handle) == 64, "the driver's handles have 64 bytes");

int stand_in_file(size_t nbytes) {
    int file = memfd_create("device", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)nbytes)) {
        close(file);
        return -1;
    }
    return file;
}

static uint64_t inode(int file) {
    struct stat found;
    return fstat(file, &found) ? 0 : found.st_ino;
}

void stand_in_export(Handle *handle, int file, size_t nbytes) {
    *handle = (Handle){.inode = inode(file), .nbytes = nbytes, .process = getpid(), .file = file};
}

/* As CUDA, not in the process that has made the handle. */
int stand_in_import(const Handle *handle) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->process, handle->file);
    int file = handle->process == getpid() ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0 && inode(file) != handle->inode) {
        close(file);
        return -1;
    }
    return file;
}

/* Events. Their marks are never given back, since work may refer to them. */

static Mark *mark_in(int file) {
    Mark *mark = file < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return mark == MAP_FAILED ? NULL : mark;
}

int stand_in_passed(Mark *mark, uint64_t number) {
    return mark->passed[number % RECORDS] >= number;
}

static int event_new(Event **event, Device *device, Mark *mark, int file) {
    if (!mark)
        return OUT_OF_MEMORY;
    *event = malloc(sizeof **event);
    **event = (Event){device, mark, file};
    pthread_mutex_lock(&stand_in_lock);
    stand_in_counts[EVENTS]++;
    pthread_mutex_unlock(&stand_in_lock);
    return OK;
}

int cuEventCreate(Event **event, unsigned flags) {
    BEGIN("cuEventCreate");
    int file = flags & INTERPROCESS ? stand_in_file(PAGE) : -1;
    return event_new(event, device, flags & INTERPROCESS ? mark_in(file) : calloc(1, sizeof(Mark)), file);
}

int cuEventDestroy_v2(Event *event) {
    BEGIN("cuEventDestroy");
    pthread_mutex_lock(&stand_in_lock);
    stand_in_counts[EVENTS]--;
    pthread_mutex_unlock(&stand_in_lock);
    if (event->device)
        event->mark->gone = 1;
    if (event->file >= 0)
        close(event->file);
    free(event);
    return OK;
}

int cuEventRecord(Event *event, uintptr_t handle) {
    BEGIN("cuEventRecord");
    Stream *s = stand_in_stream(device, handle);
    if (!s || event->device != s->device)
        return INVALID_HANDLE;
    stand_in_add(s, (Work){.set = event->mark, .number = ++event->mark->recorded});
    return OK;
}

int cuEventQuery(Event *event) {
    BEGIN("cuEventQuery");
    return stand_in_passed(event->mark, event->mark->recorded) ? OK : NOT_READY;
}

int cuStreamWaitEvent(uintptr_t handle, Event *event, unsigned flags) {
    BEGIN("cuStreamWaitEvent");
    Stream *s = stand_in_stream(device, handle);
    if (!s || flags || event->mark->gone)
        return INVALID_HANDLE;
    if (event->mark->recorded)
        stand_in_add(s, (Work){.awaited = event->mark, .number = event->mark->recorded});
    return OK;
}

int cuIpcGetEventHandle(Handle *handle, Event *event) {
    BEGIN("cuIpcGetEventHandle");
    if (event->file < 0)
        return INVALID_HANDLE;
    stand_in_export(handle, event->file, PAGE);
    return OK;
}

int cuIpcOpenEventHandle(Event **event, Handle handle) {
    BEGIN("cuIpcOpenEventHandle");
    int file = stand_in_import(&handle), code = event_new(event, NULL, mark_in(file), -1);
    if (file >= 0)
        close(file);
    return code;
}

/* Kernels. */

int cuModuleLoadData(uintptr_t *module, const void *image) {
    BEGIN("cuModuleLoadData");
    if (memcmp(image, &FATBIN, sizeof FATBIN))
        return INVALID_IMAGE;
    *module = FATBIN;
    stand_in_counts[MODULES]++;
    return OK;
}

int cuModuleUnload(uintptr_t module) {
    BEGIN("cuModuleUnload");
    stand_in_counts[MODULES]--;
    return module == FATBIN ? OK : INVALID_HANDLE;
}

int cuModuleGetFunction(coll_cuda_host_fn *kernel, uintptr_t module, const char *name) {
    BEGIN("cuModuleGetFunction");
    *kernel = module == FATBIN ? coll_cuda_host_find(name) : NULL;
    return *kernel ? OK : NOT_FOUND;
}

int cuLaunchKernel(coll_cuda_host_fn kernel, unsigned grid, unsigned grid_y, unsigned grid_z, unsigned block,
                   unsigned block_y, unsigned block_z, unsigned shared, uintptr_t handle, void **parameters,
                   void **extra) {
    BEGIN("cuLaunchKernel");
    Stream *s = stand_in_stream(device, handle);
    if (!s || !grid || block > 1024 || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || shared || extra)
        return s ? INVALID_VALUE : INVALID_HANDLE;
    struct coll_cuda_args *args = malloc(sizeof *args);
    *args = *(const struct coll_cuda_args *)parameters[0];
    int known = (args->dst = stand_in_alias(args->dst, args->n)) != NULL;
    for (int k = 0; k < args->p; k++)
        known &= (args->src[k] = stand_in_alias(args->src[k], args->n)) != NULL;
    if (!known) {
        free(args);
        return INVALID_VALUE;
    }
    stand_in_counts[LAUNCHES]++;
    stand_in_add(s, (Work){.kernel = kernel, .grid = grid, .block = block, .args = args});
    return OK;
}
