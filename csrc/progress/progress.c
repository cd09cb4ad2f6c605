#include "progress.h"
#include "base/error.h"
#include "base/ticks.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the queue and every task in it */
static pthread_cond_t work;                              /* wakes the thread, */
static pthread_cond_t landing;                           /* and those who sleep until a request is done */
static coll_request *head, **tail = &head;
static _Atomic int outstanding;
static _Atomic unsigned failures; /* requests that ended with an error */
static pthread_t thread;
static int running, stopping, asleep, dozing;
static uint64_t submitted;  /* requests so far, which numbers them */
static uint64_t urgent;     /* up to this one they are the thread's, without delay */
static int sleepers;        /* threads in coll_progress_sleep */
static _Atomic int waiters; /* threads in coll_progress_wait */
static _Atomic int ended;   /* MPI is finalized, or this is a forked child */
static char broken[256];    /* why MPI_Finalize might hang; the first reason */
static int reasons;
static int survived; /* whether a rank died and the others went on */
static const coll_mpi_api *world;
static _Atomic(_Atomic char *) note; /* shared memory, which tells the other processes that MPI_Finalize has begun */

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
    atomic_store_explicit(&r->status, status, memory_order_release); /* the owner may free r from here on */
    if (status < 0) /* after that: who sees the number finds the request ended */
        atomic_fetch_add(&failures, 1);
    atomic_fetch_sub(&outstanding, 1); /* last: who sees 0 finds every request done, and this thread out of MPI */
}

/* One pass over the queue, first come first; returns whether something ended. Called with the lock. */
static int pass(void) {
    int moved = 0;
    for (coll_request **at = &head; *at;) {
        coll_request *r = *at;
        int status = r->task.progress(r->task.self, 1 << 20);
        if (status == COLL_PENDING) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        complete(r, status);
        moved = 1;
    }
    for (tail = &head; *tail;)
        tail = &(*tail)->next;
    if (moved && sleepers)
        pthread_cond_broadcast(&landing);
    return moved;
}

int coll_progress_abandon(coll_request *r) {
    pthread_mutex_lock(&lock);
    int left = r->task.self ? r->task.abandon(r->task.self) : 0; /* it may never have begun */
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
    if (atomic_load_explicit(&outstanding, memory_order_relaxed) && pthread_mutex_trylock(&lock) == 0) {
        pass();
        pthread_mutex_unlock(&lock);
    }
}

enum {
    SHORTEST = 5000,  /* ns that the thread sleeps between passes, longer while nothing ends, */
    LONGEST = 100000, /* up to this; */
    IDLE = 50000,     /* ns that it sleeps where there is nothing for it to do, longer and longer, */
    IDLEST = 400000,  /* up to this: each look takes time from callers that wait, on all cores */
    LINGER = 12, /* looks at an empty queue before it sleeps until it is woken, which costs who wakes it 5 to 80 us */
};

static struct timespec in(long ns) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += ns;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

/* Until so many ns are over, or somebody wants the thread. Called with the lock, which is free meanwhile. */
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
static void *serve(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "collectives");
    prctl(PR_SET_TIMERSLACK, 1000UL);
    long pause = SHORTEST, idle = IDLE;
    uint64_t seen = 0;
    pthread_mutex_lock(&lock);
    for (int empty = 0; !stopping;) {
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

/* The child has neither the thread nor any business with the parent's messages. The lock is made anew, not taken before
 * the fork: its holder may be waiting for Python's lock, to call a user's op, and the forking thread holds that one. */
static void after_fork_child(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    make_conditions();
    head = NULL;
    tail = &head;
    running = asleep = dozing = sleepers = 0;
    ended = 1;
    atomic_store(&outstanding, 0);
    atomic_store(&waiters, 0);
}

static int forks;
static void watch_forks(void) {
    forks = pthread_atfork(NULL, NULL, after_fork_child) == 0;
}

int coll_progress_watch_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    return pthread_once(&once, watch_forks) == 0 && forks ? COLL_OK : COLL_ERR_MEMORY;
}

