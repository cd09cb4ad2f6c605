#include "ending.h"
#include "base/error.h"
#include "progress.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static _Atomic int ended; /* MPI is finalized, or this is a forked child */
static char broken[256];  /* the first reason why MPI_Finalize might hang */
static int reasons;
static int exit_code;
static int survived; /* whether a rank has died and the others have continued */
static const coll_mpi_api *world;
static _Atomic(_Atomic char *) note; /* shared memory that tells other processes when MPI_Finalize has begun */

/* The child has no thread and must not touch the parent's messages. */
static void after_fork_child(void) {
    coll_progress_forget();
    ended = 1;
}

static int forks;
static void watch_forks(void) {
    forks = pthread_atfork(NULL, NULL, after_fork_child) == 0;
}

int coll_progress_watch_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    return pthread_once(&once, watch_forks) == 0 && forks ? COLL_OK : COLL_ERR_MEMORY;
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

void coll_progress_exit_code(int code) {
    exit_code = code;
}

void coll_progress_survived(int was_broken) {
    survived = 1;
    if (was_broken)
        coll_progress_mended();
}

/* Called when the program has ended and its output is written; only MPI_Finalize has not returned. */
static void leave(int signal) {
    (void)signal;
    _exit(exit_code);
}

/* Requests that are not complete. MPI shows the last one as complete just before it counts as such here, and the thread
 * that completes it may lose its core in between. */
static int left_over(void) {
    int left = coll_progress_outstanding();
    for (int i = 0; i < 50 && left; i++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        left = coll_progress_outstanding();
    }
    return left;
}

void coll_progress_abort(void) {
    if (!world)
        return;
    signal(SIGALRM, SIG_DFL);
    alarm(4); /* MPI_Abort takes a tenth of a second, but may hang if a rank was lost */
    world->abort(1);
}

/* MPI calls this at the start of MPI_Finalize, while MPI still works. The thread cannot be joined if it may wait for
 * Python's lock, which the caller may hold; but then a request is outstanding, which leads to MPI_Abort. */
static void at_end(void) {
    int left = left_over();
    if (broken[0] || left) {
        if (!broken[0])
            snprintf(broken, sizeof broken, "%d non-blocking collectives are not complete", left);
        fprintf(stderr, "collectives: MPI_Abort instead of MPI_Finalize, which might hang: %s\n", broken);
        /* Launchers drop output that they have not read by the abort. And a rank that has only heard of this rank's
         * failure asks the others for up to 0.9 s before it reports. */
        nanosleep(&(struct timespec){1, 0}, NULL);
        coll_progress_abort();
    }
    coll_progress_stop(0);
    ended = 1;
    if (note)
        *note = '2';
    if (survived) { /* MPI's last fence can wait for ever for a rank that died */
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
