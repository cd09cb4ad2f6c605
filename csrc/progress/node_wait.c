#include "node_wait.h"
#include "base/error.h"
#include "base/moves.h"
#include "base/ticks.h"

static double ticks_per_second;
static uint64_t ticks_per_us;

typedef struct {
    uint64_t ticks, between; /* between the looks at the counter before and after the clock's */
    double seconds;
} moment;

/* The clock and the counter at one time: the closest of some tries, for this process may lose its core at any of them.
 */
static moment present(void) {
    moment best = {.between = UINT64_MAX};
    for (int i = 0; i < 10; i++) {
        struct timespec t;
        uint64_t before = coll_ticks();
        clock_gettime(CLOCK_MONOTONIC, &t);
        uint64_t between = coll_ticks() - before;
        if (between < best.between)
            best = (moment){before + between / 2, between, (double)t.tv_sec + (double)t.tv_nsec * 1e-9};
    }
    return best;
}

__attribute__((constructor)) static void calibrate(void) {
    moment a = present(), b;
    do
        b = present();
    while (b.seconds - a.seconds < 20e-6);
    ticks_per_second = (double)(b.ticks - a.ticks) / (b.seconds - a.seconds);
    ticks_per_us = (uint64_t)(ticks_per_second * 1e-6) + 1;
}

double coll_ticks_to_seconds(uint64_t ticks) {
    return (double)ticks / ticks_per_second;
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

/* A number that differs after every step of a call. */
static int steps(const coll_node_call *c) {
    return c->state + c->claimed + c->staged + c->reduced + c->copied;
}

static int job_progress(void *self, size_t budget) {
    coll_node_job *job = self;
    (void)budget; /* a call of the engine returns wherever it must wait */
    int before = steps(&job->call), status = coll_node_progress(&job->call);
    coll_moves += steps(&job->call) != before;
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
