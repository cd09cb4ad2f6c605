#include "base/error.h"
#include "base/moves.h"
#include "base/ticks.h"
#include "internal.h"
#include "patience.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>

pthread_mutex_t coll_queue_lock = PTHREAD_MUTEX_INITIALIZER;
static coll_request *head, **tail = &head;
static _Atomic(coll_request *) arrivals; /* submitted, but not in the queue yet: the latest first */
static coll_request *moving;             /* whose task runs */
static _Thread_local int within;         /* this thread has the lock and goes through the queue */
static _Atomic uint64_t submitted;       /* requests so far, which numbers them */
static _Atomic int outstanding;
static _Atomic unsigned failures; /* requests that ended with an error */
static _Atomic int waiters;       /* threads in coll_progress_wait or coll_progress_wait_in_mpi */
static _Atomic int crowded;       /* whether there are more ranks than cores, as the latest wait was told */

static int exec_progress(void *e, size_t budget) {
    return coll_exec_progress(e, budget);
}

static int exec_waiting(const void *e, int *ranks, int max) {
    return coll_exec_waiting(e, ranks, max);
}

static int exec_abandon(void *e) {
    return coll_exec_abandon(e);
}

coll_task coll_exec_task(coll_exec *e) {
    return (coll_task){e, exec_progress, exec_waiting, exec_abandon, coll_exec_gives_way(e)};
}

static void complete(coll_request *r, int status) {
    r->ended = coll_ticks();
    if (r->mpi) {
        *r->handle_status = status;
        r->mpi->request_complete(r->handle, r->handle_status);
    }
    atomic_store_explicit(&r->status, status, memory_order_release); /* from here on the owner may free r */
    if (status < 0) /* after the status: a caller that sees the number finds the request ended */
        atomic_fetch_add(&failures, 1);
    atomic_fetch_sub(&outstanding, 1); /* last: at 0, all requests are done and this thread is not in MPI */
}

/* Put the requests that were submitted since at the end of the queue. Called with the lock held. */
static void adopt(void) {
    coll_request *r = atomic_exchange(&arrivals, NULL), *next;
    coll_request *first = NULL, **end = r ? &r->next : tail;
    for (; r; r = next) {
        next = r->next;
        r->next = first;
        first = r;
    }
    *tail = first;
    tail = end;
}

enum { FEW = 4 };       /* looks in vain at the oldest requests of a pass, and as many at others */
static uint64_t resume; /* number of the request at which the next pass goes on behind the oldest */
static uint64_t begun;  /* requests with higher numbers have not been moved yet */

/* Whether a pass with `still` looks in vain behind it looks at a request, too. A look has MPI look at its network,
 * which serves all requests. So a pass that finds nothing to do does not look at all of many: it looks at the oldest,
 * which move first as a rule, and at some others, from the one with number `from` on. */
static int looks_at(const coll_request *r, int still, uint64_t from) {
    return still < FEW || (still < 2 * FEW && r->number >= from) || r->number > begun || r->withdrawn;
}

/* Go through the queue once, in order; returns whether anything moved. Called with the lock held. */
int coll_queue_pass(void) {
    uint64_t from = resume, newest = begun;
    int ended = 0, moved = 0, still = 0;
    adopt();
    resume = 0;
    within = 1;
    coll_request **at = &head;
    while (*at) {
        coll_request *r = moving = *at;
        if (!looks_at(r, still, from)) {
            if (resume == 0 && r->number >= from)
                resume = r->number;
            at = &r->next;
            continue;
        }
        unsigned before = coll_moves;
        int fresh = r->number > begun;
        newest = r->number > newest ? r->number : newest;
        int status = r->withdrawn ? COLL_ERR_GIVEN_UP : r->task.progress(r->task.self, 1 << 20);
        if (status == COLL_PENDING) {
            int moves = fresh || coll_moves != before;
            moved |= moves;
            still += !moves;
            at = &r->next;
            continue;
        }
        *at = r->next;
        complete(r, status);
        ended = 1;
    }
    tail = at;
    begun = newest;
    within = 0;
    moving = NULL;
    if (ended)
        coll_thread_landed();
    return ended || moved;
}

const coll_request *coll_queue_first(void) {
    adopt();
    return head;
}

