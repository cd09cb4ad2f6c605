#include "node_wait.h"
#include "error.h"
#include "progress.h"
#include "ticks.h"

#include <sched.h>

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

double coll_ticks_to_seconds(uint64_t ticks) { return (double)ticks / (double)ticks_per_us * 1e-6; }

int coll_node_spin(coll_node_call *c) {
    for (uint64_t end = coll_ticks() + 2 * ticks_per_us;;) {
        int status = coll_node_progress(c);
        if (status != COLL_PENDING || coll_ticks() > end)
            return status;
        coll_pause();
    }
}

int coll_node_wait(coll_node_call *c, int yield_at_once, const coll_mpi_api *mpi, coll_endpoint *endpoint, long limit) {
    uint64_t begin = coll_ticks(), polled = begin, end = begin + (uint64_t)limit * ticks_per_us / 1000;
    for (;;) {
        int status = coll_node_progress(c);
        if (status != COLL_PENDING)
            return status;
        uint64_t now = coll_ticks();
        if (yield_at_once || now - begin > 5 * ticks_per_us)
            sched_yield();
        else
            coll_pause();
        if (now - polled > 15 * ticks_per_us) {
            coll_progress_poll();
            if (mpi)
                mpi->poll(endpoint);
            polled = now;
            if (now > end)
                return COLL_PENDING;
        }
    }
}
