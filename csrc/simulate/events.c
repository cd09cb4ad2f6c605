/* A binary heap of events. */
#include "simulate/events.h"

#include <stdlib.h>

static int before(const coll_sim_event *a, const coll_sim_event *b) {
    return a->time < b->time || (a->time == b->time && a->number < b->number);
}

int coll_sim_push(coll_sim_heap *heap, coll_sim_event event) {
    if (heap->count == heap->room) {
        size_t room = heap->room ? 2 * heap->room : 1024;
        coll_sim_event *events = realloc(heap->events, room * sizeof *events);
        if (!events)
            return -1;
        heap->events = events;
        heap->room = room;
    }
    event.number = heap->pushed++;
    size_t at = heap->count++;
    while (at && before(&event, &heap->events[(at - 1) / 2])) {
        heap->events[at] = heap->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->events[at] = event;
    return 0;
}

coll_sim_event coll_sim_pop(coll_sim_heap *heap) {
    coll_sim_event *events = heap->events, first = events[0], last = events[--heap->count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < heap->count) {
        child += child + 1 < heap->count && before(&events[child + 1], &events[child]);
        if (!before(&events[child], &last))
            break;
        events[at] = events[child];
        at = child;
    }
    events[at] = last;
    return first;
}