uint64_t coll_queue_latest(void) {
    return atomic_load(&submitted);
}

int coll_queue_within(void) {
    return within;
}

int coll_queue_waiters(void) {
    return atomic_load_explicit(&waiters, memory_order_relaxed);
}

/* A request that has moved its data leaves its task, which may serve another call by now. */
static int abandon_task(coll_request *r) {
    int delivered = r->status == COLL_OK || r->status == COLL_ERR_CALLBACK;
    return r->task.self && !delivered ? r->task.abandon(r->task.self) : 0; /* it may never have begun */
}

int coll_progress_abandon(coll_request *r) {
    if (within) {
        r->withdrawn = 1;
        return r == moving ? 0 : abandon_task(r);
    }
    pthread_mutex_lock(&coll_queue_lock);
    adopt();
    int left = abandon_task(r);
    for (coll_request **at = &head; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            tail = *at ? tail : at;
            complete(r, COLL_ERR_GIVEN_UP);
            coll_thread_landed();
            break;
        }
    pthread_mutex_unlock(&coll_queue_lock);
    return left;
}

void coll_progress_poll(void) {
    int some = atomic_load_explicit(&outstanding, memory_order_relaxed);
    if (some && !within && pthread_mutex_trylock(&coll_queue_lock) == 0) {
        coll_queue_pass();
        pthread_mutex_unlock(&coll_queue_lock);
    }
}

void coll_queue_forget(void) {
    coll_queue_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    head = moving = NULL;
    tail = &head;
    within = 0;
    atomic_store(&arrivals, NULL);
    atomic_store(&outstanding, 0);
    atomic_store(&waiters, 0);
}

/* A request begins here if it is the only one, so that it costs no change of threads, else in the next pass. */
int coll_progress_submit(coll_request *r) {
    r->withdrawn = 0;
    r->ended = 0;
    int code = coll_thread_start();
    atomic_store_explicit(&r->status, code == COLL_OK ? COLL_PENDING : code, memory_order_relaxed);
    if (code != COLL_OK)
        return code;
    r->number = atomic_fetch_add(&submitted, 1) + 1;
    int others = atomic_fetch_add(&outstanding, 1);
    r->next = atomic_load(&arrivals);
    while (!atomic_compare_exchange_weak(&arrivals, &r->next, r))
        ;
    if (!others)
        coll_progress_poll();
    coll_thread_wake();
    return COLL_OK;
}

unsigned coll_progress_failures(void) {
    return atomic_load_explicit(&failures, memory_order_relaxed);
}

int coll_progress_outstanding(void) {
    return atomic_load(&outstanding);
}

/* Take the lock; returns 0 if the thread that holds it does not return from MPI. */
static int lock_in_a_second(void) {
    long long end = coll_ticks_now() + 1000000000; /* pthread_mutex_timedlock would go by a clock that can be set */
    int code;
    while ((code = pthread_mutex_trylock(&coll_queue_lock)) == EBUSY && coll_ticks_now() < end)
        nanosleep(&(struct timespec){0, 100000}, NULL);
    return code == 0;
}

int coll_progress_waiting(const coll_task *t, int *ranks, int max) {
    if (within)
        return t->waiting(t->self, ranks, max);
    if (!lock_in_a_second())
        return 0;
    int n = t->waiting(t->self, ranks, max);
    pthread_mutex_unlock(&coll_queue_lock);
    return n;
}

/* Testing a request finds it complete, or else has MPI look at its network, and what that brought may be found by the
 * next test only. So a poll that took as long as if a message had come is repeated before the wait gives way: giving
 * way first would cost the turns of all others on the core. It is repeated once, since where cores are short every poll
 * may take long. This is for schedules only: a poll of the node-local engine waits itself. */
enum { BUSY = 2000 }; /* ns of a poll that may have brought something */

/* A long wait is one of many slices: the patience of the last one that this thread has not seen end, and of what. */
static _Thread_local struct {
    coll_patience patience;
    const void *of;
} slice;

static coll_patience *patience_of(const void *waits) {
    if (slice.of != waits)
        slice.patience = coll_patience_new();
    slice.of = waits;
    return &slice.patience;
}

