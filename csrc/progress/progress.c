#include "progress.h"
#include "base/error.h"
#include "base/ticks.h"
#include "ending.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the queue and every task in it */
static pthread_cond_t work;                              /* wakes the thread */
static pthread_cond_t landing;                           /* wakes callers of coll_progress_sleep */
static coll_request *head, **tail = &head;
static coll_request *late,
    **late_tail = &late;         /* submitted by code that a task runs, while the queue is gone through */
static coll_request *moving;     /* whose task runs */
static _Thread_local int within; /* this thread has the lock and goes through the queue */
static _Atomic int outstanding;
static _Atomic unsigned failures; /* requests that ended with an error */
static pthread_t thread;
static int running, asleep, dozing;
static unsigned generation; /* of the thread: those of earlier ones end */
static uint64_t submitted;  /* requests so far, which numbers them */
static uint64_t urgent;     /* up to this one they are the thread's, without delay */
static int sleepers;        /* threads in coll_progress_sleep */
static _Atomic int waiters; /* threads in coll_progress_wait */

__attribute__((constructor)) static void make_conditions(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&work, &monotonic);
    pthread_cond_init(&landing, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

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
    return (coll_task){e, exec_progress, exec_waiting, exec_abandon};
}

static void complete(coll_request *r, int status) {
    r->ended = coll_ticks();
    if (r->mpi) {
        *r->handle_status = status;
        r->mpi->request_complete(r->handle);
    }
    atomic_store_explicit(&r->status, status, memory_order_release); /* from here on the owner may free r */
    if (status < 0) /* after the status: a caller that sees the number finds the request ended */
        atomic_fetch_add(&failures, 1);
    atomic_fetch_sub(&outstanding, 1); /* last: at 0, all requests are done and this thread is not in MPI */
}

/* Move every queued request once, in order; returns whether one ended. Called with the lock held. */
static int pass(void) {
    int moved = 0;
    within = 1;
    for (coll_request **at = &head; *at;) {
        coll_request *r = moving = *at;
        int status = r->withdrawn ? COLL_ERR_GIVEN_UP : r->task.progress(r->task.self, 1 << 20);
        if (status == COLL_PENDING) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        complete(r, status);
        moved = 1;
    }
    within = 0;
    moving = NULL;
    for (tail = &head; *tail;)
        tail = &(*tail)->next;
    if (late) {
        *tail = late;
        tail = late_tail;
        late = NULL;
        late_tail = &late;
    }
    if (moved && sleepers)
        pthread_cond_broadcast(&landing);
    return moved;
}

static int abandon_task(coll_request *r) {
    return r->task.self ? r->task.abandon(r->task.self) : 0; /* it may never have begun */
}

int coll_progress_abandon(coll_request *r) {
    if (within) {
        r->withdrawn = 1;
        return r == moving ? 0 : abandon_task(r);
    }
    pthread_mutex_lock(&lock);
    int left = abandon_task(r);
    for (coll_request **at = &head; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            tail = *at ? tail : at;
            complete(r, COLL_ERR_GIVEN_UP);
            pthread_cond_broadcast(&landing);
            break;
        }
    pthread_mutex_unlock(&lock);
    return left;
}

void coll_progress_poll(void) {
    if (within)
        return;
    if (atomic_load_explicit(&outstanding, memory_order_relaxed) && pthread_mutex_trylock(&lock) == 0) {
        pass();
        pthread_mutex_unlock(&lock);
    }
}

enum {
    SHORTEST = 5000,  /* ns of sleep between passes; longer while no request ends */
    LONGEST = 100000, /* the most ns between passes */
    IDLE = 50000,     /* ns of sleep when the thread has nothing to move; longer each time */
    IDLEST = 400000,  /* the most ns of that sleep: each look takes time from callers that wait */
    LINGER = 12,      /* looks at an empty queue before it sleeps until woken; waking costs a caller 5 to 80 us */
};

static struct timespec in(long ns) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += ns;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

/* Sleep for `ns` ns or until the thread is signalled. Called with the lock held, which is released meanwhile. */
static void doze(long ns) {
    struct timespec end = in(ns);
    dozing = 1;
    pthread_cond_timedwait(&work, &lock, &end);
    dozing = 0;
}

static long longer(long pause, long most) {
    return pause + pause / 4 < most ? pause + pause / 4 : most;
}

/* The thread gives way to whoever computes. It only looks on while a caller waits, and so moves the queue itself, and
 * while the oldest request is newer than its last look: a program that starts calls and waits for each needs no thread,
 * whose every look would take a core from some rank. Requests that nobody else will move are urgent. */
