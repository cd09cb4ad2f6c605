#include "hierarchy.h"
#include "base/error.h"
#include "base/ticks.h"

#include <stdlib.h>
#include <string.h>

enum { WAITING, RUNNING, ENDED }; /* states of a part */
enum { AHEAD = 16 };              /* the least number of parts that are looked at, see distance() */

struct coll_hierarchy {
    coll_hierarchy_part *parts;
    char *state;
    coll_node_job *jobs; /* one per part; used by parts of the node */
    const int *ranks;
    coll_node *channels[COLL_HIERARCHY_CHANNELS];
    char *at[COLL_PLACES];
    int n, first, ahead, tag, status; /* all parts before `first` have ended; `ahead` from there on are looked at */
};

static int part_ok(const coll_hierarchy_part *p, int i, int with_node) {
    if (p->after >= i)
        return 0;
    if (p->message)
        return with_node && p->tag < COLL_HIERARCHY_CHANNELS;
    return (p->run || p->matrix.rows) && p->tag < COLL_HIERARCHY_RUNS;
}

/* The most parts from one run to the next. So many for each run that may be under way are looked at: a call on many
 * nodes has many parts of the node in each segment. */
static int distance(const coll_hierarchy_part *parts, int n) {
    int most = 0;
    for (int i = 0, last = -1; i < n; i++)
        if (parts[i].run) {
            most = i - last > most ? i - last : most;
            last = i;
        }
    return most;
}

coll_hierarchy *coll_hierarchy_new(const coll_hierarchy_part *parts, int n, coll_node *const *channels,
                                   const int *ranks, void *scratch) {
    for (int i = 0; i < n; i++)
        if (!part_ok(&parts[i], i, channels != NULL))
            return NULL;
    coll_hierarchy *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->n = n;
    h->ahead = distance(parts, n) * COLL_HIERARCHY_RUNS;
    h->ahead = h->ahead > AHEAD ? h->ahead : AHEAD;
    for (int i = 0; i < COLL_HIERARCHY_CHANNELS; i++)
        h->channels[i] = channels ? channels[i] : NULL;
    h->ranks = ranks;
    h->at[COLL_AT_SCRATCH] = scratch;
    h->parts = malloc((size_t)n * sizeof *h->parts + 1);
    h->state = malloc((size_t)n + 1);
    h->jobs = calloc((size_t)n + 1, sizeof *h->jobs);
    if (!h->parts || !h->state || !h->jobs) {
        coll_hierarchy_free(h);
        return NULL;
    }
    memcpy(h->parts, parts, (size_t)n * sizeof *parts);
    return h;
}

void coll_hierarchy_free(coll_hierarchy *h) {
    if (!h)
        return;
    free(h->parts);
    free(h->state);
    free(h->jobs);
    free(h);
}

void coll_hierarchy_set_mpi(coll_hierarchy *h, const coll_mpi_api *mpi, coll_endpoint *endpoint) {
    for (int i = 0; i < h->n; i++)
        h->jobs[i].mpi = mpi, h->jobs[i].endpoint = endpoint;
}

int coll_hierarchy_busy(const coll_hierarchy *h) {
    return h->status != COLL_OK;
}

/* The address at a byte of a place; NULL if the rank has no such memory. */
static char *address(const coll_hierarchy *h, int place, size_t byte) {
    return h->at[place] ? h->at[place] + byte : NULL;
}

static char *from(const coll_hierarchy *h, const coll_hierarchy_part *p) {
    return address(h, p->source, p->source_at);
}

static char *to(const coll_hierarchy *h, const coll_hierarchy_part *p) {
    return address(h, p->target, p->target_at);
}

int coll_hierarchy_start(coll_hierarchy *h, const void *input, void *vector, int tag) {
    if (h->status != COLL_OK)
        return COLL_ERR_ARGUMENT;
    h->at[COLL_AT_INPUT] = (char *)input;
    h->at[COLL_AT_VECTOR] = vector;
    h->first = 0;
    h->tag = tag;
    for (int i = 0; i < h->n; i++) {
        const coll_hierarchy_part *p = &h->parts[i];
        h->state[i] = WAITING;
        if (!p->message)
            continue;
        coll_node_message m = *p->message;
        m.input = from(h, p);
        m.output = to(h, p);
        coll_node_begin(&h->jobs[i].call, h->channels[p->tag], &m);
    }
    h->status = COLL_PENDING;
    return COLL_OK;
}

