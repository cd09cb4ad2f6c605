/* Checks what another rank's shared memory says before it becomes an address or a length. A rank that has gone wrong,
 * or whose call differs in spite of an equal signature, can cause an error on others, but no access outside the heaps.
 * Counters need no check, since they only tell when something has happened. */
#include "blocks.h"

static int within(const struct peer *p, uint64_t offset, uint64_t bytes) {
    return offset <= p->limit && bytes <= p->limit - offset;
}

/* Whether an array lies in the peer's heap, or is not on the heap (offset 0). */
static int array_ok(const struct peer *p, uint64_t offset, size_t bytes) {
    return !offset || within(p, offset, bytes);
}

static int ring_ok(const struct peer *p) {
    const arrival *a = &p->arrival;
    return a->staging && (a->staging | a->at) % 64 == 0 && a->at < STAGING && within(p, a->staging, STAGING);
}

int coll_node_places_ok(const coll_node_call *c, int q) {
    const struct peer *p = &c->node->peers[q];
    const arrival *a = &p->arrival;
    if (!array_ok(p, a->input, bytes_of(c)) || (coll_node_wants(c, q) && !array_ok(p, a->output, bytes_of(c))))
        return 0;
    int whole = bytes_of(c) <= c->node->limits.read;
    int in_ring = whole ? a->at + bytes_of(c) <= STAGING : a->at % c->segment_bytes == 0;
    return in_ring && ring_ok(p);
}

int coll_node_expects_inline(const coll_node_call *c, int q) {
    if (per_receiver(c))
        return !c->message.cuts && bytes_of(c) <= COLL_NODE_INLINE;
    return wanted(c, q).count * c->message.itemsize <= COLL_NODE_INLINE;
}

/* Set p->first, where this rank's block begins in the peer's input; returns whether its length is as expected. */
static int find_block(const coll_node_call *c, struct peer *p, size_t count) {
    uint64_t table = p->arrival.table, rank = (uint64_t)c->node->rank;
    if (!needs_table(c)) {
        p->first = per_receiver(c) ? block(c, c->message.cuts, (int)rank).first : 0;
        return !table;
    }
    if (!table || table % sizeof table || !within(p, table, 2 * (rank + 1) * sizeof table))
        return 0;
    const uint64_t *entry = (const uint64_t *)(p->base + table) + 2 * rank;
    p->first = entry[0];
    return entry[1] == count;
}

int coll_node_part_ok(const coll_node_call *c, int q) {
    struct peer *p = &c->node->peers[q];
    const arrival *a = &p->arrival;
    size_t item = c->message.itemsize, count = wanted(c, q).count;
    uint64_t segment = part_segment(a), slots = part_slots(a), parts = per_receiver(c) ? (uint64_t)c->node->size : 1;
    /* Segments must fit in the ring, so that no product below overflows; their number is below COLL_NODE_ALL_TAKEN. */
    if (!find_block(c, p, count) || !segment || segment > STAGING / item || count / segment >= COLL_NODE_ALL_TAKEN)
        return 0;
    if (a->input) /* each term is at most the limit, so that the sum does not overflow */
        return p->first <= p->limit / item && within(p, a->input, (p->first + count) * item);
    if (a->private)
        return !folds(c) && c->node->reads_private;
    return slots && ring_ok(p) && slots * lines_of(segment * item) * parts <= STAGING - a->at;
}

static int cuts_ok(const size_t *cuts, int size, size_t itemsize) {
    for (int i = 0; cuts && i < size; i++)
        if (cuts[i] > cuts[i + 1])
            return 0;
    return !cuts || cuts[size] <= PTRDIFF_MAX / itemsize;
}

/* Whether the blocks between `cuts` may lie at `starts`. */
static int starts_ok(const coll_node_message *m, const size_t *cuts, const size_t *starts, int size) {
    if (!starts)
        return 1;
    if (m->kind != COLL_NODE_ALLTOALL || !m->cuts || !cuts)
        return 0;
    for (int i = 0; i < size; i++)
        if (starts[i] > PTRDIFF_MAX / m->itemsize - (cuts[i + 1] - cuts[i]))
            return 0;
    return 1;
}

int coll_node_message_ok(const coll_node_message *m, int size) {
    if (m->kind > COLL_NODE_EXSCAN || m->root < 0 || m->root >= size)
        return 0;
    if (m->itemsize < 1 || m->itemsize > COLL_NODE_PIECE || m->count > PTRDIFF_MAX / m->itemsize)
        return 0;
    if (m->variant < 0 || m->variant >= COLL_NODE_VARIANTS)
        return 0;
    return cuts_ok(m->cuts, size, m->itemsize) && cuts_ok(m->input_cuts, size, m->itemsize) &&
           starts_ok(m, m->cuts, m->starts, size) && starts_ok(m, m->input_cuts, m->input_starts, size);
}
