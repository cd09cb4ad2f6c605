/* The thread that moves the queue while the program computes, and threads that sleep until it has. */
#include "base/error.h"
#include "base/ticks.h"
#include "ending.h"
#include "internal.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t bell = PTHREAD_MUTEX_INITIALIZER; /* guards what follows; held for moments only */
static pthread_cond_t rung;                              /* wakes the thread */
static pthread_t thread;
static int ringing;
static unsigned generation; /* of the thread: those of earlier ones end */
static _Atomic int running, asleep;

static pthread_cond_t landing;  /* wakes callers of coll_progress_sleep; with the queue's lock */
static int sleepers;            /* threads in coll_progress_sleep */
static _Atomic uint64_t urgent; /* up to this one, requests are the thread's, without delay */

__attribute__((constructor)) static void make_conditions(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&rung, &monotonic);
    pthread_cond_init(&landing, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

enum {
    FIRST = 5000,    /* ns of sleep after the first pass over a queue that was empty; longer each time */
    MOVING = 50000,  /* the most ns while messages move: few passes, each of which moves more, cost less */
    STILL = 400000,  /* the most ns while nothing moves */
    IDLE = 50000,    /* ns of sleep when the thread has nothing to move; longer each time */
    IDLEST = 400000, /* the most ns of that sleep: each look takes time from callers that wait */
    LINGER = 12,     /* looks at an empty queue before it sleeps until woken; waking costs a caller 5 to 80 us */
    SLICE = 100000,  /* ns of the core that the thread asks the scheduler for at a time */
};

/* Ask the scheduler for short slices. It may then run the thread as soon as it wakes, also on a core where something
 * computes; else only when the slice of that is over, 3 ms or more later (Linux from 6.12 on; earlier ones ignore it).
 */
static void take_short_slices(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a = {.size = sizeof a};
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) == 0 && a.policy == SCHED_OTHER) {
        a.runtime = SLICE;
        syscall(SYS_sched_setattr, 0, &a, 0);
    }
}

static struct timespec in(long ns) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += ns;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

static int earlier(struct timespec a, struct timespec b) {
    return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec < b.tv_nsec);
}

static void ring(void) {
    pthread_mutex_lock(&bell);
    ringing = 1;
    pthread_cond_signal(&rung);
    pthread_mutex_unlock(&bell);
}

void coll_thread_wake(void) {
    if (atomic_load(&asleep) && coll_progress_outstanding() && atomic_exchange(&asleep, 0))
        ring();
}

/* Sleep for `ns` ns or until the bell is rung. */
static void doze(long ns) {
    struct timespec end = in(ns);
    int over = 0;
    pthread_mutex_lock(&bell);
    while (!ringing && !over)
        over = pthread_cond_timedwait(&rung, &bell, &end) != 0;
    ringing = 0;
    pthread_mutex_unlock(&bell);
}

/* Sleep until the bell is rung. A request that is pushed after the look at their number rings it. */
static void sleep_on(void) {
    atomic_store(&asleep, 1);
    pthread_mutex_lock(&bell);
    while (!ringing && !coll_progress_outstanding())
        pthread_cond_wait(&rung, &bell);
    ringing = 0;
    pthread_mutex_unlock(&bell);
    atomic_store(&asleep, 0);
}

static long longer(long pause, long most) {
    return pause + pause / 4 < most ? pause + pause / 4 : most;
}

static int current(void *mine) {
    pthread_mutex_lock(&bell);
    int is = generation == (unsigned)(uintptr_t)mine;
    pthread_mutex_unlock(&bell);
    return is;
}

/* Go through the queue; returns the pause after it, which follows one of `pause` ns. After long work there is more to
 * do: the pause only lets others take the lock. */
static long pass(long pause) {
    uint64_t begin = coll_ticks();
    int moved = coll_queue_pass();
    if (moved && coll_ticks() - begin > WORKED * coll_ticks_per_us)
        return FIRST;
    return longer(pause, moved ? MOVING : STILL);
}