/* After a poll in vain. yields: whether to give the core away now; gave_way: whether the poll has done so. */
static void give_way(coll_patience *p, int yields, int gave_way) {
    if (yields && !gave_way)
        sched_yield();
    (yields || gave_way ? coll_gave_way : coll_give_way)(p);
}

/* Look once, or twice if the first look may have brought something. A test does not wait: its caller computes between
 * tests, and would lose that time to naps. */
static int test(const coll_task *t, const coll_request *r, int yields) {
    const coll_task *moved = t ? t : &r->task;
    int messages = moved->progress == exec_progress, gives_way = messages && moved->gives_way, status, looks = 0;
    long long begin;
    do {
        begin = coll_ticks_now();
        coll_progress_poll();
        status = t ? t->progress(t->self, SIZE_MAX) : atomic_load_explicit(&r->status, memory_order_acquire);
    } while (status == COLL_PENDING && messages && ++looks < 2 && coll_ticks_now() - begin > BUSY);
    if (status == COLL_PENDING && yields && !gives_way)
        coll_give_way_once();
    return status;
}

/* Compares the time with the limit at each poll, since a poll may fold for a millisecond, or cost a slice of the core.
 * A poll that has worked for long did not wait, and there may be more to do: after it the wait does not give way. */
static int wait_for(const coll_task *t, const coll_request *r, int yield_at_once, long limit) {
    coll_patience *patience = patience_of(t ? t->self : (const void *)r);
    const coll_task *moved = t ? t : &r->task; /* of a request that has ended, what it moved may be gone */
    int messages = moved->progress == exec_progress, gives_way = messages && moved->gives_way, again = 0;
    int stuck = within && !t; /* in code that the queue calls, so that nothing moves the request */
    uint64_t begin = coll_ticks(), end = begin + ((uint64_t)limit / 1000 + 1) * coll_ticks_per_us;
    for (; (int64_t)(begin - end) < 0; begin = coll_ticks()) {
        unsigned moves = coll_moves;
        int status = t ? t->progress(t->self, SIZE_MAX) : atomic_load_explicit(&r->status, memory_order_acquire);
        if (status != COLL_PENDING) {
            slice.of = NULL;
            return status;
        }
        if (stuck)
            return COLL_ERR_WITHIN;
        coll_progress_poll();
        again = messages && !gives_way && !again && coll_ticks() - begin > BUSY * coll_ticks_per_us / 1000;
        int worked = !messages && coll_moves != moves && coll_ticks() - begin > WORKED * coll_ticks_per_us;
        if (!again && !worked)
            give_way(patience, yield_at_once, gives_way);
    }
    return COLL_PENDING;
}

int coll_progress_wait(const coll_task *t, const coll_request *r, int yield_at_once, long limit) {
    atomic_fetch_add_explicit(&waiters, 1, memory_order_relaxed);
    atomic_store_explicit(&crowded, yield_at_once, memory_order_relaxed);
    int status = limit > 0 ? wait_for(t, r, yield_at_once, limit) : test(t, r, yield_at_once);
    atomic_fetch_sub_explicit(&waiters, 1, memory_order_relaxed);
    return status;
}

enum { IN_A_ROW = 1000 }; /* polls before MPI looks at other requests */

void coll_progress_wait_in_mpi(const atomic_int *ended) {
    int yields = atomic_load_explicit(&crowded, memory_order_relaxed);
    coll_patience *patience = patience_of(ended);
    atomic_fetch_add_explicit(&waiters, 1, memory_order_relaxed);
    for (int i = 0; i < IN_A_ROW && !within; i++) {
        coll_progress_poll();
        if (atomic_load_explicit(ended, memory_order_acquire)) {
            slice.of = NULL;
            break;
        }
        give_way(patience, yields, 0);
    }
    atomic_fetch_sub_explicit(&waiters, 1, memory_order_relaxed);
}

int64_t coll_progress_waited_in_mpi(const coll_request *r, int64_t main_since) {
    if (!r->mpi || within || !lock_in_a_second())
        return 0;
    int pending = atomic_load_explicit(&r->status, memory_order_acquire) == COLL_PENDING;
    int64_t waited = pending ? r->mpi->request_waited(r->handle_status, main_since) : 0;
    pthread_mutex_unlock(&coll_queue_lock);
    return waited;
}
