#include "progress.h"
#include "error.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the queue and every execution in it */
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static coll_request *head, **tail = &head;
static _Atomic int outstanding;
static pthread_t thread;
static int running, stopping, watching_forks;

static void complete(coll_request *r, int status) {
    atomic_fetch_sub(&outstanding, 1);
    if (r->mpi) {
        *r->handle_status = status;
        r->mpi->request_complete(r->handle);
    }
    atomic_store_explicit(&r->status, status, memory_order_release); /* the owner may free r from here on */
}

/* One pass over the queue, first come first; returns whether something ended. Called with the lock. */
static int pass(void) {
    int ended = 0;
    for (coll_request **at = &head; *at;) {
        coll_request *r = *at;
        int status = coll_exec_progress(r->exec, 1 << 20);
        if (status == COLL_PENDING) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        complete(r, status);
        ended = 1;
    }
    for (tail = &head; *tail;)
        tail = &(*tail)->next;
    return ended;
}

void coll_progress_poll(void) {
    if (atomic_load_explicit(&outstanding, memory_order_relaxed) && pthread_mutex_trylock(&lock) == 0) {
        pass();
        pthread_mutex_unlock(&lock);
    }
}

/* The thread gives way to whoever computes: it sleeps between passes, longer while nothing ends. */
static void *serve(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "collectives");
    prctl(PR_SET_TIMERSLACK, 1000UL);
    long pause = 5000;
    pthread_mutex_lock(&lock);
    while (!stopping) {
        if (!head) {
            pthread_cond_wait(&work, &lock);
            pause = 5000;
            continue;
        }
        if (pass())
            pause = 5000;
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){0, pause}, NULL);
        pause = pause < 100000 ? pause + pause / 4 : pause;
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void before_fork(void) { pthread_mutex_lock(&lock); }

static void after_fork_parent(void) { pthread_mutex_unlock(&lock); }

/* The child has neither the thread nor any business with the parent's messages. */
static void after_fork_child(void) {
    head = NULL;
    tail = &head;
    running = 0;
    atomic_store(&outstanding, 0);
    pthread_mutex_unlock(&lock);
}

int coll_progress_submit(coll_request *r) {
    r->next = NULL;
    atomic_store_explicit(&r->status, COLL_PENDING, memory_order_relaxed);
    pthread_mutex_lock(&lock);
    if (!watching_forks)
        watching_forks = pthread_atfork(before_fork, after_fork_parent, after_fork_child) == 0;
    if (!running) {
        stopping = 0;
        running = pthread_create(&thread, NULL, serve, NULL) == 0;
        if (!running) {
            pthread_mutex_unlock(&lock);
            return COLL_ERR_MEMORY;
        }
    }
    *tail = r;
    tail = &r->next;
    atomic_fetch_add(&outstanding, 1);
    pass();
    pthread_cond_signal(&work);
    pthread_mutex_unlock(&lock);
    return COLL_OK;
}

int coll_progress_outstanding(void) { return atomic_load(&outstanding); }

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

enum { SPINS = 100, CLOCK_EVERY = 64 }; /* polls before giving way; polls between looks at the clock */

int coll_progress_wait(coll_exec *e, const coll_request *r, int yield_at_once, long limit) {
    long long end = limit > 0 ? now() + limit : 0;
    for (unsigned polls = 0;; polls++) {
        int status = e ? coll_exec_progress(e, SIZE_MAX) : atomic_load_explicit(&r->status, memory_order_acquire);
        if (status != COLL_PENDING)
            return status;
        coll_progress_poll();
        if (yield_at_once || polls > SPINS)
            sched_yield();
        if (polls % CLOCK_EVERY == CLOCK_EVERY - 1 && now() >= end)
            return COLL_PENDING;
    }
}

void coll_progress_stop(void) {
    pthread_mutex_lock(&lock);
    int join = running;
    stopping = 1;
    running = 0;
    pthread_cond_signal(&work);
    pthread_mutex_unlock(&lock);
    if (join)
        pthread_join(thread, NULL);
}
