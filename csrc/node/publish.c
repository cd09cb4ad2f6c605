/* Where the data that a rank publishes are, in the collectives of pull.c: in its line, in its staging ring by segments,
 * or where they lie. */
#include "blocks.h"

#include <unistd.h>

enum { SCATTER_PRIVATE = 4 << 20 };

/* Elements of the longest part, and in *total those of all parts. A rank that folds goes through the parts of all ranks
 * at the same pace, so its own block, for which others have a part, counts too. */
static size_t longest_published(const coll_node_call *c, size_t *total) {
    size_t longest = 0;
    *total = 0;
    for (int d = 0; d < c->node->size; d++) {
        size_t count = takes(c, c->node->rank, d) || folds(c) ? published(c, d).count : 0;
        longest = count > longest ? count : longest;
        *total = per_receiver(c) ? *total + count : longest;
    }
    return longest;
}

/* Elements of a part in one segment: whole cache lines if possible, and at least one element, since each part begins on
 * a new line. */
static size_t part_elements(const coll_node_call *c, size_t longest, size_t total) {
    size_t parts = per_receiver(c) ? (size_t)c->node->size : 1, item = c->message.itemsize;
    size_t bytes = coll_node_segment_bytes(c->node, total * item) / parts / LINE * LINE;
    bytes = bytes ? bytes : LINE;
    size_t most = bytes > item ? bytes / item : 1;
    return longest < most ? longest : most;
}

/* Least bytes of a block for which one copy by the system, from private memory, is faster than two that overlap. */
static size_t private_from(const coll_node_call *c) {
    size_t limit = c->node->limits.private;
    switch (c->message.kind) {
    case COLL_NODE_SCATTER: /* the root would make all these copies, besides that of its own block */
        return limit < SCATTER_PRIVATE ? limit : SCATTER_PRIVATE;
    case COLL_NODE_GATHER: /* every copy delays the root, which can store staged data past its cache */
        return past_cache(c) ? SIZE_MAX : 2 * limit;
    default:
        return folds(c) ? SIZE_MAX : limit;
    }
}

/* Whether the system reads the input for other processes: it does not read the memory of devices, nor what is pinned
 * for them, which the processor can read. */
static int is_ordinary(const coll_node_call *c) {
    char byte;
    return !coll_heap_read_private(getpid(), &byte, (uint64_t)(uintptr_t)c->message.input, 1);
}

static int read_in_private(const coll_node_call *c) {
    size_t blocks = c->message.kind == COLL_NODE_BCAST ? 1 : (size_t)c->node->size;
    return c->node->reads_private && !c->in_heap && bytes_of(c) / blocks >= private_from(c) && is_ordinary(c);
}

/* Puts the segments in the next place of the ring that is long enough, or in all of it in turn. */
static int take_place(coll_node_call *c, size_t longest, size_t total) {
    coll_node *n = c->node;
    size_t parts = per_receiver(c) ? (size_t)n->size : 1, part = part_elements(c, longest, total);
    size_t unit = lines_of(part * c->message.itemsize) * parts;
    if (unit > STAGING / 2)
        return COLL_ERR_ARGUMENT;
    c->in_heap = input_in_heap(c);
    c->in_private = read_in_private(c);
    c->segment = part;
    c->segment_bytes = unit;
    c->segments = (int)((longest + part - 1) / part);
    size_t at = (size_t)c->segments * unit > STAGING - n->at ? 0 : n->at;
    c->slots = (int)((STAGING - at) / unit);
    c->slots = c->slots < c->segments ? c->slots : c->segments;
    coll_node_advance(c, at, at + (size_t)c->slots * unit);
    return COLL_OK;
}

static void say_where(coll_node_call *c) {
    coll_node *n = c->node;
    arrival *a = &n->peers[n->rank].arrival;
    a->input = stays_put(c) ? c->in_heap : 0;
    a->private = stays_put(c) && !a->input ? (uint64_t)(uintptr_t)c->message.input : 0;
    a->staging = (uint64_t)(n->work - n->peers[n->rank].base);
    a->at = c->at;
    a->part = c->segment | (uint64_t)c->slots << 48;
    a->table = 0;
    if (needs_table(c)) {
        a->table = a->staging + coll_node_table_at(n, c->number);
        uint64_t *table = (uint64_t *)(n->peers[n->rank].base + a->table);
        for (int d = 0; d < n->size; d++) {
            table[2 * d] = published(c, d).first;
            table[2 * d + 1] = published(c, d).count;
        }
    }
    own_line(c)->arrival = *a;
}

/* Whether the data fit in the line: the whole input, if receivers can find their blocks in it. */
static int fits_line(const coll_node_call *c, size_t longest) {
    if (!per_receiver(c))
        return longest * c->message.itemsize <= COLL_NODE_INLINE;
    return !c->message.cuts && bytes_of(c) <= COLL_NODE_INLINE;
}

int coll_node_publish_input(coll_node_call *c) {
    coll_node *n = c->node;
    size_t total, longest = longest_published(c, &total);
    if (fits_line(c, longest)) {
        move(own_line(c)->payload, c->message.input,
             (per_receiver(c) ? c->message.count : longest) * c->message.itemsize);
        c->inlined = 1;
        publish(&own_line(c)->word, c->word | INLINE_FLAG);
        return COLL_OK;
    }
    if (coll_node_allocate(n))
        return COLL_ERR_MEMORY;
    if (!c->segments) {
        int error = take_place(c, longest ? longest : 1, total);
        if (error)
            return error;
    }
    if (!coll_node_claim(c, c->at, 1))
        return COLL_PENDING;
    say_where(c);
    publish(&own_line(c)->word, c->word);
    if (stays_put(c))
        c->staged = c->segments;
    return COLL_OK;
}
