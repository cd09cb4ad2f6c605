/* All-reduce, and reduce of long vectors: the phases after all ranks have arrived. */
#include "internal.h"
#include "base/partition.h"

static const char *input_at(const coll_node_call *c, size_t element) {
    return (const char *)c->message.input + element * c->message.itemsize;
}

static char *output_at(const coll_node_call *c, size_t element) {
    return (char *)c->message.output + element * c->message.itemsize;
}

/* Whether the counter at offset `which` of all other ranks' flags has reached `value`. */
static int all_past(const coll_node *n, size_t which, uint64_t value) {
    for (int q = 0; q < n->size; q++)
        if (q != n->rank && !reached((const counter *)((const char *)n->peers[q].area + which), value))
            return 0;
    return 1;
}

/* Read: fold all inputs into this rank's result. Inputs on the heap are read in place, so their owners wait until all
 * ranks have read them; a result that would overwrite such an input is kept in the staging ring until then. */
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
        if (!error)
            error = coll_node_given_up(c);
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

/* The scheme of slices. */

static range segment_of(const coll_node_call *c, int k) {
    size_t first = (size_t)k * c->segment, left = c->message.count - first;
    return (range){first, left < c->segment ? left : c->segment};
}

/* Rank q's slice of a segment, in whole cache lines, so that no two ranks write to the same line. */
static range slice_of(const coll_node_call *c, range s, int q) {
    size_t item = c->message.itemsize, per_line = 64 % item ? 1 : 64 / item, size = (size_t)c->node->size;
    size_t lines = (s.count + per_line - 1) / per_line;
    size_t from = coll_part(lines, size, (size_t)q) * per_line, to = coll_part(lines, size, (size_t)q + 1) * per_line;
    from = from < s.count ? from : s.count;
    to = to < s.count ? to : s.count;
    return (range){s.first + from, to - from};
}

/* Start of segment k in the ring of a rank whose place for this call begins at `at`. */
static size_t place_of(const coll_node_call *c, size_t at, int k) {
    return (at + (size_t)k * c->segment_bytes) % STAGING;
}

/* Number of the call's segments that a ring holds at once. */
static int ring_of(const coll_node_call *c) {
    return (int)(STAGING / c->segment_bytes);
}

static char *staging_at(const coll_node_call *c, int q, int k, size_t element) {
    const struct peer *p = &c->node->peers[q];
    size_t in_segment = (element - (size_t)k * c->segment) * c->message.itemsize;
    return p->base + p->arrival.staging + place_of(c, p->arrival.at, k) + in_segment;
}

/* Whether this rank's ring has room for inputs and results of segment k. In the first turn of the ring, the place is
 * claimed. After that, the other ranks must have copied out the segment that was there; they have then folded it too.
 */
static int has_room(coll_node_call *c, int k) {
    int ring = ring_of(c);
    if (k >= ring) {
        c->node->sector = -1; /* the ring beyond this holds data of this call */
        return all_past(c->node, offsetof(area, copied), progress_of(c, k - ring + 1));
    }
    for (; c->claimed <= k; c->claimed++)
        if (!coll_node_claim(c, place_of(c, c->at, c->claimed), c->segment_bytes))
            return 0;
    return 1;
}

/* Copy in the slices of the next segment that other ranks own, so that these can fold them: what comes after this
 * rank's slice, for the ranks after it, then what comes before. Two pieces, however many ranks there are: copies of
 * short ones would not be timed (see hand.c). */
static int stage_next(coll_node_call *c) {
    coll_node *n = c->node;
    int k = c->staged;
    if (k >= c->segments || k > c->reduced + 1 || !has_room(c, k))
        return 0;
    range s = segment_of(c, k), own = slice_of(c, s, n->rank);
    size_t after = own.first + own.count, item = c->message.itemsize;
    hand(n, staging_at(c, n->rank, k, after), input_at(c, after), (s.first + s.count - after) * item);
    hand(n, staging_at(c, n->rank, k, s.first), input_at(c, s.first), (own.first - s.first) * item);
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
        if (q != n->rank && !n->peers[q].arrival.input && !reached(&n->peers[q].area->staged, progress_of(c, k + 1)))
            return 0;
    return 1;
}

/* Whether any rank copies this rank's slices of the result from its ring. */
static int hands_out(const coll_node_call *c) {
    const coll_node *n = c->node;
    for (int q = 0; q < n->size; q++)
        if (q != n->rank && coll_node_wants(c, q) && !n->peers[q].arrival.output)
            return 1;
    return 0;
}

