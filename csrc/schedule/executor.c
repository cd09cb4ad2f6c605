/* The executor: a counter of dependencies per action, a stack of ready actions, and completions of messages. */
#include "base/error.h"
#include "base/moves.h"
#include "executor_internal.h"

#include <stdlib.h>
#include <string.h>

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

/* `met`: the send waits for the receiver. The first piece does so, of the first segment's messages that are cut: MPI
 * sends pieces at once, and a late receiver would have to keep those of any number of calls. */
static int post_piece(coll_exec *e, cursor *c, int action, char *at, size_t bytes, int met) {
    const coll_action *a = &e->program->actions[action];
    const coll_transport *t = e->endpoint->transport;
    int slot = e->free_slots[--e->nfree];
    e->owner[slot].cursor = (int)(c - e->cursors);
    e->owner[slot].action = action;
    if (a->kind == COLL_RECV)
        return t->recv(e->messages, slot, at, bytes, a->peer, c->tag);
    return (met ? t->send_met : t->send)(e->messages, slot, at, bytes, a->peer, c->tag);
}

static int post(coll_exec *e, cursor *c, int action) {
    const coll_action *a = &e->program->actions[action];
    size_t bytes = length(e, c, a), limit = e->endpoint->message_limit;
    char *at = address(e, c, a, a->kind == COLL_SEND ? a->left : a->dst, a->block);
    int error = COLL_OK, met = bytes > limit && c->segment == 0;
    int empty = bytes == 0; /* both sides know the partition, so both omit an empty message */
    c->waits[action] = (int32_t)pieces(e, bytes);
    for (; bytes && error == COLL_OK; at += limit, met = 0) {
        size_t piece = bytes < limit ? bytes : limit;
        error = post_piece(e, c, action, at, piece, met);
        bytes -= piece;
    }
    release(e, c, a->on_start, a->on_done);
    if (empty)
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
        if (extent(e, c, a->left, a->src_block, a->nblocks) * e->message.itemsize != bytes)
            error = COLL_ERR_MESSAGE; /* a block cannot be copied to one of another length */
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

/* The division of AVG, on the segment's part of the result that this rank has. */
static void scale_result(const coll_exec *e, const cursor *c) {
    const coll_layout *l = &e->program->layout;
    const coll_action whole = {0};
    int first = l->vector_block >= 0 ? l->vector_block : 0;
    int end = l->vector_block >= 0 ? first + 1 : l->vector_block == COLL_NONE ? 0 : l->nblocks;
    for (int block = first; block < end; block++) {
        char *at = address(e, c, &whole, COLL_VECTOR, block);
        e->message.scale(at, at, e->endpoint->size, extent(e, c, COLL_VECTOR, block, 1));
    }
}

static void end_segment(coll_exec *e, cursor *c) {
    if (e->message.scale)
        scale_result(e, c);
    c->segment += e->message.depth;
    e->active -= !begin_segment(e, c);
}

/* Start ready actions, up to the budget. Messages go first, since the stack holds actions in reverse order. */
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
    e->stalled = 0;
    return COLL_OK;
}

/* The number of messages that have completed, or an error. */
static int collect(coll_exec *e) {
    int n = e->nfree == e->capacity ? 0 : e->endpoint->transport->test(e->messages, e->done);
    for (int i = 0; i < n; i++) {
        int slot = e->done[i], action = e->owner[slot].action;
        cursor *c = &e->cursors[e->owner[slot].cursor];
        e->free_slots[e->nfree++] = slot;
        e->owner[slot].action = -1;
        if (--c->waits[action] == 0)
            finished(e, c, action);
    }
    if (n > 0)
        coll_moves += (unsigned)n;
    return n;
}

int coll_exec_progress(coll_exec *e, size_t budget) {
    if (e->status != COLL_PENDING)
        return e->status;
    budget += budget == 0;
    int n = collect(e), error = n < 0 ? n : COLL_OK;
    if (n == 0 && e->stalled)
        return COLL_PENDING;
    for (int i = 0; i < e->message.depth && error == COLL_OK; i++)
        error = advance(e, &e->cursors[i], &budget);
    e->stalled = budget > 0;
    if (error < 0)
        e->status = error;
    else if (e->active == 0)
        e->status = COLL_OK;
    return e->status;
}

int coll_exec_waiting(const coll_exec *e, int *peers, int max) {
    char *named = calloc((size_t)e->program->layout.size, 1);
    int n = 0;
    for (int slot = 0; named && slot < e->capacity && n < max; slot++) {
        int action = e->owner[slot].action, peer = action < 0 ? 0 : e->program->actions[action].peer;
        if (action < 0 || named[peer])
            continue;
        named[peer] = 1;
        peers[n++] = peer;
    }
    free(named);
    return n;
}

int coll_exec_busy(const coll_exec *e) {
    return e->active > 0;
}

int coll_exec_gives_way(const coll_exec *e) {
    return e->endpoint->gives_way;
}

int coll_exec_abandon(coll_exec *e) {
    if (!e->active)
        return 0;
    e->status = COLL_ERR_GIVEN_UP;
    return e->endpoint->transport->cancel(e->messages);
}

size_t coll_exec_footprint(const coll_exec *e) {
    return e->footprint;
}
