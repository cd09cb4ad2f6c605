/* Calls of the node-local engine as tasks that keep MPI moving while they wait. */
#ifndef COLL_NODE_WAIT_H
#define COLL_NODE_WAIT_H

#include "node/node.h"
#include "progress.h"

typedef struct {
    coll_node_call call;
    const coll_mpi_api *mpi; /* NULL: there is no MPI to keep moving */
    coll_endpoint *endpoint;
    uint64_t polled; /* when MPI was last */
} coll_node_job;

/* MPI is polled every 20 us: whoever posted an Isend and waits here must not keep its receiver waiting. */
coll_task coll_node_task(coll_node_job *);

/* Spin for about two microseconds: shorter than giving the interpreter's lock away and taking it back. */
int coll_node_spin(coll_node_call *);

#endif
