/* All-reduce of vectors that fit in the cache line of the flag.
 *
 * Up to GROUP ranks read each other's lines. With more ranks that would be size * size transfers of lines. So the first
 * rank of each group of GROUP neighbours, its leader, puts its members' data side by side in a bundle, reads the other
 * leaders' bundles, and gives its members the result. Both ways fold in rank order, with the same bits. */
#include "internal.h"

static int leader_of(int rank) {
    return rank / GROUP * GROUP;
}

static int members_of(const coll_node *n, int leader) {
    return n->size - leader < GROUP ? n->size - leader : GROUP;
}

/* Write the input and the flag to this rank's line. */
void coll_node_inline_begin(coll_node_call *c) {
    move(own_line(c)->payload, c->message.input, bytes_of(c));
    publish(&own_line(c)->word, c->word);
}

/* Fold all contributions, which n->sources gives, into the output. */
static int fold(coll_node_call *c) {
    _Alignas(64) unsigned char result[COLL_NODE_INLINE];
    if (!c->message.count)
        return COLL_OK;
    c->node->targets[0] = result;
    int error = coll_node_fold(c, c->node->size, 1, c->message.count, 0);
    memcpy(c->message.output, result, bytes_of(c));
    return error;
}

static int flat(coll_node_call *c) {
    coll_node *n = c->node;
    int error = coll_node_all_here(c);
    if (error)
        return error;
    for (int q = 0; q < n->size; q++)
        n->sources[q] = n->peers[q].area->lines[c->number % LINES].payload;
    return fold(c);
}

static bundle *bundle_of(const coll_node_call *c, int leader) {
    return &c->node->peers[leader].area->bundles[c->number % LINES];
}

/* The status while a leader's bundle or result is missing: COLL_PENDING, or the error that the leader's line shows. */
static int refused(const coll_node_call *c, int leader) {
    int error = coll_node_arrived(c, leader);
    return error < 0 ? error : COLL_PENDING;
}

/* First step of a leader: bundle its members' data when all members have arrived. */
static int collect(coll_node_call *c) {
    coll_node *n = c->node;
    bundle *own = bundle_of(c, n->rank);
    for (int i = 0; i < members_of(n, n->rank); i++) {
        int error = coll_node_arrived(c, n->rank + i);
        if (error)
            return error;
    }
    for (int i = 0; i < members_of(n, n->rank); i++)
        move(own->payload + (size_t)i * bytes_of(c), n->peers[n->rank + i].area->lines[c->number % LINES].payload,
             bytes_of(c));
    publish(&own->word, c->word);
    return COLL_OK;
}

/* Second step of a leader: fold all bundles, and publish the result for its members. */
static int combine(coll_node_call *c) {
    coll_node *n = c->node;
    line *result = &own_area(n)->results[c->number % LINES];
    for (int leader = 0; leader < n->size; leader += GROUP) {
        if (see(&bundle_of(c, leader)->word) != c->word)
            return refused(c, leader);
        for (int i = 0; i < members_of(n, leader); i++)
            n->sources[leader + i] = bundle_of(c, leader)->payload + (size_t)i * bytes_of(c);
    }
    int error = fold(c);
    if (error)
        return error;
    move(result->payload, c->message.output, bytes_of(c));
    publish(&result->word, c->word);
    return COLL_OK;
}

static int grouped(coll_node_call *c) {
    coll_node *n = c->node;
    int leader = leader_of(n->rank);
    if (n->rank != leader) {
        const line *result = &n->peers[leader].area->results[c->number % LINES];
        if (see(&result->word) != c->word)
            return refused(c, leader);
        move(c->message.output, result->payload, bytes_of(c));
    } else {
        int error = c->staged ? COLL_OK : collect(c);
        if (!error) {
            c->staged = 1;
            error = combine(c);
        }
        if (error)
            return error;
    }
    n->all_done = c->number - 1; /* the result has contributions of all ranks, so all have begun this call */
    return COLL_OK;
}

int coll_node_inline(coll_node_call *c) {
    return c->node->size <= GROUP ? flat(c) : grouped(c);
}

int coll_node_inline_waits_for(const coll_node_call *c, int q) {
    const coll_node *n = c->node;
    int leader = leader_of(n->rank);
    if (n->size <= GROUP || (n->rank == leader && !c->staged && leader_of(q) == leader))
        return coll_node_arrived(c, q) != COLL_OK;
    if (n->rank != leader)
        return q == leader;
    return q == leader_of(q) && see(&bundle_of(c, q)->word) != c->word;
}
