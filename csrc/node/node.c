/* The group, and the stages of a call: turn, arrival, phase, end. */
#include "internal.h"

#include <stdlib.h>

/* The flags are aligned to LINE bytes, but the heap aligns to 64 only: reserve one line more. */
size_t coll_node_area_bytes(void) {
    return sizeof(area) + LINE;
}

/* The flags at `offset` in a heap, or NULL if they do not fit there. Heaps are mapped at page boundaries, so that all
 * ranks round to the same place. */
static area *area_at(char *base, size_t limit, uint64_t offset) {
    if (limit < coll_node_area_bytes() || offset > limit - coll_node_area_bytes())
        return NULL;
    return (area *)(base + lines_of(offset));
}

coll_node *coll_node_new(coll_heap *own, int size, int rank, char *const *bases, const size_t *limits,
                         const uint64_t *areas) {
    coll_node *n = calloc(1, sizeof *n + (size_t)size * sizeof n->peers[0]);
    if (!n)
        return NULL;
    n->heap = own;
    n->size = size;
    n->rank = rank;
    n->sector = -1;
    n->limits = (coll_node_limits){.copy = 512,
                                   .read = 4 << 10,
                                   .shortest = 16 << 10,
                                   .segment = COLL_NODE_SEGMENT,
                                   .stream = 8 << 20,
                                   .private = 1 << 30};
    n->sources = calloc((size_t)size, sizeof *n->sources);
    n->targets = calloc((size_t)size + 1, sizeof *n->targets);
    if (!n->sources || !n->targets) {
        coll_node_free(n);
        return NULL;
    }
    for (int i = 0; i < size; i++) {
        n->peers[i] =
            (struct peer){.base = bases[i], .limit = limits[i], .area = area_at(bases[i], limits[i], areas[i])};
        if (!n->peers[i].area) {
            coll_node_free(n);
            return NULL;
        }
    }
    return n;
}

void coll_node_free(coll_node *n) {
    if (!n)
        return;
    coll_heap_release(n->heap, n->work);
    free(n->sources);
    free(n->targets);
    free(n);
}

/* The largest power of two up to n, but not below LEAST nor above COLL_NODE_SEGMENT. */
static size_t power_of_two(size_t n) {
    size_t power = LEAST;
    while (power < COLL_NODE_SEGMENT && power * 2 <= n)
        power *= 2;
    return power;
}

void coll_node_set_limits(coll_node *n, const coll_node_limits *l) {
    n->limits = *l;
    if (n->limits.read > COLL_NODE_READ)
        n->limits.read = COLL_NODE_READ;
    if (n->limits.copy > n->limits.read)
        n->limits.copy = n->limits.read;
    n->limits.segment = power_of_two(l->segment);
    n->limits.shortest = power_of_two(l->shortest < l->segment ? l->shortest : l->segment);
}

void coll_node_set_processes(coll_node *n, const int64_t *pids) {
    for (int i = 0; i < n->size; i++)
        n->peers[i].pid = pids[i];
    n->reads_private = 1;
}

static int gathers(const coll_node_message *m) {
    return m->kind == COLL_NODE_ALLGATHER || m->kind == COLL_NODE_GATHER;
}

/* A hash of the lengths of blocks that are known both to `rank` and to the ranks that read its line. */
static uint64_t known_lengths(const coll_node_message *m, int size, int rank) {
    if (gathers(m))
        return m->cuts[rank + 1] - m->cuts[rank];
    uint64_t all = 0;
    for (int i = 0; i < size && m->kind == COLL_NODE_REDUCE_SCATTER; i++)
        all = (all + m->cuts[i + 1]) * 0x9E3779B97F4A7C15u;
    return all; /* lengths of other blocks are in a table */
}

/* A hash of what all ranks know of a call. It does not include the type of data that are only moved, since bytes match
 * any type. */
static uint64_t hash(const coll_node_message *m) {
    uint64_t kind = (uint64_t)m->kind | (uint64_t)m->variant << 4 | (uint64_t)m->root << 8;
    uint64_t count = m->cuts ? 0 : m->count;
    return count * 0x9E3779B97F4A7C15u ^ (uint64_t)(m->dtype + 1) * 0xC2B2AE3D27D4EB4Fu ^
           (uint64_t)(m->op + 1) * 0x165667B19E3779F9u ^ (uint64_t)m->itemsize * 0xD6E8FEB86659FD93u ^
           kind * 0x9FB21C651E98DF25u;
}

/* 23 bits of the hash of this and earlier calls, of the type of data that are only moved, and of known lengths. */
static uint64_t signature(const coll_node_call *c, int type, int rank) {
    uint64_t h = c->common ^ (uint64_t)type * 0xFF51AFD7ED558CCDu;
    if (c->message.cuts)
        h ^= known_lengths(&c->message, c->node->size, rank) * 0x9E3779B97F4A7C15u;
    return (h ^ h >> 29) >> 3 << SIGNATURE_AT & ~INLINE_FLAG;
}

uint64_t coll_node_calls(const coll_node *n) {
    return atomic_load_explicit(&n->issued, memory_order_relaxed);
}

