/* All collectives except all-reduce: a rank publishes its data by segments; ranks that need them take or fold them.
 *
 * Published data are the same for all receivers, or there is a part for each receiver. Short data are in the line
 * itself, data on the heap are read in place, all others are in the staging ring. No rank waits for ranks from which it
 * takes nothing: in rooted collectives, ranks may run ahead of the slowest one as far as lines and ring allow. */
#include "blocks.h"

enum { ALL_TAKEN = COLL_NODE_ALL_TAKEN };
static const size_t ALL_KEPT = SIZE_MAX;

/* Copy the block that stays on this rank to the output: at most `most` elements from element `first` on. Returns how
 * many it has copied. */
static size_t keep(const coll_node_call *c, size_t first, size_t most) {
    const coll_node_message *m = &c->message;
    range from = published(c, c->node->rank), to = wanted(c, c->node->rank);
    char *target = (char *)m->output + (to.first + first) * m->itemsize;
    const char *source = (const char *)m->input + (from.first + first) * m->itemsize;
    size_t count = from.count < to.count ? from.count : to.count;
    count = count < first || source == target ? 0 : count - first < most ? count - first : most;
    if (count)
        (past_cache(c) ? coll_copy_stream : coll_copy)(target, source, count * m->itemsize);
    return count;
}

/* Whether this rank's own block is also staged for others; it is then copied segment by segment, while in the cache. */
static int kept_when_staged(const coll_node_call *c) {
    return c->message.kind == COLL_NODE_ALLGATHER && c->segments && !stays_put(c);
}

/* Copy the next piece of this rank's own block; returns its bytes, 0 if all of it is there. */
static size_t keep_next(coll_node_call *c) {
    int rank = c->node->rank, kind = (int)c->message.kind;
    size_t most = elements_at_once(c), count = 0;
    if (c->kept == ALL_KEPT)
        return 0;
    if ((kind == COLL_NODE_ALLGATHER && !kept_when_staged(c)) || kind == COLL_NODE_ALLTOALL ||
        ((kind == COLL_NODE_GATHER || kind == COLL_NODE_SCATTER) && rank == c->message.root))
        count = keep(c, c->kept, most);
    c->kept = count < most ? ALL_KEPT : c->kept + count;
    return count * c->message.itemsize;
}

/* Whether a rank still needs the slot that segment k will use, which held segment k - slots. */
static int slot_in_use(const coll_node_call *c, int k) {
    const coll_node *n = c->node;
    for (int d = 0; d < n->size; d++)
        if (reads(c, d) && !reached(&n->peers[d].area->reduced, progress_of(c, k - c->slots + 1)))
            return 1;
    return 0;
}

/* Copy the next segment into the ring if there is room; returns its bytes. */
static size_t stage_next(coll_node_call *c) {
    coll_node *n = c->node;
    int k = c->staged;
    if (k >= c->segments)
        return 0;
    size_t item = c->message.itemsize, from = (size_t)k * c->segment;
    size_t at = c->at + (size_t)(k % c->slots) * c->segment_bytes;
    if (k < c->slots ? !coll_node_claim(c, at, c->segment_bytes) : slot_in_use(c, k))
        return 0;
    for (int d = 0, part = 0; d < n->size; d++) {
        if (!takes(c, n->rank, d) || (part && !per_receiver(c)))
            continue;
        part = 1;
        range s = published(c, d);
        size_t count = s.count < from ? 0 : s.count - from < c->segment ? s.count - from : c->segment;
        char *to = n->work + at + (per_receiver(c) ? (size_t)d * (c->segment_bytes / (size_t)n->size) : 0);
        if (count)
            hand(n, to, (const char *)c->message.input + (s.first + from) * item, count * item);
    }
    c->staged++;
    publish(&own_area(n)->staged.value, progress_of(c, c->staged));
    if (kept_when_staged(c))
        keep(c, from, c->segment);
    return c->segment_bytes;
}

int coll_node_pull_begin(coll_node_call *c) {
    coll_node *n = c->node;
    int error = publishes(c) ? coll_node_publish_input(c) : COLL_OK;
    if (error)
        return error;
    for (int q = 0; q < n->size; q++)
        n->peers[q].here = n->peers[q].taken = 0;
    stage_next(c); /* so that the others can begin with it */
    keep_next(c);
    return COLL_OK;
}