/* Set the sources of this rank's slice (private arrays, heaps and rings) and its targets. A result in the ring is
 * stored where the rank's own slice would be staged. Returns the number of targets. */
static int places_of_slice(const coll_node_call *c, int k, range own, int in_ring) {
    coll_node *n = c->node;
    size_t at = own.first * c->message.itemsize;
    int q = 0;
    for (int i = 0; i < n->size; i++) {
        const struct peer *p = &n->peers[i];
        n->sources[i] = i == n->rank       ? input_at(c, own.first)
                        : p->arrival.input ? p->base + p->arrival.input + at
                                           : staging_at(c, i, k, own.first);
        if (coll_node_wants(c, i) && (i == n->rank || p->arrival.output))
            n->targets[q++] = i == n->rank ? output_at(c, own.first) : p->base + p->arrival.output + at;
    }
    if (in_ring)
        n->targets[q++] = staging_at(c, n->rank, k, own.first);
    return q;
}

/* Fold this rank's slice of the next segment, when all other ranks have staged it. */
static int reduce_next(coll_node_call *c) {
    coll_node *n = c->node;
    int k = c->reduced, in_ring = !c->everything_shared && hands_out(c);
    if (k >= c->segments || !inputs_here(c, k) || (in_ring && !has_room(c, k)))
        return COLL_PENDING;
    range own = slice_of(c, segment_of(c, k), n->rank);
    int q = places_of_slice(c, k, own, in_ring), error = coll_node_enter(c);
    if (error)
        return error;
    if (own.count && !in_ring)
        error = coll_node_fold_to_outputs(c, n->size, q, own.count);
    else if (own.count && q == 2 && n->handing.far)
        error = coll_node_fold_and_hand(c, n->size, own.count);
    else if (own.count)
        error = coll_node_fold(c, n->size, q, own.count, n->handing.far);
    int given_up = coll_node_leave(c);
    error = error ? error : given_up;
    if (error)
        return error;
    c->reduced++;
    publish(&own_area(n)->reduced.value, progress_of(c, c->reduced));
    return COLL_OK;
}

/* Copy out the next segment when all owners have folded it. If the output is on the heap, owners have written to it. */
static int copy_next(coll_node_call *c) {
    coll_node *n = c->node;
    int k = c->copied;
    if (k >= c->segments || !all_past(n, offsetof(area, reduced), progress_of(c, k + 1)) || k >= c->reduced)
        return 0;
    if (!n->peers[n->rank].arrival.output && coll_node_wants(c, n->rank)) {
        range s = segment_of(c, k);
        for (int i = 1; i < n->size; i++) {
            int q = n->rank + i < n->size ? n->rank + i : n->rank + i - n->size;
            range part = slice_of(c, s, q);
            move(output_at(c, part.first), staging_at(c, q, k, part.first), part.count * c->message.itemsize);
        }
    }
    c->copied++;
    if (!c->everything_shared)
        publish(&own_area(n)->copied.value, progress_of(c, c->copied));
    return 1;
}

/* Returns after reading AT_ONCE bytes to fold them, unless the vector is one segment. */
int coll_node_slices(coll_node_call *c) {
    size_t most = elements_at_once(c);
    int before = c->reduced;
    for (int moved = 1; moved && (c->segments == 1 || (size_t)(c->reduced - before) * c->segment < most);) {
        coll_node_stage(c);
        int folded = reduce_next(c);
        if (folded < 0)
            return folded;
        moved = folded == COLL_OK;
        moved |= copy_next(c);
    }
    return c->copied < c->segments ? COLL_PENDING : COLL_OK;
}

/* The next segment for which this rank's ring must have room, or -1 if there is none. */
static int needs_room(const coll_node_call *c) {
    int stages = !c->node->peers[c->node->rank].arrival.input && c->staged < c->segments;
    if (c->everything_shared || c->reduced >= c->segments)
        return -1;
    return stages && c->staged > c->reduced ? c->staged : stages || hands_out(c) ? c->reduced : -1;
}

int coll_node_slices_waits_for(const coll_node_call *c, int q) {
    const struct peer *p = &c->node->peers[q];
    int k = needs_room(c), ring = ring_of(c);
    if (!reached(&p->area->reduced, progress_of(c, c->copied + 1)))
        return 1;
    if (c->reduced < c->segments && !p->arrival.input && !reached(&p->area->staged, progress_of(c, c->reduced + 1)))
        return 1;
    return k >= ring ? !reached(&p->area->copied, progress_of(c, k - ring + 1))
                     : k >= 0 && !reached(&p->area->done, c->after);
}
