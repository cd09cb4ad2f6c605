/* The executor: a dependency counter per action, a stack of ready ones, and the transport's completions. */
#include "executor.h"
#include "error.h"
#include "partition.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SLOT_BYTES = 64 }; /* what a transport keeps for a message, about */

typedef struct {
    size_t first, count; /* the segment: elements of the vector */
    int32_t *waits;      /* per action: what must still happen */
    int32_t *left;       /* per round: actions not done */
    int32_t *ready;      /* stack of actions that may start */
    int nready, open;    /* rounds below open are complete */
    int segment, tag, busy;
    char *scratch, *slots;
} cursor;

struct coll_exec {
    const coll_program *program;
    coll_endpoint *endpoint;
    coll_message message;
    const char *input;
    char *vector;
    coll_messages *messages;
    cursor *cursors;
    int *free_slots, nfree, *done, capacity;
    struct {
        int cursor, action;
    } *owner; /* of each message slot */
    int active, status;
    size_t scratch_bytes, slot_bytes, footprint;
    char *spare;
};

static size_t offset(const coll_exec *e, const cursor *c, int block) {
    return coll_part(c->count, (size_t)e->program->nblocks, (size_t)block) * e->message.itemsize;
}

static size_t length(const coll_exec *e, const cursor *c, const coll_action *a) {
    return offset(e, c, a->block + a->nblocks) - offset(e, c, a->block);
}

/* Where `block` of a buffer lies; a staging slot begins with the first block of its action. */
static char *address(const coll_exec *e, const cursor *c, const coll_action *a, int buffer, int block) {
    if (buffer == COLL_RECEIVED)
        return c->slots + (size_t)a->slot * e->slot_bytes;
    size_t at = offset(e, c, block);
    if (buffer == COLL_INPUT)
        return (char *)e->input + c->first * e->message.itemsize + at;
    if (buffer == COLL_VECTOR)
        return e->vector + c->first * e->message.itemsize + at;
    return c->scratch + (size_t)(buffer - COLL_SCRATCH) * e->scratch_bytes + at;
}

static void release(const coll_exec *e, cursor *c, int from, int to) {
    for (int i = from; i < to; i++) {
        int action = e->program->edges[i];
        if (--c->waits[action] == 0)
            c->ready[c->nready++] = action;
    }
}

static void open_rounds(const coll_exec *e, cursor *c) {
    const coll_program *p = e->program;
    while (c->open < p->nrounds && c->left[c->open] == 0) {
        int opened = c->open++ + COLL_WINDOW;
        if (opened < p->nrounds)
            for (int i = p->round_first[opened]; i < p->round_first[opened + 1]; i++)
                if (--c->waits[i] == 0)
                    c->ready[c->nready++] = i;
    }
}

static void finished(const coll_exec *e, cursor *c, int action) {
    const coll_action *a = &e->program->actions[action];
    release(e, c, a->on_done, a[1].on_start);
    if (--c->left[a->round] == 0)
        open_rounds(e, c);
}

static int post(coll_exec *e, cursor *c, int action) {
    const coll_action *a = &e->program->actions[action];
    size_t bytes = length(e, c, a);
    int error = COLL_OK;
    if (bytes) { /* both sides know the partition, so both leave an empty message out */
        int slot = e->free_slots[--e->nfree];
        e->owner[slot].cursor = (int)(c - e->cursors);
        e->owner[slot].action = action;
        const coll_transport *t = e->endpoint->transport;
        if (a->kind == COLL_SEND)
            error = t->send(e->messages, slot, address(e, c, a, a->left, a->block), bytes, a->peer, c->tag);
        else
            error = t->recv(e->messages, slot, address(e, c, a, a->dst, a->block), bytes, a->peer, c->tag);
    }
    release(e, c, a->on_start, a->on_done);
    if (!bytes)
        finished(e, c, action);
    return error;
}

static int work(coll_exec *e, cursor *c, int action) {
    const coll_action *a = &e->program->actions[action];
    size_t bytes = length(e, c, a);
    char *dst = address(e, c, a, a->dst, a->block);
    const char *left = address(e, c, a, a->left, a->kind == COLL_COPY ? a->src_block : a->block);
    int error = COLL_OK;
    if (a->kind == COLL_COPY) {
        if (offset(e, c, a->src_block + a->nblocks) - offset(e, c, a->src_block) != bytes)
            error = COLL_ERR_SCHEDULE; /* blocks of different lengths cannot stand for each other */
        else if (bytes && dst != left)
            memmove(dst, left, bytes);
    } else if (bytes) {
        const char *right = address(e, c, a, a->right, a->block);
        size_t n = bytes / e->message.itemsize;
        if (e->message.reduce)
            e->message.reduce(dst, left, right, n);
        else
            error = e->message.user_op(e->message.user_context, dst, left, right, e->spare, n);
    }
    finished(e, c, action);
    return error;
}

