/* A stand-in for NVIDIA's driver, for tests on machines without a GPU.
 *
 * Device memory is memory of the process that has two addresses: the program's, where each access is a fault, and one
 * for the streams. Streams are threads, which do their work late by random times. What a program has not ordered by
 * events runs in any order. Each function can be made to fail. */
#ifndef STAND_IN_CUDA_H
#define STAND_IN_CUDA_H

#include <pthread.h>
#include <stdint.h>
#include <stddef.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600 };
enum { ALLOCATIONS, PINNED, STREAMS, EVENTS, REFERENCES, PAGEABLE, KINDS }; /* what is counted */
enum { DEVICES = 2 };

typedef struct Device {
    int number;
    struct Stream *legacy; /* the default stream */
} Device;

typedef struct Work {
    struct Work *next;
    char *to; /* a copy; or else a wait until `stream` has done `until` pieces of work */
    const char *from;
    size_t nbytes;
    void *owned; /* freed after the work */
    struct Stream *stream;
    uint64_t until;
} Work;

typedef struct Stream {
    struct Stream *next;
    Device *device;
    int blocking, gone, legacy;
    uint64_t issued, done, random;
    Work *first, *last;
} Stream;

typedef struct Event {
    Device *device;
    Stream *stream; /* NULL: not recorded yet */
    uint64_t until;
} Event;

extern pthread_mutex_t stand_in_lock;
extern long stand_in_counts[KINDS];

/* The code with which a call must fail now, else 0. */
int stand_in_failure(const char *symbol);
/* The device of the thread's current context, NULL if there is none. */
Device *stand_in_current(void);
/* A stream of a device; the lock is held. */
Stream *stand_in_stream_new(Device *device, int blocking);
/* Adds a copy to a stream's work. */
void stand_in_copy(Stream *stream, char *to, const char *from, size_t nbytes, void *owned);
/* Waits until a stream has done what it has now; NULL: until all streams have. */
void stand_in_drain(Stream *stream);
/* The stream of a handle, where 0, 1 and 2 are default streams; NULL if it is none of `device`. */
Stream *stand_in_stream(Device *device, uintptr_t handle);

/* The beginning of a function that needs a context. */
#define BEGIN(symbol)                                                                                                  \
    int failure = stand_in_failure(symbol);                                                                            \
    Device *device = stand_in_current();                                                                               \
    if (failure || !device)                                                                                            \
    return failure ? failure : INVALID_CONTEXT

#endif
