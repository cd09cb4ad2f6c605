/* The group, and the way of a call: turn, arrival, phase, end. */
#include "node_internal.h"
#include "error.h"

#include <stdlib.h>

enum { TURN, INLINE, ARRIVE, READ, SLICES, ENDED };

static const uint64_t NUMBER_MASK = ((uint64_t)1 << NUMBER_BITS) - 1;

size_t coll_node_area_bytes(void) {
    return sizeof(area);
}

coll_node *coll_node_new(coll_heap *own, int size, int rank, char *const *bases, const size_t *limits,
                         const uint64_t *areas) {
    coll_node *n = calloc(1, sizeof *n + (size_t)size * sizeof n->peers[0]);
    if (!n)
        return NULL;
    n->heap = own;
    n->size = size;
    n->rank = rank;
    n->limits = (coll_node_limits){.read = 4 << 10, .segment = COLL_NODE_SEGMENT, .stream = 16 << 20};
    n->sources = calloc((size_t)size, sizeof *n->sources);
    n->targets = calloc((size_t)size + 1, sizeof *n->targets);
    if (!n->sources || !n->targets) {
        coll_node_free(n);
        return NULL;
    }
    for (int i = 0; i < size; i++)
        n->peers[i] = (struct peer){.base = bases[i], .limit = limits[i], .area = (area *)(bases[i] + areas[i])};
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

void coll_node_set_limits(coll_node *n, const coll_node_limits *l) {
    n->limits = *l;
    if (n->limits.read > COLL_NODE_READ)
        n->limits.read = COLL_NODE_READ;
    n->limits.segment = LEAST;
    while (n->limits.segment < COLL_NODE_SEGMENT && n->limits.segment * 2 <= l->segment)
        n->limits.segment *= 2;
}

/* 24 bits that differ, nearly always, when length, type or op do. */
static uint64_t signature(const coll_node_message *m) {
    uint64_t h = (uint64_t)m->count * 0x9E3779B97F4A7C15u ^ (uint64_t)(m->dtype + 1) * 0xC2B2AE3D27D4EB4Fu ^
                 (uint64_t)(m->op + 1) * 0x165667B19E3779F9u ^ (uint64_t)m->itemsize * 0xD6E8FEB86659FD93u;
    return (h ^ h >> 29) >> 3 << NUMBER_BITS;
}

void coll_node_begin(coll_node_call *c, coll_node *n, const coll_node_message *m) {
    c->node = n;
    c->message = *m;
    c->number = atomic_fetch_add_explicit(&n->issued, 1, memory_order_relaxed) + 1;
    c->word = signature(m) | (c->number & NUMBER_MASK);
    c->state = TURN;
    c->status = COLL_PENDING;
    c->everything_shared = c->segments = c->staged = c->reduced = c->copied = 0;
    c->fold = m->user_op ? NULL : coll_reducep(m->dtype, m->op);
    c->fold_stream = m->user_op ? NULL : coll_reducep_stream(m->dtype, m->op);
}

static size_t bytes_of(const coll_node_call *c) {
    return c->message.count * c->message.itemsize;
}

/* Whether all ranks' lines are those of this call. */
static int all_here(const coll_node_call *c) {
    const coll_node *n = c->node;
    for (int i = n->size, q = n->rank; --i > 0;) {
        q = q + 1 < n->size ? q + 1 : 0;
        uint64_t word = see(&n->peers[q].area->lines[c->number & 1].word);
        if (word != c->word)
            return (word & NUMBER_MASK) == (c->number & NUMBER_MASK) ? COLL_ERR_MESSAGE : COLL_PENDING;
    }
    return COLL_OK;
}

static line *say(const coll_node_call *c) {
    return &own_area(c->node)->lines[c->number & 1];
}

static void arrive(const coll_node_call *c) {
    publish(&say(c)->word, c->word);
}

static void begin_inline(coll_node_call *c) {
    move(say(c)->payload, c->message.input, bytes_of(c));
    arrive(c);
    c->state = INLINE;
}

static int end_inline(coll_node_call *c) {
    coll_node *n = c->node;
    _Alignas(64) unsigned char result[COLL_NODE_INLINE];
    int error = all_here(c);
    if (error)
        return error;
    if (c->message.count) {
        for (int q = 0; q < n->size; q++)
            n->sources[q] = n->peers[q].area->lines[c->number & 1].payload;
        n->targets[0] = result;
        error = coll_node_fold(c, 1, c->message.count, 0);
        memcpy(c->message.output, result, bytes_of(c));
    }
    return error;
}

static uint64_t offset_in(const coll_node *n, const void *p) {
    const struct peer *self = &n->peers[n->rank];
    return coll_heap_has(self->base, self->limit, p) ? (uint64_t)((const char *)p - self->base) : 0;
}

static size_t lines_of(size_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}

static size_t result_bytes(const coll_node *n) {
    return STAGING / (size_t)n->size + STAGING / LEAST * RESULT_SLACK;
}

static int allocate_work(coll_node *n) {
    if (!n->work)
        n->work = coll_heap_alloc(n->heap, STAGING + result_bytes(n));
    return n->work ? COLL_OK : COLL_ERR_MEMORY;
}

/* A quarter of the vector, so that copying and folding overlap, within limits. */
static size_t segment_bytes(const coll_node *n, size_t bytes) {
    size_t segment = SHORTEST;
    while (segment < bytes / 4)
        segment *= 2;
    return segment < n->limits.segment ? segment : n->limits.segment;
}

/* The next place in the ring, and the call's segments in it; the same on all ranks, wherever their arrays lie. */
static void take_place(coll_node_call *c, int whole) {
    coll_node *n = c->node;
    size_t bytes = bytes_of(c), unit = whole ? lines_of(bytes) : segment_bytes(n, bytes);
    c->segment_bytes = unit;
    c->segment = unit / c->message.itemsize;
    c->segments = (int)((c->message.count + c->segment - 1) / c->segment);
    if (whole) {
        c->at = n->at + unit <= STAGING ? n->at : 0;
        n->at = c->at + unit;
    } else {
        c->at = (n->at + unit - 1) / unit * unit % STAGING;
        n->at = (c->at + (size_t)c->segments * unit) % STAGING;
    }
}

/* Says where the own data are, and copies in what may be copied before the others come. */
static int begin_arrival(coll_node_call *c) {
    coll_node *n = c->node;
    arrival *a = &say(c)->arrival;
    int whole = bytes_of(c) <= n->limits.read;
    if (c->message.itemsize > n->limits.segment)
        return COLL_ERR_ARGUMENT;
    if (allocate_work(n))
        return COLL_ERR_MEMORY;
    take_place(c, whole);
    a->input = offset_in(n, c->message.input);
    a->output = offset_in(n, c->message.output);
    a->staging = (uint64_t)(n->work - n->peers[n->rank].base);
    a->results = a->staging + STAGING;
    n->peers[n->rank].arrival = *a;
    if (whole && !a->input)
        move(n->work + c->at, c->message.input, bytes_of(c));
    arrive(c);
    if (!whole)
        coll_node_stage(c);
    c->state = ARRIVE;
    return COLL_OK;
}

/* Everybody has said where their data are: choose the scheme, as all others do. */
static int end_arrival(coll_node_call *c) {
    coll_node *n = c->node;
    int error = all_here(c);
    if (error)
        return error;
    c->everything_shared = 1;
    for (int q = 0; q < n->size; q++) {
        struct peer *p = &n->peers[q];
        p->arrival = p->area->lines[c->number & 1].arrival;
        c->everything_shared &= p->arrival.input && p->arrival.output;
    }
    if (c->everything_shared) {
        c->segment = c->message.count;
        c->segments = 1;
    }
    c->state = c->everything_shared || bytes_of(c) > n->limits.read ? SLICES : READ;
    return COLL_OK;
}

static int advance(coll_node_call *c) {
    switch (c->state) {
    case TURN:
        if (atomic_load_explicit(&c->node->finished, memory_order_acquire) + 1 != c->number)
            return COLL_PENDING;
        if (bytes_of(c) <= COLL_NODE_INLINE)
            begin_inline(c);
        else
            return begin_arrival(c);
        return COLL_OK;
    case INLINE: {
        int error = end_inline(c);
        c->state = error ? INLINE : ENDED;
        return error;
    }
    case ARRIVE:
        return end_arrival(c);
    default: {
        int error = c->state == READ ? coll_node_read(c) : coll_node_slices(c);
        c->state = error ? c->state : ENDED;
        return error;
    }
    }
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

int coll_node_waiting(const coll_node_call *c, int *ranks, int max) {
    const coll_node *n = c->node;
    int found = 0;
    for (int q = 0; q < n->size && found < max; q++) {
        const area *a = n->peers[q].area;
        uint64_t word = see(&a->lines[c->number & 1].word);
        int late = word != c->word || (c->state == READ && see(&a->done.value) < c->number) ||
                   (c->state == SLICES && see(&a->reduced.value) < progress_of(c, c->copied + 1));
        if (late && q != n->rank && c->state != TURN)
            ranks[found++] = q;
    }
    return found;
}