/* The thread gives way to whoever computes. It only looks on while a caller waits, and so moves the queue itself, and
 * while the oldest request is newer than its last look: a program that starts calls and waits for each needs no thread,
 * whose every look would take a core from some rank. Requests that nobody else will move are urgent. */
static void *serve(void *mine) {
    prctl(PR_SET_NAME, "collectives");
    prctl(PR_SET_TIMERSLACK, 1000UL);
    take_short_slices();
    long pause = FIRST, idle = IDLE;
    uint64_t seen = 0;
    for (int empty = 0; current(mine);) {
        pthread_mutex_lock(&coll_queue_lock);
        const coll_request *first = coll_queue_first();
        uint64_t hurry = atomic_load(&urgent);
        int due = first && first->number <= (seen > hurry ? seen : hurry);
        int moves = due && !coll_queue_waiters();
        if (moves)
            pause = pass(pause);
        if (!coll_queue_first())
            pause = FIRST;
        empty = first ? 0 : empty + 1;
        pthread_mutex_unlock(&coll_queue_lock);
        seen = coll_queue_latest();
        idle = moves ? IDLE : longer(idle, IDLEST);
        if (empty > LINGER) {
            sleep_on();
            empty = 0;
            idle = IDLE;
        } else {
            doze(moves ? pause : idle);
        }
        if (hurry != atomic_load(&urgent))
            pause = FIRST;
    }
    return NULL;
}

/* Signals of the process are for the program's threads, which may block them and wait for one: a thread that does not
 * block it would get it instead, and its default action ends the process. What a fault of the thread's own raises is
 * not blocked. A thread that runs the program at large must not be made like this, since processes that it starts
 * inherit what is blocked. */
int coll_thread_create(pthread_t *made, void *(*function)(void *), void *argument) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&others, faults[i]);
    pthread_sigmask(SIG_BLOCK, &others, &before);
    int error = pthread_create(made, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? COLL_ERR_MEMORY : COLL_OK;
}

int coll_thread_start(void) {
    if (atomic_load_explicit(&running, memory_order_acquire))
        return COLL_OK;
    pthread_mutex_lock(&bell);
    if (!running) {
        void *mine = (void *)(uintptr_t)++generation;
        running = coll_progress_watch_forks() == COLL_OK && coll_thread_create(&thread, serve, mine) == COLL_OK;
    }
    int made = running;
    pthread_mutex_unlock(&bell);
    return made ? COLL_OK : COLL_ERR_MEMORY;
}

void coll_thread_landed(void) {
    if (sleepers)
        pthread_cond_broadcast(&landing);
}

int coll_progress_sleep(const coll_request *r, long limit) {
    if (coll_queue_within())
        return coll_progress_wait(NULL, r, 0, limit);
    struct timespec end = in(limit);
    int status, over = 0;
    pthread_mutex_lock(&coll_queue_lock);
    sleepers++;
    if (atomic_load(&urgent) < r->number) {
        atomic_store(&urgent, r->number);
        ring();
    }
    while ((status = atomic_load(&r->status)) == COLL_PENDING && !over)
        over = pthread_cond_timedwait(&landing, &coll_queue_lock, &end) != 0;
    sleepers--;
    pthread_mutex_unlock(&coll_queue_lock);
    return status;
}

void coll_progress_stop(long limit) {
    if (coll_queue_within())
        return;
    struct timespec end = in(limit), now = in(0);
    for (; coll_progress_outstanding() && earlier(now, end); now = in(0)) {
        coll_progress_poll();
        sched_yield();
    }
    pthread_mutex_lock(&bell);
    int join = running;
    pthread_t ending = thread;
    generation++;
    running = 0;
    pthread_mutex_unlock(&bell);
    ring();
    if (join)
        pthread_join(ending, NULL);
}

/* Locks are made anew rather than held during the fork: the holder of the queue's may wait for Python's lock (to call a
 * user's op), which the forking thread holds. */
void coll_progress_forget(void) {
    coll_queue_forget();
    bell = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    make_conditions();
    running = asleep = ringing = sleepers = 0;
}
