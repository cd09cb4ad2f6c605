/* Non-blocking collectives: a queue, and the thread that moves it while it is not empty. */
#ifndef COLL_PROGRESS_H
#define COLL_PROGRESS_H

#include "schedule/executor.h"
#include "transport/mpi_transport.h"

/* Something under way that progresses when it is asked to: the run of a schedule, or a call of the node-local engine.
 */
typedef struct {
    void *self;
    int (*progress)(void *self, size_t budget); /* COLL_OK, COLL_PENDING or an error */
    int (*waiting)(const void *self, int *ranks, int max);
    /* Give it up: progress returns an error from then on. The number of messages that still come into its memory; to be
     * called again until there are none. */
    int (*abandon)(void *self);
} coll_task;

coll_task coll_exec_task(coll_exec *);

typedef struct coll_request coll_request;
struct coll_request {
    coll_task task;
    coll_request *next;
    uint64_t number;    /* in the order of submission */
    _Atomic int status; /* COLL_PENDING, then COLL_OK or an error */
    const coll_mpi_api *mpi;
    intptr_t handle; /* MPI's generalized request; completed with the execution */
    int *handle_status;
    uint64_t ended; /* ticks, once it is done */
};

/* Queue a request whose task has been started. The thread starts with the first one. COLL_OK or an error. */
int coll_progress_submit(coll_request *);
/* Move every queued task once, unless another thread is doing so. */
void coll_progress_poll(void);
/* Number of requests that have ended with an error, since ever. */
unsigned coll_progress_failures(void);
/* Number of requests that are not done. */
int coll_progress_outstanding(void);
/* Progress a blocking task (or, with t == NULL, wait for a queued request), and the queue beside it, for about
 * `limit` nanoseconds: COLL_OK, COLL_PENDING when the time is over, or an error. yield_at_once: there are more ranks
 * than cores, so that spinning would keep the others from running. */
int coll_progress_wait(const coll_task *t, const coll_request *r, int yield_at_once, long limit);
/* Wait for a queued request without taking a core: it is the thread's to move, at once. */
int coll_progress_sleep(const coll_request *r, long limit);
/* Let another process have the core for a moment, unless that has turned out to cost a time slice. */
void coll_progress_give_way(void);
/* Ranks that a task waits for, which may be in the queue: into ranks[max]; returns their number. */
int coll_progress_waiting(const coll_task *, int *ranks, int max);
/* Take a request out of the queue, which ends it with COLL_ERR_GIVEN_UP, and abandon its task. */
int coll_progress_abandon(coll_request *);
/* Wait, for about `limit` nanoseconds, until no request is outstanding, and end the thread. */
void coll_progress_stop(long limit);

/* MPI's end. A failed execution may have messages under way, and other ranks may wait for its next ones: MPI_Finalize
 * could hang. So what follows a coll_progress_broken, or finalizing with requests outstanding, is MPI_Abort. */
void coll_progress_broken(const char *why);
/* What was broken has been completed by another try. */
void coll_progress_mended(void);
/* A rank died and the others go on; the communicator was revoked, so that nothing is under way there any more. If it
 * was broken, that reason to abort is gone. */
void coll_progress_survived(int was_broken);
int coll_progress_watch_end(const coll_mpi_api *);
/* MPI_Finalize writes "2" to the begin of this file, once no call of this process can begin any more; -1: nowhere. */
void coll_progress_note(char *state);
/* From now on the children that this process forks take no part in anything; watching MPI's end does this, too. */
int coll_progress_watch_forks(void);
/* Whether this process is done with MPI: MPI has been finalized, or this is a forked child. */
int coll_progress_ended(void);

#endif
