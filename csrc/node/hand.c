/* Stores into memory that other ranks read, and whose cache lines they hold from the last time: copies into the ring,
 * and results into arrays on the heaps of other ranks.
 *
 * Where ranks share a cache, such lines are quickly taken back, and the next reader finds the data in the cache. Where
 * they do not (other core complexes, other sockets), every store to a line waits for its invalidation: such a copy is
 * ten times as slow as one that bypasses the cache, whose data readers then fetch from memory. Some copies are timed to
 * find out which case holds: processors do not tell, least of all virtual ones, and ranks may be moved. */
#include "internal.h"
#include "base/ticks.h"

enum {
    SLOW = 4,      /* bytes per ns; 9 and more within a cache, 2 across caches (AMD Zen 4) */
    SLOW_ONES = 3, /* slow copies in a row that count; a single one may have been interrupted */
    EVERY = 8,     /* one copy out of this number is timed */
    SELDOM = 256   /* the most copies between attempts to go through the cache again */
};

static void judge(struct handing *h, int slow) {
    if (!slow) {
        *h = (struct handing){.rest = EVERY, .patience = EVERY};
        return;
    }
    h->slow += !h->far;
    h->far |= h->slow >= SLOW_ONES;
    h->rest = h->far ? h->patience : 0;
    h->patience += h->far && h->patience < SELDOM ? h->patience : 0;
}

/* Whether the next store is to be timed, and goes through the cache. */
static int due(struct handing *h) {
    if (h->rest == 0)
        return 1;
    h->rest--;
    return 0;
}

void coll_node_hand_long(struct handing *h, void *to, const void *from, size_t bytes) {
    if (!due(h)) {
        (h->far ? coll_copy_stream : coll_copy)(to, from, bytes);
        return;
    }
    int64_t begin = coll_now();
    coll_copy(to, from, bytes);
    judge(h, (coll_now() - begin) * SLOW > (int64_t)bytes);
}

int coll_node_fold_and_hand(coll_node_call *c, int sources, size_t elements) {
    coll_node *n = c->node;
    size_t item = c->message.itemsize, most = HAND_PIECE / item ? HAND_PIECE / item : 1;
    int error = COLL_OK;
    for (size_t i = 0, m; i < elements && !error; i += m) {
        m = elements - i < most ? elements - i : most;
        error = coll_node_fold(c, sources, 1, m, 0);
        coll_copy_stream(n->targets[1], n->targets[0], m * item);
        for (int s = 0; s < sources; s++)
            n->sources[s] = (const char *)n->sources[s] + m * item;
        for (int t = 0; t < 2; t++)
            n->targets[t] = (char *)n->targets[t] + m * item;
    }
    return error;
}

int coll_node_fold_to_outputs(coll_node_call *c, int sources, int targets, size_t elements) {
    struct handing *h = &c->node->storing;
    size_t bytes = (size_t)(targets - 1) * elements * c->message.itemsize;
    int past_cache = bytes_of(c) >= c->node->limits.stream;
    if (past_cache || targets < 2 || bytes < HAND_FROM || c->message.user_op)
        return coll_node_fold(c, sources, targets, elements, past_cache);
    if (!due(h))
        return coll_node_fold(c, sources, targets, elements, h->far);
    int64_t begin = coll_now();
    int error = coll_node_fold(c, sources, targets, elements, 0);
    judge(h, (coll_now() - begin) * SLOW > (int64_t)bytes);
    return error;
}
