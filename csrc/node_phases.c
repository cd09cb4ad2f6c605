/* All-reduce, and reduce of long vectors: what ranks do with each other's data once they have all arrived. */
#include "node_internal.h"
#include "partition.h"

static const char *input_at(const coll_node_call *c, size_t element) {
    return (const char *)c->message.input + element * c->message.itemsize;
}

static char *output_at(const coll_node_call *c, size_t element) {
    return (char *)c->message.output + element * c->message.itemsize;
}

static int all_past(const coll_node *n, size_t which, uint64_t value) {
    for (int q = 0; q < n->size; q++)
        if (q != n->rank && see(&((const counter *)((const char *)n->peers[q].area + which))->value) < value)
            return 0;
    return 1;
}

/* Read: fold all inputs into the own result. Inputs on the heap are read where they lie, so their owners stay until all
 * have read them; a result that would overwrite such an input waits in the staging area. */
int coll_node_read(coll_node_call *c) {
    coll_node *n = c->node;
    const arrival *own = &n->peers[n->rank].arrival;
    char *aside = n->work + c->at;
    int wait_aside = own->input && own->input == own->output;
    if (!c->reduced) {
        for (int q = 0; q < n->size; q++) {
            const struct peer *p = &n->peers[q];
            n->sources[q] = p->base + (p->arrival.input ? p->arrival.input : p->arrival.staging + p->arrival.at);
        }
        n->targets[0] = wait_aside ? aside : c->message.output;
        int error = coll_node_fold(c, n->size, 1, c->message.count, 0);
        if (error)
            return error;
        c->reduced = 1;
        publish(&own_area(n)->done.value, c->number);
    }
    if (own->input && !all_past(n, offsetof(area, done), c->number))
        return COLL_PENDING;
    if (wait_aside)
        move(c->message.output, aside, bytes_of(c));
    return COLL_OK;
}

/* Slices */

typedef struct {
    size_t first, count; /* elements of the vector */
} span;

static span segment_of(const coll_node_call *c, int k) {
    size_t first = (size_t)k * c->segment, left = c->message.count - first;
    return (span){first, left < c->segment ? left : c->segment};
}

/* Rank q's slice of a segment, whole cache lines so that no two ranks write the same one. */
static span slice_of(const coll_node_call *c, span s, int q) {
    size_t item = c->message.itemsize, per_line = 64 % item ? 1 : 64 / item, size = (size_t)c->node->size;
    size_t lines = (s.count + per_line - 1) / per_line;
    size_t from = coll_part(lines, size, (size_t)q) * per_line, to = coll_part(lines, size, (size_t)q + 1) * per_line;
    from = from < s.count ? from : s.count;
    to = to < s.count ? to : s.count;
    return (span){s.first + from, to - from};
}

/* Where the ring of a rank that begins at `at` has segment k. */
static size_t place_of(const coll_node_call *c, size_t at, int k) {
    return (at + (size_t)k * c->segment_bytes) % STAGING;
}

/* Segments of the call that the rings hold at once. */
static int ring_of(const coll_node_call *c) {
    return (int)(STAGING / c->segment_bytes);
}

static char *staging_at(const coll_node_call *c, int q, int k, size_t element) {
    const struct peer *p = &c->node->peers[q];
    size_t in_segment = (element - (size_t)k * c->segment) * c->message.itemsize;
    return p->base + p->arrival.staging + place_of(c, p->arrival.at, k) + in_segment;
}

static char *result_at(const coll_node_call *c, int q, int k) {
    const struct peer *p = &c->node->peers[q];
    size_t each = (c->segment_bytes / (size_t)c->node->size + RESULT_SLACK) / LINE * LINE;
    return p->base + p->arrival.results + place_of(c, p->arrival.at, k) / c->segment_bytes * each;
}

