/* All collectives except all-reduce: a rank publishes its data by segments; ranks that need them take or fold them.
 *
 * Published data are the same for all receivers, or there is a part for each receiver. Short data are in the line
 * itself, data on the heap are read in place, all others are in the staging ring. No rank waits for ranks from which it
 * takes nothing: in rooted collectives, ranks may run ahead of the slowest one as far as lines and ring allow. */
#include "blocks.h"

#include <unistd.h>

enum { ALL_TAKEN = COLL_NODE_ALL_TAKEN, SCATTER_PRIVATE = 4 << 20 };

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

/* Whether the results would not stay in the cache anyway. */
static int past_cache(const coll_node_call *c) {
    return bytes_of(c) >= c->node->limits.stream;
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

/* Whether the input is read in place: on the heap, unless the result overwrites it, or in private memory. */
static int stays_put(const coll_node_call *c) {
    if (!c->in_heap)
        return c->in_private;
    return bytes_of(c) > c->node->limits.copy && !(folds(c) && c->message.input == c->message.output);
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

static int publish_input(coll_node_call *c) {
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

/* Copy the block that stays on this rank to the output: at most `most` elements from element `first` on. */
static void keep(const coll_node_call *c, size_t first, size_t most) {
    const coll_node_message *m = &c->message;
    range from = published(c, c->node->rank), to = wanted(c, c->node->rank);
    char *target = (char *)m->output + (to.first + first) * m->itemsize;
    const char *source = (const char *)m->input + (from.first + first) * m->itemsize;
    size_t count = from.count < to.count ? from.count : to.count;
    count = count < first ? 0 : count - first < most ? count - first : most;
    if (count && source != target)
        (past_cache(c) ? coll_copy_stream : coll_copy)(target, source, count * m->itemsize);
}

/* Whether this rank's own block is also staged for others; it is then copied segment by segment, while in the cache. */
static int kept_when_staged(const coll_node_call *c) {
    return c->message.kind == COLL_NODE_ALLGATHER && c->segments && !stays_put(c);
}

static void keep_own(const coll_node_call *c) {
    int rank = c->node->rank, kind = (int)c->message.kind;
    if ((kind == COLL_NODE_ALLGATHER && !kept_when_staged(c)) || kind == COLL_NODE_ALLTOALL ||
        ((kind == COLL_NODE_GATHER || kind == COLL_NODE_SCATTER) && rank == c->message.root))
        keep(c, 0, SIZE_MAX);
}

/* Whether a rank still needs the slot that segment k will use, which held segment k - slots. */
static int slot_in_use(const coll_node_call *c, int k) {
    const coll_node *n = c->node;
    for (int d = 0; d < n->size; d++)
        if (reads(c, d) && !reached(&n->peers[d].area->reduced, progress_of(c, k - c->slots + 1)))
            return 1;
    return 0;
}

static int stage_next(coll_node_call *c) {
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
    return 1;
}

int coll_node_pull_begin(coll_node_call *c) {
    coll_node *n = c->node;
    int error = publishes(c) ? publish_input(c) : COLL_OK;
    if (error)
        return error;
    for (int q = 0; q < n->size; q++)
        n->peers[q].here = n->peers[q].taken = 0;
    stage_next(c); /* so that the others can begin with it */
    keep_own(c);
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

/* Number of elements in a segment of what rank q publishes. */
static size_t segment_of(const coll_node_call *c, int q) {
    const struct peer *p = &c->node->peers[q];
    return p->here == 2 ? SIZE_MAX : (size_t)part_segment(&p->arrival);
}

/* Whether rank q's data are read in place, all at once. */
static int lies_there(const struct peer *p) {
    return p->arrival.input || p->arrival.private;
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
    return p->here == 2 || lies_there(p) ? 1 : (int)((count + segment - 1) / segment);
}

static int fetch(const coll_node_call *c, const struct peer *p, char *to, const char *from, size_t bytes) {
    if (p->here == 1 && !p->arrival.input && p->arrival.private)
        return read_private(p->pid, to, from, bytes);
    (past_cache(c) ? coll_copy_stream : move)(to, from, bytes);
    return COLL_OK;
}

/* Take the next segment from rank q if it is published; COLL_OK if it was the last. One segment at a time, so that the
 * sender learns of it early and can reuse the slot. */
static int copy_from(coll_node_call *c, int q, int *moved) {
    struct peer *p = &c->node->peers[q];
    range to = wanted(c, q);
    int error = to.count ? look(c, q) : COLL_OK;
    if (error)
        return error;
    int all = segments_from(c, q);
    const char *source = p->taken < all ? found(c, q, p->taken) : NULL;
    if (source) {
        size_t from = all == 1 ? 0 : (size_t)p->taken * segment_of(c, q), count = to.count - from;
        count = all > 1 && count > segment_of(c, q) ? segment_of(c, q) : count;
        size_t item = c->message.itemsize;
        error = fetch(c, p, (char *)c->message.output + (to.first + from) * item, source, count * item);
        if (!error && p->here == 1 && lies_there(p))
            error = coll_node_given_up(c);
        if (error)
            return error;
        p->taken++;
        *moved = 1;
    }
    if (p->taken < all)
        return COLL_PENDING;
    p->taken = ALL_TAKEN;
    return COLL_OK;
}

/* Take published segments from all ranks. The least number taken from a rank tells all senders what is free again. */
static int copy_next(coll_node_call *c, int *moved) {
    coll_node *n = c->node;
    int least = ALL_TAKEN, before = c->reduced;
    for (int i = 1, q = n->rank; i < n->size; i++) {
        q = q + 1 < n->size ? q + 1 : 0;
        if (!takes(c, q, n->rank))
            continue;
        int error = n->peers[q].taken == ALL_TAKEN ? COLL_OK : copy_from(c, q, moved);
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
static int fold_next(coll_node_call *c, int *moved) {
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
    *moved = 1;
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

int coll_node_pull(coll_node_call *c) {
    coll_node *n = c->node;
    int taken = c->copied;
    for (int moved = 1; moved;) {
        moved = stage_next(c);
        if (taken)
            continue;
        int status = folds(c) ? fold_next(c, &moved) : copy_next(c, &moved);
        if (status < 0)
            return status;
        taken = status == COLL_OK;
    }
    if (taken && !c->copied) {
        c->copied = 1;
        publish(&own_area(n)->reduced.value, progress_of(c, ALL_TAKEN));
    }
    if (!taken || c->staged < c->segments)
        return COLL_PENDING;
    if (c->copied < 2)
        publish(&own_area(n)->done.value, c->number);
    c->copied = 2;
    return c->segments && stays_put(c) && !released(c) ? COLL_PENDING : COLL_OK;
}