static void *serve(void *mine) {
    prctl(PR_SET_NAME, "collectives");
    prctl(PR_SET_TIMERSLACK, 1000UL);
    long pause = SHORTEST, idle = IDLE;
    uint64_t seen = 0;
    pthread_mutex_lock(&lock);
    for (int empty = 0; generation == (unsigned)(uintptr_t)mine;) {
        if (!head && empty >= LINGER) {
            asleep = 1;
            pthread_cond_wait(&work, &lock);
            asleep = empty = 0;
            pause = SHORTEST, idle = IDLE;
            continue;
        }
        long sleep;
        empty = head ? 0 : empty + 1;
        int due = head && head->number <= (seen > urgent ? seen : urgent);
        if (due && !atomic_load_explicit(&waiters, memory_order_relaxed)) {
            sleep = pause = pass() ? SHORTEST : longer(pause, LONGEST);
            idle = IDLE;
        } else {
            sleep = idle = longer(idle, IDLEST);
        }
        seen = submitted;
        uint64_t before = urgent;
        doze(sleep);
        if (urgent != before)
            pause = SHORTEST;
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* The lock is made anew rather than held during the fork: its holder may wait for Python's lock (to call a user's op),
 * which the forking thread holds. */
void coll_progress_forget(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    make_conditions();
    head = late = moving = NULL;
    tail = &head;
    late_tail = &late;
    within = 0;
    running = asleep = dozing = sleepers = 0;
    atomic_store(&outstanding, 0);
    atomic_store(&waiters, 0);
}

int coll_progress_submit(coll_request *r) {
    r->next = NULL;
    r->withdrawn = 0;
    atomic_store_explicit(&r->status, COLL_PENDING, memory_order_relaxed);
    if (within) {
        r->number = ++submitted;
        *late_tail = r;
        late_tail = &r->next;
        atomic_fetch_add(&outstanding, 1);
        return COLL_OK;
    }
    pthread_mutex_lock(&lock);
    if (!running) {
        void *mine = (void *)(uintptr_t)++generation;
        running = coll_progress_watch_forks() == COLL_OK && pthread_create(&thread, NULL, serve, mine) == 0;
        if (!running) {
            pthread_mutex_unlock(&lock);
            return COLL_ERR_MEMORY;
        }
    }
    r->number = ++submitted;
    *tail = r;
    tail = &r->next;
    atomic_fetch_add(&outstanding, 1);
    pass();
    if (head && asleep)
        pthread_cond_signal(&work);
    pthread_mutex_unlock(&lock);
    return COLL_OK;
}

unsigned coll_progress_failures(void) {
    return atomic_load_explicit(&failures, memory_order_relaxed);
}

int coll_progress_outstanding(void) {
    return atomic_load(&outstanding);
}

int coll_progress_waiting(const coll_task *t, int *ranks, int max) {
    if (within)
        return t->waiting(t->self, ranks, max);
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec++;
    if (pthread_mutex_timedlock(&lock, &end) != 0)
        return 0; /* the thread that holds the lock does not return from MPI */
    int n = t->waiting(t->self, ranks, max);
    pthread_mutex_unlock(&lock);
    return n;
}

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

enum { SPINS = 100, CLOCK_EVERY = 64 }; /* polls before giving way; polls between readings of the clock */
/* Other processes may need the core. A thread that gives way to one loses the core for a whole time slice, and its
 * peers then wait for it: ranks that gave way at every poll met once in ten milliseconds. So a thread whose core was
 * taken does not give way for some time, which doubles each time this happens. On free cores, and if only ranks of the
 * node share a core, giving way costs almost nothing. Below, in ns: how long the core must be away to count as taken;
 * the first time without giving way; the longest. */
enum { COSTLY = 50000, RESPITE = 20000000, RESPITES = 1280000000 };
static _Thread_local long long keep_until, respite;

void coll_progress_give_way(void) {
    long long begin = now();
    if (begin < keep_until)
        return;
    sched_yield();
    long long end = now();
    if (end - begin < COSTLY) {
        respite = 0;
        return;
    }
    respite = respite == 0 ? RESPITE : respite < RESPITES ? 2 * respite : respite;
    keep_until = end + respite;
}

static int wait_for(const coll_task *t, const coll_request *r, int yield_at_once, long limit) {
    long long end = limit > 0 ? now() + limit : 0;
    for (unsigned polls = 0;; polls++) {
        int status = t ? t->progress(t->self, SIZE_MAX) : atomic_load_explicit(&r->status, memory_order_acquire);
        if (status != COLL_PENDING)
            return status;
        if (within && r)
            return limit > 0 ? COLL_ERR_WITHIN : COLL_PENDING;
        coll_progress_poll();
        if (yield_at_once)
            sched_yield();
        else if (polls > SPINS)
            coll_progress_give_way();
        if (polls % CLOCK_EVERY == CLOCK_EVERY - 1 && now() >= end)
            return COLL_PENDING;
    }
}

int coll_progress_wait(const coll_task *t, const coll_request *r, int yield_at_once, long limit) {
    atomic_fetch_add_explicit(&waiters, 1, memory_order_relaxed);
    int status = wait_for(t, r, yield_at_once, limit);
    atomic_fetch_sub_explicit(&waiters, 1, memory_order_relaxed);
    return status;
}

int coll_progress_sleep(const coll_request *r, long limit) {
    if (within)
        return wait_for(NULL, r, 0, limit);
    struct timespec end = in(limit);
    int status, over = 0;
    pthread_mutex_lock(&lock);
    sleepers++;
    if (urgent < r->number) {
        urgent = r->number;
        if (head && dozing)
            pthread_cond_signal(&work);
    }
    while ((status = atomic_load(&r->status)) == COLL_PENDING && !over)
        over = pthread_cond_timedwait(&landing, &lock, &end) != 0;
    sleepers--;
    pthread_mutex_unlock(&lock);
    return status;
}

void coll_progress_stop(long limit) {
    if (within)
        return;
    for (long long end = now() + limit; coll_progress_outstanding() && now() < end; sched_yield())
        coll_progress_poll();
    pthread_mutex_lock(&lock);
    int join = running;
    pthread_t ending = thread;
    generation++;
    running = 0;
    pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&lock);
    if (join)
        pthread_join(ending, NULL);
}
