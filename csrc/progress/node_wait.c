#include "node_wait.h"
#include "base/error.h"
#include "base/ticks.h"

static uint64_t ticks_per_us;

__attribute__((constructor)) static void calibrate(void) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    uint64_t t = coll_ticks();
    long ns;
    do {
        clock_gettime(CLOCK_MONOTONIC, &b);
        ns = (b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec;
    } while (ns < 20000);
    ticks_per_us = (coll_ticks() - t) * 1000 / (uint64_t)ns + 1;
}

double coll_ticks_to_seconds(uint64_t ticks) {
    return (double)ticks / (double)ticks_per_us * 1e-6;
}

int coll_node_spin(coll_node_call *c) {
    uint64_t begin = coll_ticks(), end = begin + 2 * ticks_per_us;
    for (;;) {
        int status = coll_node_progress(c);
        uint64_t now = coll_ticks();
        if (now - begin > ticks_per_us)
            end = now + 2 * ticks_per_us; /* progress did work: the time for waiting begins after it */
        if (status != COLL_PENDING || now > end)
            return status;
        coll_pause();
        begin = coll_ticks();
    }
}

static int job_progress(void *self, size_t budget) {
    coll_node_job *job = self;
    (void)budget; /* a call of the engine returns wherever it must wait */
    int status = coll_node_progress(&job->call);
    if (status != COLL_PENDING)
        return status;
    uint64_t now = coll_ticks();
    if (now - job->polled > 15 * ticks_per_us) {
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
    return (coll_task){job, job_progress, job_waiting, job_abandon};
}
