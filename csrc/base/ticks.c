#include "ticks.h"

static double ticks_per_second;
uint64_t coll_ticks_per_us;

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
    coll_ticks_per_us = (uint64_t)(ticks_per_second * 1e-6) + 1;
}

double coll_ticks_to_seconds(uint64_t ticks) {
    return (double)ticks / ticks_per_second;
}