static void transpose(const coll_matrix *m, const char *source, char *target) {
    for (size_t column = 0; column < m->columns; column++)
        for (size_t row = 0; row < m->rows; row++, target += m->bytes)
            memcpy(target, source + (row * m->columns + column) * m->bytes, m->bytes);
}

static int go_on(coll_hierarchy *h, int i, size_t budget) {
    const coll_hierarchy_part *p = &h->parts[i];
    if (h->state[i] == WAITING) {
        if (p->after >= 0 && h->state[p->after] != ENDED)
            return COLL_PENDING;
        int error = p->run ? coll_exec_start(p->run, from(h, p), to(h, p), h->tag + p->tag) : COLL_OK;
        if (error)
            return error;
        h->state[i] = RUNNING;
        h->jobs[i].polled = coll_ticks(); /* short waits poll nothing */
    }
    if (p->run)
        return coll_exec_progress(p->run, budget);
    if (!p->message) {
        transpose(&p->matrix, from(h, p), to(h, p));
        return COLL_OK;
    }
    coll_task part = coll_node_task(&h->jobs[i]);
    return part.progress(part.self, budget);
}

static int end_of_view(const coll_hierarchy *h) {
    return h->n - h->first < h->ahead ? h->n : h->first + h->ahead;
}

/* Move every part in view once. One part of each channel is under way at a time, and one run with the same tag, so that
 * their messages match in order. Returns whether a part has ended, or an error. */
static int pass(coll_hierarchy *h, size_t budget) {
    int moved = 0, taken = 0, end = end_of_view(h);
    for (int i = h->first; i < end; i++) {
        const coll_hierarchy_part *p = &h->parts[i];
        int mine = 1 << (p->message ? COLL_HIERARCHY_RUNS + p->tag : p->tag);
        if (h->state[i] == ENDED || taken & mine)
            continue;
        int status = go_on(h, i, budget);
        if (status < 0)
            return status;
        if (status == COLL_OK)
            moved = 1, h->state[i] = ENDED;
        else
            taken |= mine;
    }
    while (h->first < h->n && h->state[h->first] == ENDED)
        h->first++;
    return moved;
}

static int progress(void *self, size_t budget) {
    coll_hierarchy *h = self;
    for (int moved = 1; moved && h->status == COLL_PENDING;) {
        moved = pass(h, budget);
        if (moved < 0)
            h->status = moved;
        else if (h->first == h->n)
            h->status = COLL_OK;
    }
    return h->status;
}

/* Write the ranks that part i waits for, after the n that ranks[max] has already; returns their number with these. */
static int add_waiting(const coll_hierarchy *h, int i, int *ranks, int n, int max) {
    const coll_hierarchy_part *p = &h->parts[i];
    int found = p->run ? coll_exec_waiting(p->run, ranks + n, max - n)
                       : coll_node_waiting(&h->jobs[i].call, ranks + n, max - n);
    int end = n;
    for (int k = n; k < n + found; k++) {
        int rank = p->run ? ranks[k] : h->ranks[ranks[k]], seen = 0;
        for (int other = 0; other < end; other++)
            seen |= ranks[other] == rank;
        if (!seen)
            ranks[end++] = rank;
    }
    return end;
}

static int waiting(const void *self, int *ranks, int max) {
    const coll_hierarchy *h = self;
    int n = 0;
    if (h->status != COLL_PENDING)
        return 0;
    for (int i = h->first; i < end_of_view(h); i++)
        if (h->state[i] == RUNNING)
            n = add_waiting(h, i, ranks, n, max);
    return n;
}

static int abandon(void *self) {
    coll_hierarchy *h = self;
    int left = 0;
    if (h->status == COLL_PENDING)
        h->status = COLL_ERR_GIVEN_UP;
    for (int i = h->first; h->status != COLL_OK && i < end_of_view(h); i++)
        if (h->state[i] == RUNNING && h->parts[i].run)
            left += coll_exec_abandon(h->parts[i].run);
    return left;
}

coll_task coll_hierarchy_task(coll_hierarchy *h) {
    return (coll_task){h, progress, waiting, abandon, 0};
}