/* Find out where rank q's data are: COLL_OK when known, COLL_PENDING or an error. */
static int look(coll_node_call *c, int q) {
    coll_node *n = c->node;
    struct peer *p = &n->peers[q];
    if (p->here)
        return COLL_OK;
    int error = coll_node_arrived(c, q);
    if (error)
        return error;
    line *l = &p->area->lines[c->number % LINES];
    int inlined = (see(&l->word) & INLINE_FLAG) != 0;
    if (inlined)
        p->inlined = (const char *)l->payload;
    else
        p->arrival = l->arrival;
    if (inlined != coll_node_expects_inline(c, q) || (!inlined && !coll_node_part_ok(c, q)))
        return COLL_ERR_MESSAGE;
    p->here = inlined ? 2 : 1;
    return COLL_OK;
}

/* Whether rank q's data are read in place. */
static int lies_there(const struct peer *p) {
    return p->arrival.input || p->arrival.private;
}

/* Number of elements in a segment of what rank q publishes. What lies there is copied in long ones. It is folded in
 * those of the ring, since other ranks' data may be there. */
static size_t segment_of(const coll_node_call *c, int q) {
    const struct peer *p = &c->node->peers[q];
    if (p->here == 2)
        return SIZE_MAX;
    return lies_there(p) && !folds(c) ? elements_at_once(c) : (size_t)part_segment(&p->arrival);
}

/* The address of segment k of what rank q publishes for this rank: in q's process if it is read in private memory. NULL
 * if the segment has not been published. */
static const char *found(const coll_node_call *c, int q, int k) {
    const coll_node *n = c->node;
    const struct peer *p = &n->peers[q];
    size_t item = c->message.itemsize, rank = per_receiver(c) ? (size_t)n->rank : 0;
    if (p->here == 2)
        return p->inlined + (per_receiver(c) ? block(c, c->message.cuts, n->rank).first * item : 0);
    size_t segment = segment_of(c, q), slots = part_slots(&p->arrival);
    if (lies_there(p)) {
        uintptr_t input = p->arrival.input ? (uintptr_t)p->base + p->arrival.input : (uintptr_t)p->arrival.private;
        return (const char *)(input + (p->first + (size_t)k * segment) * item);
    }
    if (!reached(&p->area->staged, progress_of(c, k + 1)))
        return NULL;
    size_t part = lines_of(segment * item), unit = per_receiver(c) ? part * (size_t)n->size : part;
    return p->base + p->arrival.staging + p->arrival.at + (size_t)k % slots * unit + rank * part;
}

/* Number of segments that this rank takes from rank q, whose arrival must be known. */
static int segments_from(const coll_node_call *c, int q) {
    const struct peer *p = &c->node->peers[q];
    size_t count = wanted(c, q).count, segment = segment_of(c, q);
    if (!takes(c, q, c->node->rank) || !count)
        return 0;
    return p->here == 2 ? 1 : (int)((count + segment - 1) / segment);
}

static int fetch(const coll_node_call *c, const struct peer *p, char *to, const char *from, size_t bytes) {
    if (p->here == 1 && !p->arrival.input && p->arrival.private)
        return read_private(p->pid, to, from, bytes);
    (past_cache(c) ? coll_copy_stream : move)(to, from, bytes);
    return COLL_OK;
}

/* Take the next segment from rank q if it is published, and add its bytes to *moved; COLL_OK if it was the last. One
 * segment at a time, so that the sender learns of it early and can reuse the slot. */
static int copy_from(coll_node_call *c, int q, size_t *moved) {
    struct peer *p = &c->node->peers[q];
    range to = wanted(c, q);
    int error = to.count ? look(c, q) : COLL_OK;
    if (error)
        return error;
    int all = segments_from(c, q);
    const char *source = p->taken < all ? found(c, q, p->taken) : NULL;
    if (source) {
        size_t segment = segment_of(c, q), from = (size_t)p->taken * segment, item = c->message.itemsize;
        size_t count = to.count - from < segment ? to.count - from : segment;
        error = fetch(c, p, (char *)c->message.output + (to.first + from) * item, source, count * item);
        if (!error && p->here == 1 && lies_there(p))
            error = coll_node_given_up(c);
        if (error)
            return error;
        p->taken++;
        *moved += count * item;
    }
    if (p->taken < all)
        return COLL_PENDING;
    p->taken = ALL_TAKEN;
    return COLL_OK;
}

