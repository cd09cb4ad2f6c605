#include "ticks.h"

static double ticks_per_second;
uint64_t coll_ticks_per_us;

coll_moment coll_present(void) {
    coll_moment best = {0, 0};
    uint64_t closest = UINT64_MAX;
    for (int i = 0; i < 10; i++) {
        uint64_t before = coll_ticks(), ns = (uint64_t)coll_now(), between = coll_ticks() - before;
        if (between < closest) {
            closest = between;
            best = (coll_moment){before + between / 2, ns};
        }
    }
    return best;
}

__attribute__((constructor)) static void calibrate(void) {
    coll_moment a = coll_present(), b;
    do
        b = coll_present();
    while (b.ns - a.ns < 20000);
    ticks_per_second = (double)(b.ticks - a.ticks) / ((double)(b.ns - a.ns) * 1e-9);
    coll_ticks_per_us = (uint64_t)(ticks_per_second * 1e-6) + 1;
}

double coll_ticks_to_seconds(uint64_t ticks) {
    return (double)ticks / ticks_per_second;
}
