/* Calls of ranks on several nodes: a fixed sequence of parts, each a call of the node-local engine among the ranks of a
 * node, a run of a schedule between ranks of different nodes, or a transposition of blocks on one rank.
 *
 * Parts of the node are in two channels, each a group of the engine: parts before the runs in one, those behind in the
 * other, where calls need it. The parts of a channel begin in their order, which is the same on all ranks of the node.
 * All get their numbers when the call begins, so that calls under way at the same time do not mix theirs. With one
 * channel, the first part of a call waits for the last part of the call before, and so for the links.
 *
 * A run begins when the part that it must follow and earlier runs with its tag have ended, so that runs overlap with
 * parts of the node and with other runs. So does a transposition, which has a tag for this alone. */
#ifndef COLL_HIERARCHY_H
#define COLL_HIERARCHY_H

#include "progress/node_wait.h"
#include "progress/progress.h"

enum { COLL_AT_INPUT, COLL_AT_VECTOR, COLL_AT_SCRATCH, COLL_PLACES };
enum { COLL_HIERARCHY_RUNS = 4 }; /* the most executions of a call, which run at once, each with a tag of its own */
enum { COLL_HIERARCHY_CHANNELS = 2 };

typedef struct {
    size_t rows, columns, bytes; /* of the source, and the bytes of an entry */
} coll_matrix;

typedef struct {
    const coll_node_message *message; /* a part of the node, whose addresses are set at each start; or NULL */
    coll_exec *run;                   /* else the execution of a run; parts with the same tag may have the same one */
    coll_matrix matrix;               /* of a transposition, which has neither */
    int tag;                          /* of a run, after the call's first one; of a part of the node, its channel */
    int after;                        /* the part that must have ended before this one begins, or -1 */
    int source, target;               /* where input and output are: COLL_AT_... */
    size_t source_at, target_at;      /* and at which byte */
} coll_hierarchy_part;

typedef struct coll_hierarchy coll_hierarchy;

/* A call of `n` parts, which are copied. `channels` are groups of the same ranks; NULL if no part is one of the node.
 * `ranks` are the communicator's numbers of their ranks; `scratch` is memory for results between parts. The executions,
 * messages and the memory must outlive the hierarchy. NULL without memory, or if a part is before the one that it must
 * follow. */
coll_hierarchy *coll_hierarchy_new(const coll_hierarchy_part *parts, int n, coll_node *const *channels,
                                   const int *ranks, void *scratch);
void coll_hierarchy_free(coll_hierarchy *);
/* Let parts of the node poll MPI while they wait. */
void coll_hierarchy_set_mpi(coll_hierarchy *, const coll_mpi_api *, coll_endpoint *);
/* Start a call on memory at two addresses; it uses the tags from `tag` on. COLL_OK, or COLL_ERR_ARGUMENT if one is
 * under way or has ended with an error. */
int coll_hierarchy_start(coll_hierarchy *, const void *input, void *vector, int tag);
/* Whether a call is under way, or has ended with an error. */
int coll_hierarchy_busy(const coll_hierarchy *);
coll_task coll_hierarchy_task(coll_hierarchy *);

#endif
