/* Records of calls for timelines, in memory that is allocated before the first call. */
#ifndef COLL_TRACE_H
#define COLL_TRACE_H

#include "ticks.h"

#include <stddef.h>
#include <stdint.h>

typedef enum {
    COLL_TRACE_BLOCKING,
    COLL_TRACE_NONBLOCKING,
    COLL_TRACE_PERSISTENT,
    COLL_TRACE_WAIT, /* waiting for a call that was started earlier */
    COLL_TRACE_SPAN, /* a named part of the program; its name is a number, like an algorithm's */
} coll_trace_form;

/* Times are ticks. A non-blocking call is under way from `begin` to `end`; its start returned at `returned`. `end` is 0
 * until it is known. The recorder assigns the numbers in `name`, `site` and `comm`. */
typedef struct {
    uint64_t begin, returned, end;
    uint64_t bytes, number;
    int32_t site, root;
    uint32_t comm;
    uint16_t name;
    uint8_t collective, form, thread, failed;
} coll_trace_event;

enum { COLL_TRACE_MOMENTS = 4096 };

typedef struct {
    coll_trace_event *events;
    size_t count, most, dropped; /* new events are dropped when the memory is full */
    coll_moment *moments;        /* pairs of ticks and CLOCK_MONOTONIC, taken from time to time */
    size_t nmoments;
    uint64_t interval, due; /* ticks */
} coll_trace;

/* Allocate room for `most` events; pages are not used until they are written. 0, or -1 without memory. */
int coll_trace_init(coll_trace *, size_t most);
void coll_trace_free(coll_trace *);
/* Record the present moment. If the room is full, every second moment is dropped and the interval doubled. */
void coll_trace_note(coll_trace *);
/* A small number for the calling thread, in order of first calls; threads from number 255 on share that number. */
uint8_t coll_trace_thread(void);

/* A new event with only `thread` set; NULL if there is no room. Records a moment too if one is due at `now`. Callers
 * must exclude each other. */
static inline coll_trace_event *coll_trace_add(coll_trace *t, uint64_t now) {
    if (now >= t->due)
        coll_trace_note(t);
    if (t->count == t->most) {
        t->dropped++;
        return NULL;
    }
    coll_trace_event *e = &t->events[t->count++];
    e->thread = coll_trace_thread();
    return e;
}

#endif
