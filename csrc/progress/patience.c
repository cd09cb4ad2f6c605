#include "patience.h"

#include "base/moves.h"
#include "base/ticks.h"

#include <sched.h>
#include <time.h>

/* A wait goes on polling for a while, since on free cores what it waits for comes soon. Then it gives way.
 *
 * Ranks that share a core with other ranks that wait give way at every poll: each has the core for some microseconds,
 * and none waits for a time slice of another. If something computes on the core, a thread that gives way gets the core
 * back after a whole slice, and its peers wait for it meanwhile. So for some time after a slice was lost, which doubles
 * each time, a wait polls for longer, and then naps between polls: the time that it has not used brings it back to the
 * core soon, and those that gave way to it do not lose a slice, which would keep them from giving way, too. One slice
 * is lost now and then among ranks alone, each of which works for a while. If that kept a rank from giving way, the
 * others would lose slices to its polls, and so on: so it takes two, with less than FEW other times of giving way
 * between them. What computes is not forgotten as soon.
 *
 * A long wait naps, and again each time it has become twice as long, so that few messages find a rank asleep. A very
 * long one naps between all polls. Linux divides a core between groups of threads (sessions, containers, tasks of
 * Slurm) before it divides it between threads, and a thread that gives way may get the core back at once, for seconds,
 * while a rank of another group that it waits for is ready to run. */
enum {
    SPINS = 100,          /* polls before the first time that a wait gives way */
    SHARED = 2000,        /* ns that the core is away if others on it wait, too: they should have it at once */
    TAKEN = 2000000,      /* ns that the core is away if something computes on it: a slice is lost. Ranks that share
                             a core and reduce or send in turn keep it for 1 ms now and then */
    FEW = 2,              /* times of giving way that make up for a lost slice */
    MANY = 4,             /* and for any number of them */
    RESPITE = 20000000,   /* ns without giving way, the first time */
    RESPITES = 160000000, /* and the longest */
    AWAKE = 250000,       /* ns of polling in such a time before the first nap: more than a nap takes, or two ranks
                             may go on finding each other asleep */
    LONG = 500000,        /* ns of giving way before the first nap */
    LASTING = 10000000,   /* ns of a wait after which every poll is followed by a nap, which no longer makes it late */
    NAP = 50000,          /* ns; with the timer's slack and the way back to the core about 110000 */
};
static _Thread_local long long keep_until, respite;
static _Thread_local int shared, losses; /* losses: how many times of giving way make up for them */

coll_patience coll_patience_new(void) {
    return (coll_patience){0, 0, coll_moves, 0};
}

static void yield(long long begin) {
    sched_yield();
    long long end = coll_ticks_now();
    shared = end - begin >= SHARED;
    if (end - begin < TAKEN) {
        losses -= losses > 0;
        respite = losses ? respite : 0;
        return;
    }
    losses = losses + FEW < MANY ? losses + FEW : MANY;
    if (losses <= FEW) /* the first */
        return;
    respite = respite == 0 ? RESPITE : respite < RESPITES ? 2 * respite : respite;
    keep_until = end + respite;
}

static void nap(coll_patience *p, long long waited) {
    nanosleep(&(struct timespec){0, NAP}, NULL);
    p->nap = waited < LASTING ? coll_ticks_now() + waited : 0;
}

/* The time; the wait began at the latest now. */
static long long begun(coll_patience *p) {
    long long now = coll_ticks_now();
    if (p->since == 0) {
        p->since = now;
        p->nap = now + LONG;
    }
    return now;
}

void coll_give_way(coll_patience *p) {
    if (p->moves != coll_moves)
        *p = coll_patience_new();
    if (p->polls++ < SPINS && !shared)
        return;
    long long begin = begun(p);
    int yields = begin >= keep_until;
    long long waited = begin - p->since;
    if (yields ? begin > p->nap : waited > AWAKE)
        nap(p, waited);
    else if (yields)
        yield(begin);
}

void coll_give_way_once(void) {
    long long begin = coll_ticks_now();
    if (begin >= keep_until)
        yield(begin);
}

void coll_gave_way(coll_patience *p) {
    if (p->polls++ < SPINS)
        return;
    if (p->moves != coll_moves) {
        *p = coll_patience_new();
        return;
    }
    long long now = begun(p);
    if (now > p->nap)
        nap(p, now - p->since);
}
