#include "node_wait.h"
#include "base/error.h"
#include "base/moves.h"
#include "base/ticks.h"

int coll_node_spin(coll_node_call *c) {
    uint64_t begin = coll_ticks(), end = begin + 2 * coll_ticks_per_us;
    for (;;) {
        int status = coll_node_progress(c);
        uint64_t now = coll_ticks();
        if (now - begin > coll_ticks_per_us)
            end = now + 2 * coll_ticks_per_us; /* progress did work: the time for waiting begins after it */
        if (status != COLL_PENDING || now > end)
            return status;
        coll_pause();
        begin = coll_ticks();
    }
}

/* A number that differs after every step of a call. */
static unsigned steps(const coll_node_call *c) {
    return (unsigned)c->state + (unsigned)c->claimed + (unsigned)c->staged + (unsigned)c->reduced +
           (unsigned)c->copied + c->moves;
}

static int job_progress(void *self, size_t budget) {
    coll_node_job *job = self;
    (void)budget; /* a call of the engine returns wherever it must wait, and after some work */
    unsigned before = steps(&job->call);
    int status = coll_node_progress(&job->call);
    coll_moves += steps(&job->call) != before;
    if (status != COLL_PENDING)
        return status;
    uint64_t now = coll_ticks();
    if (now - job->polled > 15 * coll_ticks_per_us) {
        job->polled = now;
        status = coll_node_look(&job->call);
        if (status == COLL_PENDING && job->mpi && job->mpi->poll(job->endpoint) != COLL_OK)
            status = job->call.status = COLL_ERR_MPI;
    }
    return status;
}

static int job_waiting(const void *self, int *ranks, int max) {
    return coll_node_waiting(&((const coll_node_job *)self)->call, ranks, max);
}

static int job_abandon(void *self) {
    coll_node_job *job = self;
    if (job->call.status == COLL_PENDING)
        job->call.status = COLL_ERR_GIVEN_UP;
    return 0;
}

coll_task coll_node_task(coll_node_job *job) {
    return (coll_task){job, job_progress, job_waiting, job_abandon, 0};
}