void coll_node_mix(coll_node *n, uint64_t kind) {
    n->history = (n->history ^ kind) * 0x9E3779B97F4A7C15u;
}

void coll_node_begin(coll_node_call *c, coll_node *n, const coll_node_message *m) {
    c->node = n;
    c->message = *m;
    c->number = atomic_fetch_add_explicit(&n->issued, 1, memory_order_relaxed) + 1;
    uint64_t here = hash(m);
    c->common = n->history ^ here;
    coll_node_mix(n, here);
    c->word = signature(c, m->type, n->rank) | (c->number & NUMBER_MASK);
    c->state = TURN;
    c->after = 0;
    c->status = COLL_PENDING;
    c->everything_shared = c->inlined = c->segments = c->claimed = c->staged = c->reduced = c->copied = 0;
    c->moves = 0;
    c->kept = 0;
    c->fold = m->user_op ? NULL : coll_reducep(m->dtype, m->op);
}

/* Whether `word` of rank q is right for this call if one of the two ranks names bytes and the other elements. */
static int matches_as_bytes(const coll_node_call *c, int q, uint64_t word) {
    int first = c->message.type ? 0 : 1, last = c->message.type ? 0 : COLL_NODE_TYPES;
    for (int type = first; type <= last; type++)
        if ((signature(c, type, q) | (c->number & NUMBER_MASK)) == word)
            return 1;
    return 0;
}

int coll_node_arrived(const coll_node_call *c, int q) {
    uint64_t word = see(&c->node->peers[q].area->lines[c->number % LINES].word) & ~INLINE_FLAG, expected = c->word;
    if (c->message.cuts && gathers(&c->message)) /* each rank's block may have another length */
        expected = signature(c, c->message.type, q) | (c->number & NUMBER_MASK);
    if (word == expected)
        return COLL_OK;
    if ((word & NUMBER_MASK) != (c->number & NUMBER_MASK))
        return COLL_PENDING;
    uint64_t before = coll_node_taken_back(word);
    if (matches_as_bytes(c, q, word))
        return COLL_OK;
    return (before == expected || matches_as_bytes(c, q, before)) && coll_node_gave_up(c, q) ? COLL_ERR_GIVEN_UP
                                                                                             : COLL_ERR_MESSAGE;
}

int coll_node_all_ended(coll_node *n, uint64_t number) {
    if (n->all_done >= number)
        return 1;
    uint64_t least = UINT64_MAX;
    for (int q = 0; q < n->size; q++) {
        uint64_t done = q == n->rank ? UINT64_MAX : see(&n->peers[q].area->done.value);
        least = done < least ? done : least;
    }
    n->all_done = least;
    return least >= number;
}

/* A sector is checked when the first place in it is claimed: data in it were staged one turn of the ring ago. */
int coll_node_claim(coll_node_call *c, size_t at, size_t bytes) {
    coll_node *n = c->node;
    int first = (int)(at / (STAGING / SECTORS)), last = (int)((at + bytes - 1) / (STAGING / SECTORS));
    for (int s = first; s <= last; s++)
        if (s != n->sector && n->users[s] != c->number && !coll_node_all_ended(n, n->users[s])) {
            c->after = n->users[s];
            return 0;
        }
    for (int s = first; s <= last; s++)
        n->users[s] = c->number;
    n->sector = last;
    return 1;
}

void coll_node_advance(coll_node_call *c, size_t at, size_t next) {
    if (at < c->node->at)
        c->node->sector = -1; /* a new turn of the ring begins */
    c->at = at;
    c->node->at = next;
}

static size_t table_bytes(const coll_node *n) {
    return lines_of(2 * (size_t)n->size * sizeof(uint64_t));
}

size_t coll_node_table_at(const coll_node *n, uint64_t number) {
    return STAGING + number % LINES * table_bytes(n);
}

size_t coll_node_work_bytes(const coll_node *n) {
    return coll_node_table_at(n, 0) + LINES * table_bytes(n);
}

int coll_node_allocate(coll_node *n) {
    if (!n->work)
        n->work = coll_heap_alloc(n->heap, coll_node_work_bytes(n));
    return n->work ? COLL_OK : COLL_ERR_MEMORY;
}

/* Bytes of a segment: a quarter of the vector, so that copying and folding overlap, rounded up and within limits. */
size_t coll_node_segment_bytes(const coll_node *n, size_t bytes) {
    size_t segment = n->limits.shortest;
    while (segment < bytes / 4)
        segment *= 2;
    return segment < n->limits.segment ? segment : n->limits.segment;
}

/* Take the next place in the ring for this call, and divide the vector into segments. */
static void take_place(coll_node_call *c, int whole) {
    coll_node *n = c->node;
    size_t bytes = bytes_of(c), unit = whole ? lines_of(bytes) : coll_node_segment_bytes(n, bytes);
    while (unit < c->message.itemsize)
        unit *= 2;
    c->segment_bytes = unit;
    c->segment = unit / c->message.itemsize;
    c->segments = (int)((c->message.count + c->segment - 1) / c->segment);
    size_t at = n->at + unit <= STAGING ? n->at : 0;
    if (!whole)
        at = (n->at + unit - 1) / unit * unit % STAGING;
    coll_node_advance(c, at, whole ? at + unit : (at + (size_t)c->segments * unit) % STAGING);
}

