/* Calls that end early: a rank that gives up a call withdraws its arrival.
 *
 * Its arrays belong to the program again, while other ranks may be about to use them. A rank that reads such an array
 * checks afterwards whether the call was given up meanwhile. A rank that writes to one announces it first and then
 * checks; a rank that gives up announces it first and then waits for the writers: one of the two sees the other. */
#include "internal.h"

int coll_node_given_up(const coll_node_call *c) {
    atomic_thread_fence(memory_order_acquire);
    for (int q = 0; q < c->node->size; q++)
        if (coll_node_gave_up(c, q))
            return COLL_ERR_GIVEN_UP;
    return COLL_OK;
}

/* Whether this rank writes directly to the output array of another rank. */
static int writes(const coll_node_call *c) {
    for (int q = 0; q < c->node->size; q++)
        if (q != c->node->rank && coll_node_wants(c, q) && c->node->peers[q].arrival.output)
            return 1;
    return 0;
}

int coll_node_enter(const coll_node_call *c) {
    if (!writes(c))
        return COLL_OK;
    publish(&own_area(c->node)->writing.value, c->number);
    atomic_thread_fence(memory_order_seq_cst);
    int error = coll_node_given_up(c);
    if (error)
        publish(&own_area(c->node)->writing.value, 0);
    return error;
}

int coll_node_leave(const coll_node_call *c) {
    if (writes(c))
        publish(&own_area(c->node)->writing.value, 0);
    return coll_node_given_up(c);
}

void coll_node_give_up(coll_node *n) {
    area *own = own_area(n);
    uint64_t number = atomic_load_explicit(&n->finished, memory_order_acquire) + 1;
    if (own->given_up.value)
        return;
    publish(&own->given_up.value, number);
    line *l = &own->lines[number % LINES];
    uint64_t word = see(&l->word);
    if (((word ^ number) & NUMBER_MASK) == 0) /* this rank has arrived at the call */
        publish(&l->word, coll_node_taken_back(word));
    atomic_thread_fence(memory_order_seq_cst);
}

int coll_node_writers(const coll_node *n, int *ranks, int max) {
    if (coll_heap_in_child())
        return 0;
    uint64_t since = own_area(n)->given_up.value;
    int found = 0;
    for (int q = 0; q < n->size && found < max && since; q++) {
        uint64_t writing = see(&n->peers[q].area->writing.value);
        if (q != n->rank && writing && not_before(writing, since))
            ranks[found++] = q;
    }
    return found;
}

int coll_node_quitters(const coll_node *n, int *ranks, int max) {
    int found = 0;
    if (coll_heap_in_child()) /* which has no part in the others' heaps */
        return 0;
    for (int q = 0; q < n->size && found < max; q++)
        if (see(&n->peers[q].area->given_up.value))
            ranks[found++] = q;
    return found;
}
