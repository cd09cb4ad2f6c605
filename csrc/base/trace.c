#include "trace.h"

#include <stdatomic.h>
#include <stdlib.h>

int coll_trace_init(coll_trace *t, size_t most) {
    *t = (coll_trace){.most = most, .interval = (uint64_t)(1.0 / coll_ticks_to_seconds(1))};
    t->events = calloc(most, sizeof *t->events);
    t->moments = malloc(COLL_TRACE_MOMENTS * sizeof *t->moments);
    if (!t->events || !t->moments) {
        coll_trace_free(t);
        return -1;
    }
    coll_trace_note(t);
    while ((uint64_t)coll_now() - t->moments[0].ns < 2000000) /* until the counter's speed is known to about 0.01 % */
        coll_pause();
    coll_trace_note(t);
    return 0;
}

void coll_trace_free(coll_trace *t) {
    free(t->events);
    free(t->moments);
    t->events = NULL;
    t->moments = NULL;
}

void coll_trace_note(coll_trace *t) {
    if (t->nmoments == COLL_TRACE_MOMENTS) {
        for (size_t i = 1; 2 * i < COLL_TRACE_MOMENTS; i++)
            t->moments[i] = t->moments[2 * i];
        t->nmoments /= 2;
        t->interval *= 2;
    }
    coll_moment now = coll_present();
    t->moments[t->nmoments++] = now;
    t->due = now.ticks + t->interval;
}

uint8_t coll_trace_thread(void) {
    static _Atomic int threads;
    static _Thread_local int mine;
    if (mine == 0)
        mine = 1 + atomic_fetch_add(&threads, 1);
    return mine <= UINT8_MAX ? (uint8_t)(mine - 1) : UINT8_MAX;
}
