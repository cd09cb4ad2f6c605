/* Waiting for a call of the node-local engine, with MPI kept moving. */
#ifndef COLL_NODE_WAIT_H
#define COLL_NODE_WAIT_H

#include "node.h"
#include "transport_mpi.h"

/* Spin for about two microseconds: shorter than giving the interpreter's lock away and taking it back. */
int coll_node_spin(coll_node_call *);

/* Progress, for about `limit` nanoseconds: COLL_OK, COLL_PENDING when the time is over, or an error. Gives the core away
 * after a short while, or at once where there are more ranks than cores. The queue of non-blocking calls moves meanwhile,
 * and so does MPI, polled every 20 us: whoever posted an Isend and waits here must not keep its receiver waiting. */
int coll_node_wait(coll_node_call *, int yield_at_once, const coll_mpi_api *, coll_endpoint *, long limit);

#endif
