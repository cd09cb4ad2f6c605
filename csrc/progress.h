/* Non-blocking executions: a queue, and the thread that moves it while it is not empty. */
#ifndef COLL_PROGRESS_H
#define COLL_PROGRESS_H

#include "executor.h"
#include "transport_mpi.h"

typedef struct coll_request coll_request;
struct coll_request {
    coll_exec *exec;
    coll_request *next;
    _Atomic int status; /* COLL_PENDING, then COLL_OK or an error */
    const coll_mpi_api *mpi;
    intptr_t handle;    /* MPI's generalized request; completed with the execution */
    int *handle_status;
};

/* Queue a request whose execution has been started. The thread starts with the first one. COLL_OK or an error. */
int coll_progress_submit(coll_request *);
/* Move every queued execution once, unless another thread is doing so. */
void coll_progress_poll(void);
/* Number of requests that are not done. */
int coll_progress_outstanding(void);
/* Progress a blocking execution (or, with e == NULL, wait for a queued request), and the queue beside it, for about
 * `limit` nanoseconds: COLL_OK, COLL_PENDING when the time is over, or an error. yield_at_once: there are more ranks
 * than cores, so that spinning would keep the others from running. */
int coll_progress_wait(coll_exec *e, const coll_request *r, int yield_at_once, long limit);
/* End the thread, if there is one; requests that are not done stay so. */
void coll_progress_stop(void);

#endif
