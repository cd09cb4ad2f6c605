/* Folds data from several places, by a kernel or a user-defined op. */
#include "internal.h"

/* For ops without a kernel, in pieces: acc = acc op source, for all sources in rank order; then acc to the targets. */
static int fold_by_user(coll_node_call *c, int sources, int q, size_t elements) {
    coll_node *n = c->node;
    size_t item = c->message.itemsize, most = COLL_NODE_PIECE / item;
    char *acc = c->message.user_spare, *spare = acc + COLL_NODE_PIECE;
    int error = COLL_OK;
    for (size_t i = 0, m; i < elements && !error; i += m) {
        m = elements - i < most ? elements - i : most;
        memcpy(acc, (const char *)n->sources[0] + i * item, m * item);
        for (int s = 1; s < sources && !error; s++)
            error =
                c->message.user_op(c->message.user_context, acc, acc, (const char *)n->sources[s] + i * item, spare, m);
        for (int t = 0; t < q; t++)
            memcpy((char *)n->targets[t] + i * item, acc, m * item);
    }
    return error;
}

int coll_node_fold(coll_node_call *c, int sources, int q, size_t elements, int stream) {
    coll_node *n = c->node;
    if (c->message.user_op)
        return fold_by_user(c, sources, q, elements);
    coll_model_point();
    for (int s = 0; s < sources; s++)
        coll_model_load(n->sources[s], elements * c->message.itemsize);
    for (int t = 0; t < q; t++)
        coll_model_store(n->targets[t], elements * c->message.itemsize);
    coll_reducep_fn fold = stream ? coll_reducep_stream(c->message.dtype, c->message.op) : c->fold;
    fold(n->targets, q, n->sources, sources, elements);
    coll_model_point();
    return COLL_OK;
}