/* Copy in the slices of a segment that others own. The slot is free once all owners have folded what was in it. */
static int stage_next(coll_node_call *c) {
    coll_node *n = c->node;
    int k = c->staged;
    if (k >= c->segments || k > c->reduced + 1)
        return 0;
    if (k < ring_of(c) && !coll_node_claim(c, place_of(c, c->at, k), c->segment_bytes))
        return 0;
    if (k >= ring_of(c) && !all_past(n, offsetof(area, reduced), progress_of(c, k - ring_of(c) + 1)))
        return 0;
    if (k >= ring_of(c))
        n->sector = -1; /* what lies ahead is no longer of the turn before */
    span s = segment_of(c, k);
    for (int i = 1; i < n->size; i++) {
        int q = n->rank + i < n->size ? n->rank + i : n->rank + i - n->size;
        span part = slice_of(c, s, q);
        hand(n, staging_at(c, n->rank, k, part.first), input_at(c, part.first), part.count * c->message.itemsize);
    }
    c->staged++;
    publish(&own_area(n)->staged.value, progress_of(c, c->staged));
    return 1;
}

void coll_node_stage(coll_node_call *c) {
    if (!c->node->peers[c->node->rank].arrival.input)
        while (stage_next(c))
            ;
}

static int inputs_here(const coll_node_call *c, int k) {
    const coll_node *n = c->node;
    for (int q = 0; q < n->size; q++)
        if (q != n->rank && !n->peers[q].arrival.input && see(&n->peers[q].area->staged.value) < progress_of(c, k + 1))
            return 0;
    return 1;
}

/* Whether the slot of the result ring has been read by all who copy out. Who has arrived has read those of earlier
 * calls. */
static int result_slot_free(const coll_node_call *c, int k) {
    return k < ring_of(c) || all_past(c->node, offsetof(area, copied), progress_of(c, k - ring_of(c) + 1));
}

/* Fold the own slice: from the private array, heaps and staging areas, to the private array, heaps and the result ring.
 */
static int reduce_next(coll_node_call *c) {
    coll_node *n = c->node;
    int k = c->reduced, q = 0, ring = 0;
    if (k >= c->segments || !inputs_here(c, k) || (!c->everything_shared && !result_slot_free(c, k)))
        return COLL_PENDING;
    span own = slice_of(c, segment_of(c, k), n->rank);
    size_t at = own.first * c->message.itemsize;
    for (int i = 0; i < n->size; i++) {
        const struct peer *p = &n->peers[i];
        n->sources[i] = i == n->rank       ? input_at(c, own.first)
                        : p->arrival.input ? p->base + p->arrival.input + at
                                           : staging_at(c, i, k, own.first);
        if (!coll_node_wants(c, i))
            continue;
        if (i == n->rank)
            n->targets[q++] = output_at(c, own.first);
        else if (p->arrival.output)
            n->targets[q++] = p->base + p->arrival.output + at;
        else
            ring = 1;
    }
    if (ring)
        n->targets[q++] = result_at(c, n->rank, k);
    int past_cache = ring ? n->handing.far : bytes_of(c) >= n->limits.stream, error = COLL_OK;
    if (own.count && ring && q == 2 && past_cache)
        error = coll_node_fold_and_hand(c, n->size, own.count);
    else if (own.count)
        error = coll_node_fold(c, n->size, q, own.count, past_cache);
    c->reduced++;
    publish(&own_area(n)->reduced.value, progress_of(c, c->reduced));
    return error;
}

/* Copy out what the other owners have folded; those who could have written it here already. */
static int copy_next(coll_node_call *c) {
    coll_node *n = c->node;
    int k = c->copied;
    if (k >= c->segments || !all_past(n, offsetof(area, reduced), progress_of(c, k + 1)) || k >= c->reduced)
        return 0;
    if (!n->peers[n->rank].arrival.output && coll_node_wants(c, n->rank)) {
        span s = segment_of(c, k);
        for (int i = 1; i < n->size; i++) {
            int q = n->rank + i < n->size ? n->rank + i : n->rank + i - n->size;
            span part = slice_of(c, s, q);
            move(output_at(c, part.first), result_at(c, q, k), part.count * c->message.itemsize);
        }
    }
    c->copied++;
    if (!c->everything_shared)
        publish(&own_area(n)->copied.value, progress_of(c, c->copied));
    return 1;
}

int coll_node_slices(coll_node_call *c) {
    for (int moved = 1; moved;) {
        coll_node_stage(c);
        int folded = reduce_next(c);
        if (folded < 0)
            return folded;
        moved = folded == COLL_OK;
        moved |= copy_next(c);
    }
    return c->copied < c->segments ? COLL_PENDING : COLL_OK;
}
