/* Non-blocking collectives: a queue of requests, and the thread that moves it while it is not empty. */
#ifndef COLL_PROGRESS_H
#define COLL_PROGRESS_H

#include "schedule/executor.h"
#include "transport/mpi_transport.h"

/* Something that progresses when asked to: the run of a schedule, or a call of the node-local engine. */
typedef struct {
    void *self;
    int (*progress)(void *self, size_t budget); /* COLL_OK, COLL_PENDING or an error */
    int (*waiting)(const void *self, int *ranks, int max);
    /* Give up the task: progress returns an error from then on. Returns the number of messages that may still arrive in
     * its memory; to be called again until that is 0. */
    int (*abandon)(void *self);
    int gives_way; /* whether each poll gives the core to others that wait for it */
} coll_task;

coll_task coll_exec_task(coll_exec *);

typedef struct coll_request coll_request;
struct coll_request {
    coll_task task;
    coll_request *next;
    uint64_t number;    /* in the order of submission */
    int withdrawn;      /* to be ended by the pass over the queue that is under way */
    _Atomic int status; /* COLL_PENDING, then COLL_OK or an error */
    const coll_mpi_api *mpi;
    intptr_t handle; /* MPI's generalized request; completed with the task */
    int *handle_status;
    _Atomic uint64_t ended; /* ticks when it ended, set before MPI completes its request; 0 before */
};

/* Queue a request whose task has been started, and move it for the first time unless another thread goes through the
 * queue. The thread starts with the first request. COLL_OK or an error.
 * A task may run code of the program's, an op say, which may submit and abandon requests, but not wait for one. */
int coll_progress_submit(coll_request *);
/* Go through the queue once, unless another thread is doing so. */
void coll_progress_poll(void);
/* Number of requests that have ended with an error since the process began. */
unsigned coll_progress_failures(void);
/* Number of requests that have not ended. */
int coll_progress_outstanding(void);
/* Progress a blocking task (or, with t == NULL, wait for a queued request), and the queue as well, for about `limit`
 * nanoseconds. COLL_OK, COLL_PENDING when the time is over, or an error. yield_at_once: there are more ranks than
 * cores, so that spinning would keep other ranks from running. */
int coll_progress_wait(const coll_task *t, const coll_request *r, int yield_at_once, long limit);
/* For a wait that MPI makes: move the queue until `*ended`, for a while at most. */
void coll_progress_wait_in_mpi(const atomic_int *ended);
/* For how long (ns) MPI has been waiting for a request; 0 if it does not wait, or if that is not known. The main thread
 * has been in one C function since `main_since` (ns of the monotonic clock). */
int64_t coll_progress_waited_in_mpi(const coll_request *, int64_t main_since);
/* Wait for a queued request in a sleep; the thread then moves it without delay. */
int coll_progress_sleep(const coll_request *r, long limit);
/* Write the ranks that a task waits for to ranks[max]; returns their number. The task may be in the queue. */
int coll_progress_waiting(const coll_task *, int *ranks, int max);
/* Abandon the task of a request, and remove the request from the queue, which ends it with COLL_ERR_GIVEN_UP. */
int coll_progress_abandon(coll_request *);
/* Wait for about `limit` nanoseconds until no request is outstanding, then end the thread. */
void coll_progress_stop(long limit);

/* In a forked child: there are no requests, and there is no thread. Called by the watch of forks in ending.c. */
void coll_progress_forget(void);

#endif
