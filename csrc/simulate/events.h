/* Events in order of time: a binary heap. Events of one time come in the order in which they were pushed. */
#ifndef COLL_SIMULATE_EVENTS_H
#define COLL_SIMULATE_EVENTS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    double time;    /* when the first byte of the message reaches the port, or when something has ended */
    double end;     /* when its last byte left the port before */
    int64_t number; /* of the event */
    int64_t message;
    int32_t segment;
    int32_t hop; /* the number of the port on the way; below 0: what has ended */
} coll_sim_event;

typedef struct {
    coll_sim_event *events;
    size_t count, room;
    int64_t pushed;
} coll_sim_heap;

/* Returns -1 without memory. */
int coll_sim_push(coll_sim_heap *heap, coll_sim_event event);

/* The earliest event, removed; the heap must not be empty. */
coll_sim_event coll_sim_pop(coll_sim_heap *heap);

#endif
