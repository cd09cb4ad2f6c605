/* Records of calls, in memory that is there before the first one: the timeline's raw data. */
#ifndef COLL_TRACE_H
#define COLL_TRACE_H

#include "ticks.h"

#include <stddef.h>
#include <stdint.h>

typedef enum {
    COLL_TRACE_BLOCKING,
    COLL_TRACE_NONBLOCKING,
    COLL_TRACE_PERSISTENT,
    COLL_TRACE_WAIT, /* for a call that was started earlier */
    COLL_TRACE_SPAN, /* of the program; its name is a number like an algorithm's */
} coll_trace_form;

/* Times are ticks. A call that was started is under way from begin to end, and the program goes on at `returned`; end
 * is 0 until it is known. Names, places in the program and communicators are numbers that whoever records gives out. */
typedef struct {
    uint64_t begin, returned, end;
    uint64_t bytes, number;
    int32_t site, root;
    uint32_t comm;
    uint16_t name;
    uint8_t collective, form, thread, failed;
} coll_trace_event;

/* The same moment by both clocks. */
typedef struct {
    uint64_t ticks, ns;
} coll_trace_moment;

enum { COLL_TRACE_MOMENTS = 4096 };

typedef struct {
    coll_trace_event *events;
    size_t count, most, dropped; /* when the memory is full, what is newer is dropped */
    coll_trace_moment *moments;  /* ticks beside CLOCK_MONOTONIC, now and then */
    size_t nmoments;
    uint64_t interval, due; /* ticks */
} coll_trace;

/* Room for `most` events; pages are the system's until they are written. 0, or -1 without memory. */
int coll_trace_init(coll_trace *, size_t most);
void coll_trace_free(coll_trace *);
/* Note the present moment; when the room for moments is full, every second one goes and they become rarer. */
void coll_trace_note(coll_trace *);
/* A small number for the calling thread, in the order in which threads first asked; the last one is for all others. */
uint8_t coll_trace_thread(void);

/* A new event with its thread set, all else zero; NULL when there is no room. `now` decides whether a moment is due.
 * Callers exclude each other. */
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
