/* Inspects a call that is under way: which ranks it waits for, and whether it can still end. */
#include "blocks.h"

/* Whether this rank waits for rank q before it can stage its next segment. */
static int keeps_room(const coll_node_call *c, int q) {
    const area *a = c->node->peers[q].area;
    if (c->staged >= c->segments)
        return 0;
    if (c->staged < c->slots)
        return !reached(&a->done, c->after);
    return reads(c, q) && !reached(&a->reduced, progress_of(c, c->staged - c->slots + 1));
}

/* Whether rank q has not yet published what this rank takes next. Data in its line or in its arrays are published by
 * its arrival. */
static int withholds(const coll_node_call *c, int q) {
    const struct peer *p = &c->node->peers[q];
    const arrival *a = &p->area->lines[c->number % LINES].arrival;
    if (!takes(c, q, c->node->rank) || p->taken == COLL_NODE_ALL_TAKEN)
        return 0;
    if (coll_node_arrived(c, q) != COLL_OK)
        return 1;
    if (coll_node_expects_inline(c, q) || a->input || a->private)
        return 0;
    return !reached(&p->area->staged, progress_of(c, (folds(c) ? c->reduced : p->taken) + 1));
}

static int pull_waits_for(const coll_node_call *c, int q) {
    if (keeps_room(c, q))
        return 1;
    if (!c->copied)
        return withholds(c, q);
    return c->staged >= c->segments && reads(c, q) && !reached(&c->node->peers[q].area->done, c->number);
}

/* Whether the call waits for rank q at present. */
static int waits_for(const coll_node_call *c, int q) {
    const area *a = c->node->peers[q].area;
    switch (c->state) {
    case TURN:
        return !reached(&a->done, c->after);
    case READ:
        return !reached(&a->done, c->number);
    case SLICES:
        return coll_node_slices_waits_for(c, q);
    case PULL:
        return pull_waits_for(c, q);
    case INLINE:
        return coll_node_inline_waits_for(c, q);
    default:
        return coll_node_arrived(c, q) != COLL_OK;
    }
}

/* Whether rank q has taken nothing of what this rank has published for it. */
static int ignored(const coll_node_call *c, int q) {
    const coll_node *n = c->node;
    return takes(c, n->rank, q) && !reached(&n->peers[q].area->reduced, progress_of(c, 1));
}

/* Whether this rank can tell what other ranks' lines should say: in a gather of unequal blocks only the root can. */
static int knows_lines(const coll_node_call *c) {
    return !c->message.cuts || c->message.kind != COLL_NODE_GATHER || c->node->rank == c->message.root;
}

/* Whether rank q's flags prove that its call of this number is a different one: it has arrived with another signature,
 * or has ended the call without doing what this rank waits for. */
static int differs(const coll_node_call *c, int q) {
    const area *a = c->node->peers[q].area;
    int ended = reached(&a->done, c->number), here = knows_lines(c) ? coll_node_arrived(c, q) : COLL_OK;
    if (here == COLL_ERR_MESSAGE)
        return 1;
    return ended && ((here == COLL_PENDING && waits_for(c, q)) || (c->state == PULL && ignored(c, q)));
}

int coll_node_look(coll_node_call *c) {
    if (c->status == COLL_PENDING && coll_node_given_up(c))
        c->status = COLL_ERR_GIVEN_UP;
    for (int q = 0; q < c->node->size && c->state != TURN && c->status == COLL_PENDING; q++)
        if (q != c->node->rank && differs(c, q))
            c->status = COLL_ERR_MESSAGE;
    return c->status;
}

int coll_node_waiting(const coll_node_call *c, int *ranks, int max) {
    int found = 0;
    for (int q = 0; q < c->node->size && found < max; q++)
        if (q != c->node->rank && waits_for(c, q))
            ranks[found++] = q;
    return found;
}