static int begin_segment(coll_exec *e, cursor *c) {
    const coll_program *p = e->program;
    size_t segments = (size_t)e->message.segments;
    c->busy = c->segment < e->message.segments;
    if (!c->busy)
        return 0;
    c->first = coll_part(e->message.count, segments, (size_t)c->segment);
    c->count = coll_part(e->message.count, segments, (size_t)c->segment + 1) - c->first;
    c->nready = c->open = 0;
    for (int i = p->nactions; i-- > 0;)
        if ((c->waits[i] = p->actions[i].waits) == 0)
            c->ready[c->nready++] = i;
    for (int r = 0; r < p->nrounds; r++)
        c->left[r] = p->round_first[r + 1] - p->round_first[r];
    return 1;
}

static void end_segment(coll_exec *e, cursor *c) {
    if (e->message.scale) {
        char *at = e->vector + c->first * e->message.itemsize;
        e->message.scale(at, at, e->endpoint->size, c->count);
    }
    c->segment += e->message.depth;
    e->active -= !begin_segment(e, c);
}

/* Start what is ready, up to the budget; messages go first out, since the stack holds them in reverse order. */
static int advance(coll_exec *e, cursor *c, size_t *budget) {
    const coll_program *p = e->program;
    while (c->busy && *budget) {
        if (c->nready == 0) {
            if (c->open < p->nrounds)
                return COLL_OK;
            end_segment(e, c);
            continue;
        }
        int action = c->ready[--c->nready], error;
        const coll_action *a = &p->actions[action];
        if (a->kind == COLL_SEND || a->kind == COLL_RECV) {
            error = post(e, c, action);
        } else {
            size_t bytes = length(e, c, a);
            error = work(e, c, action);
            *budget -= bytes < *budget ? bytes : *budget;
        }
        if (error)
            return error;
    }
    return COLL_OK;
}

int coll_exec_start(coll_exec *e, const void *input, void *vector, int tag) {
    if (e->active || e->status < 0 || tag < 0 || tag > e->endpoint->tag_limit - e->message.depth)
        return COLL_ERR_ARGUMENT;
    e->input = input;
    e->vector = vector;
    for (int i = 0; i < e->message.depth; i++) {
        e->cursors[i].segment = i;
        e->cursors[i].tag = tag + i;
        e->active += begin_segment(e, &e->cursors[i]);
    }
    e->status = COLL_PENDING;
    return COLL_OK;
}

static int collect(coll_exec *e) {
    int n = e->nfree == e->capacity ? 0 : e->endpoint->transport->test(e->messages, e->done);
    for (int i = 0; i < n; i++) {
        int slot = e->done[i];
        e->free_slots[e->nfree++] = slot;
        finished(e, &e->cursors[e->owner[slot].cursor], e->owner[slot].action);
    }
    return n < 0 ? n : COLL_OK;
}

int coll_exec_progress(coll_exec *e, size_t budget) {
    if (e->status != COLL_PENDING)
        return e->status;
    budget += budget == 0;
    int error = collect(e);
    for (int i = 0; i < e->message.depth && error == COLL_OK; i++)
        error = advance(e, &e->cursors[i], &budget);
    if (error < 0)
        e->status = error;
    else if (e->active == 0)
        e->status = COLL_OK;
    return e->status;
}

int coll_exec_waiting(const coll_exec *e, int *peers, int max) {
    int n = 0;
    for (int slot = 0; slot < e->capacity && n < max; slot++) {
        int idle = 0, known = 0;
        for (int i = 0; i < e->nfree; i++)
            idle |= e->free_slots[i] == slot;
        int peer = idle ? -1 : e->program->actions[e->owner[slot].action].peer;
        for (int i = 0; i < n; i++)
            known |= peers[i] == peer;
        if (!idle && !known)
            peers[n++] = peer;
    }
    return n;
}

int coll_exec_busy(const coll_exec *e) {
    return e->active > 0;
}

size_t coll_exec_footprint(const coll_exec *e) {
    return e->footprint;
}

