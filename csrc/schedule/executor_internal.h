/* The parts of an execution, and functions for the places of blocks in a segment. */
#ifndef COLL_EXECUTOR_INTERNAL_H
#define COLL_EXECUTOR_INTERNAL_H

#include "executor.h"
#include "base/partition.h"

typedef struct {
    size_t first, count; /* the segment in elements of the vector; not used if segments cut blocks */
    int32_t *waits;      /* per action: number of events it waits for; once posted, its messages under way */
    int32_t *left;       /* per round: number of incomplete actions */
    int32_t *ready;      /* stack of actions that may start */
    int nready, open;    /* actions on the stack; all rounds below `open` are complete */
    int segment, tag, busy;
    char *scratch, *slots;
} cursor;

struct coll_exec {
    const coll_program *program;
    coll_endpoint *endpoint;
    coll_message message;
    int blockwise; /* whether segments cut each block */
    const char *input;
    char *vector;
    size_t *cuts; /* copies of those in coll_message, and of the starts, if it has any */
    coll_messages *messages;
    cursor *cursors;
    int *free_slots, nfree, *done, capacity;
    struct {
        int cursor, action;
    } *owner; /* of each message slot; action -1: the slot is free */
    int active, status;
    int stalled; /* whether nothing can be done before a message completes */
    size_t scratch_bytes, slot_bytes, footprint;
    char *spare;
};

/* First element of `block` in the whole vector. */
static inline size_t boundary(const coll_exec *e, int buffer, int block) {
    const size_t *cuts = buffer == COLL_INPUT ? e->message.input_cuts : e->message.cuts;
    return cuts ? cuts[block] : coll_part(e->message.count, (size_t)e->program->layout.nblocks, (size_t)block);
}

/* Where `block` begins, in elements. */
static inline size_t place(const coll_exec *e, int buffer, int block) {
    const size_t *starts = buffer == COLL_INPUT ? e->message.input_starts : e->message.starts;
    return starts ? starts[block] : boundary(e, buffer, block);
}

/* Number of elements of `block` before segment `segment`. */
static inline size_t before(const coll_exec *e, int buffer, int block, int segment) {
    size_t whole = boundary(e, buffer, block + 1) - boundary(e, buffer, block);
    return coll_part(whole, (size_t)e->message.segments, (size_t)segment);
}

/* Where the segment's part of `block` begins, in elements. */
static inline size_t begin(const coll_exec *e, const cursor *c, int buffer, int block) {
    if (e->blockwise)
        return place(e, buffer, block) + before(e, buffer, block, c->segment);
    return c->first + coll_part(c->count, (size_t)e->program->layout.nblocks, (size_t)block);
}

/* First element, in a scratch vector, of the segment's part of `block`; such a vector has room for one segment. */
static inline size_t begin_scratch(const coll_exec *e, const cursor *c, int block) {
    size_t segments = (size_t)e->message.segments;
    if (e->blockwise) /* one more element per block: parts may be longer by one */
        return segments == 1 ? boundary(e, COLL_VECTOR, block)
                             : boundary(e, COLL_VECTOR, block) / segments + (size_t)block;
    return coll_part(c->count, (size_t)e->program->layout.nblocks, (size_t)block);
}

/* Number of elements of the segment's part of `nblocks` blocks; nblocks must be 1 if segments cut blocks. */
static inline size_t extent(const coll_exec *e, const cursor *c, int buffer, int block, int nblocks) {
    if (!e->blockwise)
        return begin(e, c, buffer, block + nblocks) - begin(e, c, buffer, block);
    if (e->message.segments == 1)
        return boundary(e, buffer, block + nblocks) - boundary(e, buffer, block);
    return before(e, buffer, block, c->segment + 1) - before(e, buffer, block, c->segment);
}

/* Number of bytes that an action sends, receives, reduces or copies. */
static inline size_t length(const coll_exec *e, const cursor *c, const coll_action *a) {
    int buffer = a->kind == COLL_SEND ? a->left : a->dst;
    return extent(e, c, buffer, a->block, a->nblocks) * e->message.itemsize;
}

/* Address of the segment's part of `block` in a buffer; a staging slot begins with the first block of its action. */
static inline char *address(const coll_exec *e, const cursor *c, const coll_action *a, int buffer, int block) {
    const coll_layout *l = &e->program->layout;
    if (buffer == COLL_RECEIVED)
        return c->slots + (size_t)a->slot * e->slot_bytes;
    if (buffer >= COLL_SCRATCH)
        return c->scratch + (size_t)(buffer - COLL_SCRATCH) * e->scratch_bytes +
               begin_scratch(e, c, block) * e->message.itemsize;
    int only = buffer == COLL_INPUT ? l->input_block : l->vector_block;
    size_t at = begin(e, c, buffer, block) - (only >= 0 ? place(e, buffer, only) : 0);
    return (buffer == COLL_INPUT ? (char *)e->input : e->vector) + at * e->message.itemsize;
}

/* Number of messages for `bytes` bytes. */
static inline size_t pieces(const coll_exec *e, size_t bytes) {
    size_t limit = e->endpoint->message_limit;
    return bytes / limit + (bytes % limit != 0);
}

#endif
