/* Which elements each rank takes from each other rank, in each collective of pull.c. */
#ifndef COLL_NODE_BLOCKS_H
#define COLL_NODE_BLOCKS_H

#include "internal.h"

/* Whether the collective reduces. */
static inline int folds(const coll_node_call *c) {
    switch (c->message.kind) {
    case COLL_NODE_REDUCE:
    case COLL_NODE_REDUCE_SCATTER:
    case COLL_NODE_SCAN:
    case COLL_NODE_EXSCAN:
        return 1;
    default:
        return 0;
    }
}

/* Whether a rank publishes different data for each receiver. */
static inline int per_receiver(const coll_node_call *c) {
    switch (c->message.kind) {
    case COLL_NODE_REDUCE_SCATTER:
    case COLL_NODE_SCATTER:
    case COLL_NODE_ALLTOALL:
        return 1;
    default:
        return 0;
    }
}

/* Whether rank d takes data from rank q. */
static inline int takes(const coll_node_call *c, int q, int d) {
    if (q == d)
        return 0;
    switch (c->message.kind) {
    case COLL_NODE_BCAST:
    case COLL_NODE_SCATTER:
        return q == c->message.root;
    case COLL_NODE_REDUCE:
    case COLL_NODE_GATHER:
        return d == c->message.root;
    case COLL_NODE_SCAN:
    case COLL_NODE_EXSCAN:
        return d > q;
    default:
        return 1;
    }
}

/* Whether any rank takes data from this rank. */
static inline int publishes(const coll_node_call *c) {
    for (int d = 0; d < c->node->size; d++)
        if (takes(c, c->node->rank, d))
            return 1;
    return 0;
}

/* Number of ranks, from rank 0 on, whose data this rank folds; it may be one of them. */
static inline int operands(const coll_node_call *c) {
    const coll_node *n = c->node;
    switch (c->message.kind) {
    case COLL_NODE_REDUCE:
        return n->rank == c->message.root ? n->size : 0;
    case COLL_NODE_SCAN:
        return n->rank + 1;
    case COLL_NODE_EXSCAN:
        return n->rank;
    default:
        return n->size;
    }
}

/* Block i of the vector: between cuts[i] and cuts[i + 1], or of equal length if `cuts` is NULL. */
static inline range block(const coll_node_call *c, const size_t *cuts, int i) {
    size_t each = c->message.count / (size_t)c->node->size;
    return cuts ? (range){cuts[i], cuts[i + 1] - cuts[i]} : (range){(size_t)i * each, each};
}

/* A block at the place where the caller has put it; without `starts` it is where it was. */
static inline range placed(range at, const size_t *starts, int i) {
    return (range){starts ? starts[i] : at.first, at.count};
}

/* The elements of this rank's input that it publishes for rank d. */
static inline range published(const coll_node_call *c, int d) {
    const coll_node_message *m = &c->message;
    switch (m->kind) {
    case COLL_NODE_ALLGATHER:
    case COLL_NODE_GATHER:
        return (range){0, block(c, m->cuts, c->node->rank).count};
    case COLL_NODE_REDUCE_SCATTER:
    case COLL_NODE_SCATTER:
        return block(c, m->cuts, d);
    case COLL_NODE_ALLTOALL:
        return placed(block(c, m->input_cuts ? m->input_cuts : m->cuts, d), m->input_starts, d);
    default:
        return (range){0, m->count};
    }
}

/* The elements of this rank's output that the data from rank q fill. */
static inline range wanted(const coll_node_call *c, int q) {
    const coll_node_message *m = &c->message;
    switch (m->kind) {
    case COLL_NODE_ALLGATHER:
    case COLL_NODE_GATHER:
        return block(c, m->cuts, q);
    case COLL_NODE_ALLTOALL:
        return placed(block(c, m->cuts, q), m->starts, q);
    case COLL_NODE_REDUCE_SCATTER:
    case COLL_NODE_SCATTER:
        return (range){0, block(c, m->cuts, c->node->rank).count};
    default:
        return (range){0, m->count};
    }
}

/* Whether only the sender knows where a receiver's block begins in its input, and how long it is. */
static inline int needs_table(const coll_node_call *c) {
    return c->message.cuts && (c->message.kind == COLL_NODE_SCATTER || c->message.kind == COLL_NODE_ALLTOALL);
}

/* Whether rank d reads what this rank publishes: one for which the block is empty takes it without a look. */
static inline int reads(const coll_node_call *c, int d) {
    return takes(c, c->node->rank, d) && (!needs_table(c) || published(c, d).count);
}

/* The offset of this rank's input in its heap, or 0 unless all that others read lies there: blocks with places of their
 * own may be parts of several arrays. */
static inline uint64_t input_in_heap(const coll_node_call *c) {
    const coll_node_message *m = &c->message;
    uint64_t offset = offset_in_heap(c->node, m->input);
    for (int d = 0; m->input_starts && offset && d < c->node->size; d++) {
        range s = published(c, d);
        if (reads(c, d) && !offset_in_heap(c->node, (const char *)m->input + (s.first + s.count) * m->itemsize - 1))
            return 0;
    }
    return offset;
}

/* Whether the results would not stay in the cache anyway. */
static inline int past_cache(const coll_node_call *c) {
    return bytes_of(c) >= c->node->limits.stream;
}

/* Whether the input is read in place: on the heap, unless the result overwrites it, or in private memory. */
static inline int stays_put(const coll_node_call *c) {
    if (!c->in_heap)
        return c->in_private;
    return bytes_of(c) > c->node->limits.copy && !(folds(c) && c->message.input == c->message.output);
}

#endif