/* Bytes of the longest action that is staged, and of the longest message at all, in the first (longest) segment. */
static void measure(coll_exec *e, size_t *staged, size_t *longest) {
    cursor first = {.count = coll_part(e->message.count, (size_t)e->message.segments, 1)};
    *staged = *longest = 0;
    for (int i = 0; i < e->program->nactions; i++) {
        const coll_action *a = &e->program->actions[i];
        size_t bytes = length(e, &first, a);
        if (a->slot >= 0 && bytes > *staged)
            *staged = bytes;
        if ((a->kind == COLL_SEND || a->kind == COLL_RECV) && bytes > *longest)
            *longest = bytes;
    }
}

static size_t lines(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* a * b + c, or more than there is. */
static size_t total(size_t a, size_t b, size_t c) {
    size_t sum;
    return __builtin_mul_overflow(a, b, &sum) || __builtin_add_overflow(sum, c, &sum) ? SIZE_MAX / 2 : sum;
}

static int allocate_cursors(coll_exec *e) {
    const coll_program *p = e->program;
    size_t depth = (size_t)e->message.depth, tables = 2 * (size_t)p->nactions + (size_t)p->nrounds + 1;
    size_t segment = lines(coll_part(e->message.count, (size_t)e->message.segments, 1) * e->message.itemsize);
    size_t each = total((size_t)p->nscratch, segment, total((size_t)p->nslots, e->slot_bytes, 0));
    size_t spare = e->message.reduce ? 0 : segment, scratch = total(depth, each, spare);
    e->scratch_bytes = segment;
    e->footprint = scratch + depth * (sizeof *e->cursors + tables * sizeof(int32_t));
    e->cursors = scratch < SIZE_MAX / 2 ? calloc(depth, sizeof *e->cursors) : NULL;
    e->spare = e->cursors ? aligned_alloc(64, lines(scratch) + 64) : NULL;
    if (!e->spare)
        return 0;
    for (size_t i = 0; i < depth; i++) {
        cursor *c = &e->cursors[i];
        c->scratch = e->spare + spare + i * each;
        c->slots = c->scratch + (size_t)p->nscratch * segment;
        c->waits = calloc(tables, sizeof *c->waits);
        if (!c->waits)
            return 0;
        c->ready = c->waits + p->nactions;
        c->left = c->ready + p->nactions;
    }
    return 1;
}

static int allocate_messages(coll_exec *e) {
    if (e->program->max_messages > (INT_MAX - 1) / e->message.depth)
        return 0;
    e->capacity = e->program->max_messages * e->message.depth + 1;
    e->footprint += (size_t)e->capacity * (2 * sizeof *e->free_slots + sizeof *e->owner + SLOT_BYTES);
    e->messages = e->endpoint->transport->messages_new(e->endpoint, e->capacity);
    e->free_slots = calloc(2 * (size_t)e->capacity, sizeof *e->free_slots);
    e->owner = calloc((size_t)e->capacity, sizeof *e->owner);
    if (!e->messages || !e->free_slots || !e->owner)
        return 0;
    e->done = e->free_slots + e->capacity;
    for (int i = e->capacity; i-- > 0;)
        e->free_slots[e->nfree++] = i;
    return 1;
}

coll_exec *coll_exec_new(const coll_program *p, coll_endpoint *endpoint, const coll_message *m, int *error) {
    *error = COLL_ERR_ARGUMENT;
    if (m->segments < 1 || m->depth < 1 || m->itemsize < 1 || (!m->reduce && !m->user_op))
        return NULL;
    if (m->count > PTRDIFF_MAX / m->itemsize) /* no array is longer, so that products of offsets cannot overflow */
        return NULL;
    *error = COLL_ERR_MEMORY;
    coll_exec *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->program = p;
    e->endpoint = endpoint;
    e->message = *m;
    if (e->message.depth > m->segments)
        e->message.depth = m->segments;
    size_t longest;
    measure(e, &e->slot_bytes, &longest);
    e->slot_bytes = lines(e->slot_bytes);
    if (longest > endpoint->message_limit)
        *error = COLL_ERR_ARGUMENT;
    else if (allocate_cursors(e) && allocate_messages(e)) {
        *error = COLL_OK;
        return e;
    }
    coll_exec_free(e);
    return NULL;
}

void coll_exec_free(coll_exec *e) {
    if (!e)
        return;
    if (e->messages)
        e->endpoint->transport->messages_free(e->messages);
    for (int i = 0; e->cursors && i < e->message.depth; i++)
        free(e->cursors[i].waits);
    free(e->cursors);
    free(e->free_slots);
    free(e->owner);
    free(e->spare);
    free(e);
}