int coll_progress_submit(coll_request *r) {
    r->next = NULL;
    atomic_store_explicit(&r->status, COLL_PENDING, memory_order_relaxed);
    pthread_mutex_lock(&lock);
    if (!running) {
        stopping = 0;
        running = coll_progress_watch_forks() == COLL_OK && pthread_create(&thread, NULL, serve, NULL) == 0;
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
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec++;
    if (pthread_mutex_timedlock(&lock, &end) != 0)
        return 0; /* who holds it does not come back from MPI */
    int n = t->waiting(t->self, ranks, max);
    pthread_mutex_unlock(&lock);
    return n;
}

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

enum { SPINS = 100, CLOCK_EVERY = 64 }; /* polls before giving way; polls between looks at the clock */
/* Other processes may want the core. Who gives way to one loses it for a whole time slice, and is then away when its
 * peers are there: ranks that gave way at every poll met once in ten milliseconds where ranks that did not met all the
 * time. So a thread whose core was taken keeps it for a while, twice as long each time. On cores that are free, and
 * where only ranks of the node share them, giving way costs next to nothing. */
enum { COSTLY = 50000, RESPITE = 20000000, RESPITES = 1280000000 }; /* ns: taken; no giving way after that, at most */
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
    struct timespec end = in(limit);
    int status, late = 0;
    pthread_mutex_lock(&lock);
    sleepers++;
    if (urgent < r->number) {
        urgent = r->number;
        if (head && dozing)
            pthread_cond_signal(&work);
    }
    while ((status = atomic_load(&r->status)) == COLL_PENDING && !late)
        late = pthread_cond_timedwait(&landing, &lock, &end) != 0;
    sleepers--;
    pthread_mutex_unlock(&lock);
    return status;
}

void coll_progress_stop(long limit) {
    for (long long end = now() + limit; coll_progress_outstanding() && now() < end; sched_yield())
        coll_progress_poll();
    pthread_mutex_lock(&lock);
    int join = running;
    stopping = 1;
    running = 0;
    pthread_cond_signal(&work);
    pthread_mutex_unlock(&lock);
    if (join)
        pthread_join(thread, NULL);
}

void coll_progress_note(char *state) {
    note = (_Atomic char *)state;
}

void coll_progress_broken(const char *why) {
    reasons++;
    if (!broken[0])
        snprintf(broken, sizeof broken, "%s", why);
}

void coll_progress_mended(void) {
    if (--reasons == 0)
        broken[0] = 0;
}

void coll_progress_survived(int was_broken) {
    survived = 1;
    if (was_broken)
        coll_progress_mended();
}

/* The program has ended by now, and what it printed is out; only MPI_Finalize has not. */
static void leave(int signal) {
    (void)signal;
    _exit(0);
}

/* MPI calls this when MPI_Finalize begins, when all of MPI still works. A thread that may be waiting for Python's lock,
 * which the caller may hold, cannot be joined here; but then a request is outstanding. */
static void at_end(void) {
    int left = coll_progress_outstanding();
    if (broken[0] || left) {
        if (!broken[0])
            snprintf(broken, sizeof broken, "%d non-blocking collectives are not complete", left);
        fprintf(stderr, "collectives: MPI_Abort instead of MPI_Finalize, which might hang: %s\n", broken);
        /* Launchers drop what they have not read by then. And a rank whose failure this one has only heard of asks the
         * others for up to 0.9 s before it tells. */
        nanosleep(&(struct timespec){1, 0}, NULL);
        signal(SIGALRM, SIG_DFL);
        alarm(4); /* an MPI that has lost a rank may hang even in MPI_Abort, which takes a tenth of a second else */
        world->abort(1);
    }
    coll_progress_stop(0);
    ended = 1;
    if (note)
        *note = '2';
    if (survived) { /* MPI's last fence has been seen to wait for ever for a rank that died */
        signal(SIGALRM, leave);
        alarm(5);
    }
}

int coll_progress_watch_end(const coll_mpi_api *mpi) {
    if (world)
        return COLL_OK;
    world = mpi;
    int code = coll_progress_watch_forks();
    return code == COLL_OK ? mpi->at_finalize(at_end) : code;
}

int coll_progress_ended(void) {
    return ended;
}