/* Take published segments from all ranks, AT_ONCE bytes at most. The least number taken from a rank tells all senders
 * what is free again. */
static int copy_next(coll_node_call *c, size_t *moved) {
    coll_node *n = c->node;
    int least = ALL_TAKEN, before = c->reduced;
    for (int i = 1, q = n->rank; i < n->size; i++) {
        q = q + 1 < n->size ? q + 1 : 0;
        if (!takes(c, q, n->rank))
            continue;
        int error = n->peers[q].taken == ALL_TAKEN || *moved >= AT_ONCE ? COLL_OK : copy_from(c, q, moved);
        if (error < 0)
            return error;
        least = n->peers[q].taken < least ? n->peers[q].taken : least;
    }
    c->reduced = least;
    if (least != before)
        publish(&own_area(n)->reduced.value, progress_of(c, least));
    return least == ALL_TAKEN ? COLL_OK : COLL_PENDING;
}

/* Fold the next segment when all ranks have published it; segments are as long as the staged ones. */
static int fold_next(coll_node_call *c, size_t *moved) {
    coll_node *n = c->node;
    int k = c->reduced, number = operands(c);
    range to = wanted(c, n->rank), own = published(c, n->rank);
    size_t item = c->message.itemsize, segment = SIZE_MAX;
    for (int q = 0; q < number; q++) {
        int error = q == n->rank ? COLL_OK : look(c, q);
        if (error)
            return error;
        size_t other = q == n->rank ? SIZE_MAX : segment_of(c, q);
        if (other != SIZE_MAX && segment != SIZE_MAX && other != segment)
            return COLL_ERR_MESSAGE;
        segment = other != SIZE_MAX ? other : segment;
    }
    size_t from = k ? (size_t)k * segment : 0;
    if (!number || from >= to.count)
        return COLL_OK;
    if (c->message.input == c->message.output && c->staged <= k && c->staged < c->segments)
        return COLL_PENDING; /* the result would overwrite data that others need */
    size_t count = to.count - from < segment ? to.count - from : segment;
    int in_arrays = 0;
    for (int q = 0; q < number; q++) {
        n->sources[q] = q == n->rank ? (const char *)c->message.input + (own.first + from) * item : found(c, q, k);
        if (!n->sources[q])
            return COLL_PENDING;
        in_arrays |= q != n->rank && n->peers[q].here == 1 && lies_there(&n->peers[q]);
    }
    n->targets[0] = (char *)c->message.output + from * item;
    int error = coll_node_fold(c, number, 1, count, past_cache(c));
    if (!error && in_arrays)
        error = coll_node_given_up(c);
    if (error)
        return error;
    c->reduced++;
    publish(&own_area(n)->reduced.value, progress_of(c, c->reduced));
    *moved += count * item * (size_t)number;
    return from + count < to.count ? COLL_PENDING : COLL_OK;
}

/* Whether all ranks that read this rank's input in place have done so. */
static int released(const coll_node_call *c) {
    const coll_node *n = c->node;
    for (int d = 0; d < n->size; d++)
        if (reads(c, d) && !reached(&n->peers[d].area->done, c->number))
            return 0;
    return 1;
}

/* The own block fills the time in which nothing else moves. */
int coll_node_pull(coll_node_call *c) {
    coll_node *n = c->node;
    int taken = c->copied;
    size_t total = 0;
    for (size_t moved = 1; moved && total < AT_ONCE; total += moved) {
        moved = stage_next(c);
        if (!taken) {
            int status = folds(c) ? fold_next(c, &moved) : copy_next(c, &moved);
            if (status < 0)
                return status;
            taken = status == COLL_OK;
        }
        moved = moved ? moved : keep_next(c);
    }
    c->moves += total > 0;
    if (taken && !c->copied) {
        c->copied = 1;
        publish(&own_area(n)->reduced.value, progress_of(c, ALL_TAKEN));
    }
    if (!taken || c->staged < c->segments || total >= AT_ONCE)
        return COLL_PENDING;
    if (c->copied < 2)
        publish(&own_area(n)->done.value, c->number);
    c->copied = 2;
    return c->segments && stays_put(c) && !released(c) ? COLL_PENDING : COLL_OK;
}
