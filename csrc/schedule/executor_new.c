/* Makes executions: checks the arguments and allocates all memory that a run needs. */
#include "base/error.h"
#include "executor_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SLOT_BYTES = 64 }; /* approximate memory of a transport for one message */

/* The first segment, which is the longest. */
static cursor first_segment(const coll_exec *e) {
    return (cursor){.count = coll_part(e->message.count, (size_t)e->message.segments, 1)};
}

/* Bytes of the longest receive that is staged. */
static size_t longest_staged(const coll_exec *e) {
    cursor first = first_segment(e);
    size_t most = 0;
    for (int i = 0; i < e->program->nactions; i++) {
        const coll_action *a = &e->program->actions[i];
        size_t bytes = a->slot >= 0 ? length(e, &first, a) : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* The most messages of one cursor that can be under way at once: those of a window of rounds. */
static size_t most_messages(const coll_exec *e) {
    const coll_program *p = e->program;
    cursor first = first_segment(e);
    size_t most = 0;
    for (int r = 0; r < p->nrounds; r++) {
        size_t n = 0;
        int end = r + COLL_WINDOW < p->nrounds ? p->round_first[r + COLL_WINDOW] : p->nactions;
        for (int i = p->round_first[r]; i < end; i++) {
            const coll_action *a = &p->actions[i];
            n += a->kind == COLL_SEND || a->kind == COLL_RECV ? pieces(e, length(e, &first, a)) : 0;
        }
        most = n > most ? n : most;
    }
    return most;
}

static size_t lines(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* a * b + c, or a number larger than any memory on overflow. */
static size_t total(size_t a, size_t b, size_t c) {
    size_t sum;
    return __builtin_mul_overflow(a, b, &sum) || __builtin_add_overflow(sum, c, &sum) ? SIZE_MAX / 2 : sum;
}

/* Number of elements of a vector with room for one segment. */
static size_t segment_room(const coll_exec *e) {
    cursor first = first_segment(e);
    return e->blockwise ? begin_scratch(e, &first, e->program->layout.nblocks) : first.count;
}

static int allocate_cursors(coll_exec *e) {
    const coll_program *p = e->program;
    size_t depth = (size_t)e->message.depth, tables = 2 * (size_t)p->nactions + (size_t)p->nrounds + 1;
    size_t segment = lines(segment_room(e) * e->message.itemsize);
    size_t each = total((size_t)p->layout.nscratch, segment, total((size_t)p->nslots, e->slot_bytes, 0));
    size_t spare = e->message.user_op ? segment : 0, scratch = total(depth, each, spare);
    e->scratch_bytes = segment;
    e->footprint += scratch + depth * (sizeof *e->cursors + tables * sizeof(int32_t));
    e->cursors = scratch < SIZE_MAX / 2 ? calloc(depth, sizeof *e->cursors) : NULL;
    e->spare = e->cursors ? aligned_alloc(64, lines(scratch) + 64) : NULL;
    if (!e->spare)
        return 0;
    for (size_t i = 0; i < depth; i++) {
        cursor *c = &e->cursors[i];
        c->scratch = e->spare + spare + i * each;
        c->slots = c->scratch + (size_t)p->layout.nscratch * segment;
        c->waits = calloc(tables, sizeof *c->waits);
        if (!c->waits)
            return 0;
        c->ready = c->waits + p->nactions;
        c->left = c->ready + p->nactions;
    }
    return 1;
}

static int allocate_messages(coll_exec *e) {
    size_t messages = most_messages(e);
    if (messages > (size_t)(INT_MAX - 1) / (size_t)e->message.depth)
        return 0;
    e->capacity = (int)messages * e->message.depth + 1;
    e->footprint += (size_t)e->capacity * (2 * sizeof *e->free_slots + sizeof *e->owner + SLOT_BYTES);
    e->messages = e->endpoint->transport->messages_new(e->endpoint, e->capacity);
    e->free_slots = calloc(2 * (size_t)e->capacity, sizeof *e->free_slots);
    e->owner = calloc((size_t)e->capacity, sizeof *e->owner);
    if (!e->messages || !e->free_slots || !e->owner)
        return 0;
    e->done = e->free_slots + e->capacity;
    for (int i = e->capacity; i-- > 0;) {
        e->free_slots[e->nfree++] = i;
        e->owner[i].action = -1;
    }
    return 1;
}

/* Whether byte offsets in a vector of `elements`, and in scratch with one more per block, fit in ptrdiff_t. */
static int addressable(size_t elements, int nblocks, size_t itemsize) {
    size_t most = PTRDIFF_MAX / itemsize;
    return most >= (size_t)nblocks && elements <= most - (size_t)nblocks;
}

static int cuts_ok(const size_t *cuts, int nblocks, size_t itemsize) {
    for (int i = 0; cuts && i < nblocks; i++)
        if (cuts[i] > cuts[i + 1])
            return 0;
    return !cuts || addressable(cuts[nblocks], nblocks, itemsize);
}

/* Blocks that may lie anywhere must be given, and steps have one of them. */
static int starts_ok(const coll_program *p, const size_t *starts, const size_t *cuts, size_t itemsize) {
    if (!starts)
        return 1;
    for (int i = 0; cuts && p->single && i < p->layout.nblocks; i++)
        if (starts[i] > PTRDIFF_MAX / itemsize - (cuts[i + 1] - cuts[i]))
            return 0;
    return cuts && p->single;
}

/* Operands must be as long as the result: INPUT is reduced only if its blocks are cut like those of VECTOR. */
static int can_reduce(const coll_program *p, const coll_message *m, const coll_action *a) {
    if (!m->reduce && !m->user_op)
        return 0;
    if (!m->input_cuts || (a->left != COLL_INPUT && a->right != COLL_INPUT))
        return 1;
    return m->cuts && !memcmp(m->cuts, m->input_cuts, ((size_t)p->layout.nblocks + 1) * sizeof *m->cuts);
}

static int message_ok(const coll_program *p, const coll_message *m) {
    if (m->segments < 1 || m->segments > INT_MAX / 2 || m->depth < 1 || m->itemsize < 1)
        return 0;
    if (!addressable(m->count, p->layout.nblocks, m->itemsize))
        return 0;
    for (int i = 0; i < p->nactions; i++)
        if (p->actions[i].kind == COLL_REDUCE && !can_reduce(p, m, &p->actions[i]))
            return 0;
    int blockwise = p->layout.blockwise || m->cuts || m->input_cuts;
    if (m->segments > 1 && !p->single && blockwise)
        return 0; /* a segment's parts of several blocks are not adjacent */
    if (m->segments > 1 && !blockwise && (p->layout.input_block >= 0 || p->layout.vector_block >= 0))
        return 0; /* the rank has one block, which a segment of the vector does not cut */
    const size_t *input_cuts = m->input_cuts ? m->input_cuts : m->cuts;
    return cuts_ok(m->cuts, p->layout.nblocks, m->itemsize) && cuts_ok(input_cuts, p->layout.nblocks, m->itemsize) &&
           starts_ok(p, m->starts, m->cuts, m->itemsize) && starts_ok(p, m->input_starts, input_cuts, m->itemsize);
}

static size_t *copy(size_t *to, const size_t *from, size_t n) {
    return from ? memcpy(to, from, n * sizeof *from) : NULL;
}

/* INPUT is cut like VECTOR unless the message has input_cuts. */
static int keep_cuts(coll_exec *e) {
    size_t n = (size_t)e->program->layout.nblocks + 1;
    coll_message *m = &e->message;
    e->blockwise = e->program->layout.blockwise || m->cuts || m->input_cuts;
    if (!m->cuts && !m->input_cuts)
        return 1;
    size_t tables = m->starts || m->input_starts ? 4 : 2;
    e->cuts = calloc(tables * n, sizeof *e->cuts);
    if (!e->cuts)
        return 0;
    e->footprint += tables * n * sizeof *e->cuts;
    m->cuts = copy(e->cuts, m->cuts, n);
    m->input_cuts = m->input_cuts ? copy(e->cuts + n, m->input_cuts, n) : m->cuts;
    m->starts = copy(e->cuts + 2 * n, m->starts, n - 1);
    m->input_starts = copy(e->cuts + 3 * n, m->input_starts, n - 1);
    return 1;
}

coll_exec *coll_exec_new(const coll_program *p, coll_endpoint *endpoint, const coll_message *m, int *error) {
    *error = COLL_ERR_ARGUMENT;
    if (p->layout.size != endpoint->size || !message_ok(p, m))
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
    if (keep_cuts(e)) {
        e->slot_bytes = lines(longest_staged(e));
        if (allocate_cursors(e) && allocate_messages(e)) {
            *error = COLL_OK;
            return e;
        }
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
    free(e->cuts);
    free(e);
}
