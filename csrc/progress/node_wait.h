/* Calls of the node-local engine as tasks that poll MPI while they wait. */
#ifndef COLL_NODE_WAIT_H
#define COLL_NODE_WAIT_H

#include "node/node.h"
#include "progress.h"

typedef struct {
    coll_node_call call;
    const coll_mpi_api *mpi; /* NULL: there is no MPI to poll */
    coll_endpoint *endpoint;
    uint64_t polled; /* ticks at the last poll of MPI */
} coll_node_job;

/* The task polls MPI at least every 20 us: the receiver of an Isend of this rank must not wait for this call. */
coll_task coll_node_task(coll_node_job *);

/* Spin for about 2 us, which is shorter than releasing the interpreter's lock and taking it again. */
int coll_node_spin(coll_node_call *);

#endif