/* Publish where this rank's data are, and copy in what may be copied before the others arrive. */
static int begin_arrival(coll_node_call *c) {
    coll_node *n = c->node;
    arrival *a = &n->peers[n->rank].arrival;
    int whole = bytes_of(c) <= n->limits.read;
    if (coll_node_allocate(n))
        return COLL_ERR_MEMORY;
    if (!c->segments)
        take_place(c, whole);
    if (whole && !coll_node_claim(c, c->at, c->segment_bytes))
        return COLL_PENDING;
    int private = bytes_of(c) <= n->limits.copy;
    a->input = private ? 0 : offset_in_heap(n, c->message.input);
    a->output = private ? 0 : offset_in_heap(n, c->message.output);
    a->staging = (uint64_t)(n->work - n->peers[n->rank].base);
    a->at = c->at;
    own_line(c)->arrival = *a;
    if (whole && !a->input)
        hand(n, n->work + c->at, c->message.input, bytes_of(c));
    publish(&own_line(c)->word, c->word);
    if (!whole)
        coll_node_stage(c);
    c->state = ARRIVE;
    return COLL_OK;
}

/* When all ranks have arrived: choose the scheme, which is the same on all ranks. */
static int end_arrival(coll_node_call *c) {
    coll_node *n = c->node;
    int error = coll_node_all_here(c);
    if (error)
        return error;
    c->everything_shared = 1;
    for (int q = 0; q < n->size; q++) {
        struct peer *p = &n->peers[q];
        if (q != n->rank)
            p->arrival = p->area->lines[c->number % LINES].arrival;
        if (!coll_node_places_ok(c, q))
            return COLL_ERR_MESSAGE;
        c->everything_shared &= p->arrival.input && (p->arrival.output || !coll_node_wants(c, q));
    }
    if (c->everything_shared) {           /* nothing is staged: segments are only what is done at once */
        c->segment = elements_at_once(c); /* of which each rank folds its part, from all ranks */
        c->segments = (int)((c->message.count + c->segment - 1) / c->segment);
    }
    c->state = c->everything_shared || bytes_of(c) > n->limits.read ? SLICES : READ;
    return COLL_OK;
}

/* Whether a reduce of a long vector is done in slices: many ranks share the work; with few the root does all. */
static int by_slices(const coll_node_call *c) {
    return c->message.kind == COLL_NODE_REDUCE && c->node->size >= 4 && bytes_of(c) > c->node->limits.read;
}

/* Rewrite this rank's flags, with the number of the call before: its lines for this call, and its counters. */
static void renew(const coll_node_call *c) {
    area *a = own_area(c->node);
    uint64_t before = (c->number - 1) & NUMBER_MASK;
    publish(&a->lines[c->number % LINES].word, before);
    publish(&a->results[c->number % LINES].word, before);
    publish(&a->bundles[c->number % LINES].word, before);
    publish(&a->staged.value, progress_of(c, 0));
    publish(&a->reduced.value, progress_of(c, 0));
    publish(&a->copied.value, progress_of(c, 0));
}

static int begin(coll_node_call *c) {
    coll_node *n = c->node;
    uint64_t first = atomic_load_explicit(&n->finished, memory_order_acquire) + 1;
    uint64_t after = first != c->number ? first : c->number > LINES ? c->number - LINES : 0;
    if (first != c->number || !coll_node_all_ended(n, after)) {
        c->after = after;
        return COLL_PENDING;
    }
    if (c->number % RENEWED < LINES)
        renew(c);
    if (c->message.kind != COLL_NODE_ALLREDUCE && !by_slices(c)) {
        int error = coll_node_pull_begin(c);
        c->state = error ? TURN : PULL;
        return error;
    }
    if (bytes_of(c) > COLL_NODE_INLINE)
        return begin_arrival(c);
    coll_node_inline_begin(c);
    c->state = INLINE;
    return COLL_OK;
}

static int advance(coll_node_call *c) {
    int error;
    switch (c->state) {
    case TURN:
        return begin(c);
    case INLINE:
        error = coll_node_inline(c);
        break;
    case ARRIVE:
        return end_arrival(c);
    case READ:
        error = coll_node_read(c);
        break;
    case SLICES:
        error = coll_node_slices(c);
        break;
    default:
        error = coll_node_pull(c);
    }
    if (error == COLL_OK)
        c->state = ENDED;
    return error;
}

int coll_node_progress(coll_node_call *c) {
    while (c->status == COLL_PENDING) {
        int error = advance(c);
        if (error == COLL_PENDING)
            return COLL_PENDING;
        if (error == COLL_OK && c->state != ENDED)
            continue;
        c->status = error;
        if (error == COLL_OK) {
            publish(&own_area(c->node)->done.value, c->number);
            atomic_store_explicit(&c->node->finished, c->number, memory_order_release);
        }
    }
    return c->status;
}
