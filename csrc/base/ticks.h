/* The processor's time counter: cheaper than a clock, used for short waits and for records of calls; and the clock. */
#ifndef COLL_TICKS_H
#define COLL_TICKS_H

#include <stdint.h>
#include <time.h>

/* The monotonic clock in ns. */
static inline int64_t coll_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline uint64_t coll_ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#else
    return (uint64_t)coll_now();
#endif
}

/* Tell the processor that this is a spinning wait. */
static inline void coll_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* One moment, read from the counter and from the clock. */
typedef struct {
    uint64_t ticks, ns;
} coll_moment;

/* Now: the closest of some readings of both, since this process may lose its core at any of them. */
coll_moment coll_present(void);

/* Seconds for a number of ticks; calibrated when the library is loaded. */
double coll_ticks_to_seconds(uint64_t ticks);
extern uint64_t coll_ticks_per_us; /* rounded up */

/* The counter in ns: a clock for short times. */
static inline int64_t coll_ticks_now(void) {
    return (int64_t)(coll_ticks_to_seconds(coll_ticks()) * 1e9);
}

#endif
