/* A stand-in for NVIDIA's driver, for tests on machines without a GPU.
 *
 * Device memory is memory of the process that has two addresses: the program's, where each access is a fault, and one
 * for the streams. Streams are threads, which do their work late by random times. What a program has not ordered by
 * events runs in any order. Other processes of the user may open memory and events. Kernels are those of csrc/cuda,
 * compiled for the processor. Each function can be made to fail. */
#ifndef STAND_IN_CUDA_H
#define STAND_IN_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/host.h"

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600
};
/* What is counted; of launches, and copies from or to memory that is not pinned, all that there were. */
enum { ALLOCATIONS, PINNED, STREAMS, EVENTS, REFERENCES, PAGEABLE, OPENED, MODULES, LAUNCHES, KINDS };
enum { DEVICES = 2, PAGE = 4096, RECORDS = 64 };

typedef struct Device {
    int number;
    struct Stream *legacy; /* the default stream */
} Device;

/* How often an event has been recorded, and which of these records have passed: record n if passed[n % RECORDS] is n or
 * more. Records on different streams may pass in any order. In memory that processes share. */
typedef struct Mark {
    _Atomic uint64_t recorded, passed[RECORDS];
    _Atomic int gone;
} Mark;

typedef struct Work {
    struct Work *next;
    struct Stream *stream; /* first a wait until `stream` has done `until` pieces of work */
    uint64_t until;
    Mark *awaited, *set; /* then a wait for record `number` of an event; at the end, record `number` has passed */
    uint64_t number;
    char *to; /* a copy */
    const char *from;
    size_t nbytes;
    void *owned; /* freed after the work */
    coll_cuda_host_fn kernel;
    unsigned grid, block;
    struct coll_cuda_args *args;
} Work;

typedef struct Stream {
    struct Stream *next;
    Device *device;
    int blocking, gone, legacy, capturing;
    uint64_t issued, done, random;
    Work *first, *last;
} Stream;

typedef struct Event {
    Device *device; /* NULL: another process's */
    Mark *mark;
    int file; /* -1: not for other processes */
} Event;

typedef struct Range {
    char *at, *alias; /* the program's address, and the streams' */
    size_t nbytes;
    int device, file; /* -1: another process's memory */
    uint64_t number;
} Range;

/* What other processes open a file by, in the driver's 64 bytes. */
typedef struct Handle {
    uint64_t inode, nbytes;
    int process, file;
    char rest[40];
} Handle;

extern pthread_mutex_t stand_in_lock;
extern long stand_in_counts[KINDS];

/* The code with which a call must fail now, else 0. */
int stand_in_failure(const char *symbol);
/* The device of the thread's current context, NULL if there is none. */
Device *stand_in_current(void);
/* A stream of a device; the lock is held. */
Stream *stand_in_stream_new(Device *device, int blocking);
/* Whether record `number` of an event has passed; 0 is none. */
int stand_in_passed(Mark *mark, uint64_t number);
/* Adds to a stream's work. */
void stand_in_add(Stream *stream, Work work);
/* The range of device memory with these bytes, NULL if there is none; and a new one. */
Range *stand_in_memory(const char *at, size_t nbytes);
int stand_in_keep(Range range);
/* Where a stream finds what the program knows as `at`; NULL if that is no device memory. */
char *stand_in_alias(const void *at, size_t nbytes);
/* Files of memory that processes share: a new one (-1: none), its handle, and the same file in another process. */
int stand_in_file(size_t nbytes);
void stand_in_export(Handle *handle, int file, size_t nbytes);
int stand_in_import(const Handle *handle);
/* Waits until a stream has done what it has now; NULL: until all streams have. */
void stand_in_drain(Stream *stream);
/* The stream of a handle: 0 and 1 are the default stream, 2 is this thread's. NULL if it is none of `device`. */
Stream *stand_in_stream(Device *device, uintptr_t handle);

/* The beginning of a function that needs a context. */
#define BEGIN(symbol)                                                                                                  \
    int failure = stand_in_failure(symbol);                                                                            \
    Device *device = stand_in_current();                                                                               \
    if (failure || !device)                                                                                            \
    return failure ? failure : INVALID_CONTEXT

#endif
