/* The queue of non-blocking calls, with tasks that count how often they are looked at. */
#include "base/error.h"
#include "base/moves.h"
#include "base/ticks.h"
#include "progress/progress.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MANY = 300, MOST = 8, WAKES = 300, SLOW = 5, LIMIT = 20, PIECES = 10 }; /* SLOW, LIMIT: ms */

typedef struct {
    coll_request request;
    _Atomic int looks, done, entered, closed; /* closed: a look lasts until it is 0 */
} fake;

static _Thread_local int own; /* looks by this thread */

static void expect(int condition, const char *what, int number) {
    if (!condition) {
        printf("%s: %d\n", what, number);
        abort();
    }
}

static int look(void *self, size_t budget) {
    fake *f = self;
    (void)budget;
    own++;
    f->looks++;
    f->entered = 1;
    while (f->closed)
        usleep(100);
    return f->done ? COLL_OK : COLL_PENDING;
}

static int waits_for_nobody(const void *self, int *ranks, int max) {
    (void)self, (void)ranks, (void)max;
    return 0;
}

static int give_up(void *self) {
    (void)self;
    return 0;
}

static void submit(fake *f) {
    f->request.task = (coll_task){f, look, waits_for_nobody, give_up, 0};
    expect(coll_progress_submit(&f->request) == COLL_OK, "not queued", 0);
}

static int ended(const fake *f) {
    return atomic_load(&f->request.status) != COLL_PENDING;
}

static void *poll_until_entered(void *f) {
    while (!((fake *)f)->entered)
        coll_progress_poll();
    return NULL;
}

/* Only the first begin moves anything: its own request. */
static void begins(fake *all) {
    for (int i = 0; i < MANY; i++)
        submit(&all[i]);
    expect(own <= 1, "looks of all begins", own);
}

/* A pass looks at all new requests. One that finds nothing to do looks at few, and passes come to all of them. */
static void passes(fake *all) {
    for (int i = 0; i < MANY; i++)
        while (!all[i].looks)
            coll_progress_poll();
    for (int i = 0; i < MANY; i++)
        all[i].looks = 0;
    int without = 1;
    for (int pass = 0; pass < 100 * MANY && without; pass++) {
        int before = own;
        coll_progress_poll();
        expect(own - before <= MOST, "looks of a pass", own - before);
        without = 0;
        for (int i = 0; i < MANY; i++)
            without += all[i].looks == 0;
        usleep(10); /* the thread may have the lock */
    }
    expect(!without, "requests without a look", without);
}

/* A begin does not wait for a thread that goes through the queue, and its request is moved later. */
static void beside(fake *all, fake *another) {
    pthread_t other;
    all[0].entered = 0;
    all[0].closed = 1;
    pthread_create(&other, NULL, poll_until_entered, &all[0]);
    while (!all[0].entered)
        usleep(100);
    int before = own;
    submit(another);
    expect(own == before && all[0].closed, "looks beside another thread", own - before);
    all[0].closed = 0;
    pthread_join(other, NULL);
}

static void ends(fake *all, int count) {
    for (int i = 0; i < count; i++)
        all[i].done = 1;
    for (int i = count; i-- > 0;)
        while (coll_progress_wait(NULL, &all[i].request, 1, 1000000) == COLL_PENDING)
            ;
    expect(coll_progress_outstanding() == 0, "outstanding", coll_progress_outstanding());
}

/* The thread ends a request that nobody waits for, also if it has just gone to sleep. */
static void wakes(void) {
    srand(1);
    for (int i = 0; i < WAKES; i++) {
        fake f = {0};
        submit(&f);
        f.done = 1;
        for (int ms = 0; !ended(&f); ms++) {
            expect(ms < 20000, "the thread sleeps; turn", i);
            usleep(1000);
        }
        while (coll_progress_outstanding())
            usleep(10);
        usleep((unsigned)rand() % 8000);
    }
}

static fake *told; /* whose end MPI hears of */

static int completed(intptr_t handle, int *status) {
    (void)handle, (void)status;
    expect(told->request.ended != 0 && !ended(told), "MPI's request ends in the wrong place", 0);
    return COLL_OK;
}

/* After the end of its request of MPI's, but before its own, a call differs from one under way, also a repeated call.
 */
static void ends_in_mpi_first(void) {
    coll_mpi_api mpi = {.request_complete = completed};
    int status;
    fake f = {.request = {.mpi = &mpi, .handle_status = &status}};
    told = &f;
    for (int i = 0; i < 3; i++) {
        f.done = 0;
        submit(&f);
        expect(f.request.ended == 0 && !ended(&f), "under way, but ends; turn", i);
        f.done = 1;
        while (!ended(&f) || coll_progress_outstanding())
            coll_progress_poll();
    }
}

static _Thread_local int yields; /* how often this thread has given its core away */

int sched_yield(void) {
    yields++;
    return (int)syscall(SYS_sched_yield);
}

static int nap(void *self, size_t budget) {
    usleep(SLOW * 1000);
    return look(self, budget);
}

/* A wait for a task whose polls are slow ends in time. */
static void slow_polls(void) {
    fake f = {0};
    coll_task t = {&f, nap, waits_for_nobody, give_up, 0};
    expect(coll_progress_wait(&t, NULL, 0, LIMIT * 1000000) == COLL_PENDING, "ended", 0);
    expect(f.looks <= LIMIT / SLOW + 1, "polls of a wait that is over", f.looks);
}

/* Moves something for half a millisecond, of PIECES. */
static int work(void *self, size_t budget) {
    int64_t end = coll_now() + 500000;
    while (coll_now() < end)
        coll_pause();
    coll_moves++;
    look(self, budget);
    return ((fake *)self)->looks < PIECES ? COLL_PENDING : COLL_OK;
}

/* A wait whose polls move data for long does not give its core away between them, also where cores are short. */
static void long_work(void) {
    fake f = {0};
    coll_task t = {&f, work, waits_for_nobody, give_up, 0};
    yields = 0;
    while (coll_progress_wait(&t, NULL, 1, 1000000000) == COLL_PENDING)
        ;
    expect(f.looks == PIECES && yields == 0, "gave the core away during work", yields);
}

/* A signal that the program blocks is not delivered to the thread, which would end the process. */
static void signals(void) {
    struct timespec limit = {10, 0};
    sigset_t blocked;
    fake f = {0};
    submit(&f);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    kill(getpid(), SIGTERM);
    expect(sigtimedwait(&blocked, NULL, &limit) == SIGTERM, "the signal does not come", 0);
    f.done = 1;
    while (!ended(&f) || coll_progress_outstanding())
        coll_progress_poll();
}

int main(void) {
    fake *all = calloc(MANY + 1, sizeof *all);
    begins(all);
    passes(all);
    beside(all, &all[MANY]);
    ends(all, MANY + 1);
    wakes();
    ends_in_mpi_first();
    slow_polls();
    long_work();
    signals();
    coll_progress_stop(0);
    free(all);
    printf("all right\n");
    return 0;
}
