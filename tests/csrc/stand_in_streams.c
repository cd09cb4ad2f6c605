/* Streams and events of the stand-in for NVIDIA's driver: one thread for each stream, which is late by random times. */
#include "stand_in_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

pthread_mutex_t stand_in_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static Stream *streams;
static long made, longest = 300; /* streams so far; microseconds by which work may be late */
static _Thread_local Stream *of_thread[DEVICES];

void stand_in_lateness(long microseconds) {
    longest = microseconds;
}

static uint64_t next_random(Stream *s) {
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return s->random;
}

static void be_late(Stream *s) {
    uint64_t drawn = next_random(s);
    if (longest && drawn & 1) {
        long us = (long)(drawn >> 8) % longest;
        struct timespec pause = {us / 1000000, us % 1000000 * 1000};
        nanosleep(&pause, NULL);
    }
}

static void wait_a_moment(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&moved, &stand_in_lock, &until);
}

static void *run(void *argument) {
    Stream *s = argument;
    pthread_mutex_lock(&stand_in_lock);
    while (s->first || !s->gone) {
        Work *w = s->first;
        if (!w) {
            pthread_cond_wait(&moved, &stand_in_lock);
            continue;
        }
        while (w->stream && w->stream->done < w->until)
            pthread_cond_wait(&moved, &stand_in_lock);
        while (w->awaited && !stand_in_passed(w->awaited, w->number))
            wait_a_moment(); /* another process may let it pass, which tells nobody */
        pthread_mutex_unlock(&stand_in_lock);
        be_late(s);
        if (w->to)
            memmove(w->to, w->from, w->nbytes);
        if (w->kernel)
            coll_cuda_host_run(w->kernel, w->grid, w->block, w->args);
        pthread_mutex_lock(&stand_in_lock);
        s->first = w->next;
        s->done++;
        if (w->set)
            w->set->passed[w->number % RECORDS] = w->number;
        free(w->owned);
        free(w->args);
        free(w);
        pthread_cond_broadcast(&moved);
    }
    pthread_mutex_unlock(&stand_in_lock);
    return NULL;
}

Stream *stand_in_stream_new(Device *device, int blocking) {
    const char *seed = getenv("STAND_IN_SEED");
    pthread_t thread;
    Stream *s = calloc(1, sizeof *s);
    s->device = device;
    s->blocking = blocking;
    s->random = ((seed ? strtoull(seed, NULL, 10) : 1) * 1000003 + (uint64_t)made++ + 1) * 0x9E3779B97F4A7C15u | 1;
    s->next = streams;
    streams = s;
    pthread_create(&thread, NULL, run, s);
    pthread_detach(thread);
    return s;
}

static void append(Stream *s, Work work) {
    Work *w = malloc(sizeof *w);
    *w = work;
    if (s->first)
        s->last->next = w;
    else
        s->first = w;
    s->last = w;
    s->issued++;
    pthread_cond_broadcast(&moved);
}

/* Adds work. The default stream waits for all blocking streams of its device, and they for it. */
static void add(Stream *s, Work work) {
    if (s->legacy) {
        for (Stream *other = streams; other; other = other->next)
            if (other->blocking && other->device == s->device && other->done < other->issued)
                append(s, (Work){.stream = other, .until = other->issued});
    } else if (s->blocking && s->device->legacy) {
        append(s, (Work){.stream = s->device->legacy, .until = s->device->legacy->issued});
    }
    append(s, work);
}

void stand_in_add(Stream *s, Work work) {
    pthread_mutex_lock(&stand_in_lock);
    add(s, work);
    pthread_mutex_unlock(&stand_in_lock);
}

void stand_in_drain(Stream *only) {
    pthread_mutex_lock(&stand_in_lock);
    for (Stream *s = only ? only : streams; s; s = only ? NULL : s->next) {
        uint64_t until = s->issued;
        while (s->done < until)
            pthread_cond_wait(&moved, &stand_in_lock);
    }
    pthread_mutex_unlock(&stand_in_lock);
}

Stream *stand_in_stream(Device *device, uintptr_t handle) {
    Stream *found = NULL;
    pthread_mutex_lock(&stand_in_lock);
    if (handle == 2) {
        if (!of_thread[device->number])
            of_thread[device->number] = stand_in_stream_new(device, 1);
        found = of_thread[device->number];
    } else if (handle < 2) {
        if (!device->legacy) {
            device->legacy = stand_in_stream_new(device, 0);
            device->legacy->legacy = 1;
        }
        found = device->legacy;
    } else {
        for (Stream *s = streams; s; s = s->next)
            if ((uintptr_t)s == handle && !s->gone && s->device == device)
                found = s;
    }
    pthread_mutex_unlock(&stand_in_lock);
    return found;
}

int cuStreamCreate(Stream **stream, unsigned flags) {
    BEGIN("cuStreamCreate");
    pthread_mutex_lock(&stand_in_lock);
    *stream = stand_in_stream_new(device, !(flags & 1));
    stand_in_counts[STREAMS]++;
    pthread_mutex_unlock(&stand_in_lock);
    return OK;
}

int cuStreamDestroy_v2(uintptr_t handle) {
    BEGIN("cuStreamDestroy");
    Stream *s = stand_in_stream(device, handle);
    if (!s || s->legacy)
        return INVALID_HANDLE;
    pthread_mutex_lock(&stand_in_lock);
    s->gone = 1;
    stand_in_counts[STREAMS]--;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&stand_in_lock);
    return OK;
}

int cuStreamSynchronize(uintptr_t handle) {
    BEGIN("cuStreamSynchronize");
    Stream *s = stand_in_stream(device, handle);
    if (s)
        stand_in_drain(s);
    return s ? OK : INVALID_HANDLE;
}

int cuStreamIsCapturing(uintptr_t handle, int *status) {
    BEGIN("cuStreamIsCapturing");
    Stream *s = stand_in_stream(device, handle);
    *status = s && s->capturing;
    return s ? OK : INVALID_HANDLE;
}

/* Let a stream seem to be captured, or no longer. */
int stand_in_capture(uintptr_t handle, int captured) {
    BEGIN("");
    Stream *s = stand_in_stream(device, handle);
    if (s)
        s->capturing = captured;
    return s ? OK : INVALID_HANDLE;
}

int cuCtxSynchronize(void) {
    BEGIN("cuCtxSynchronize");
    stand_in_drain(NULL);
    return OK;
}
