#include "ending.h"
#include "base/error.h"
#include "internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
enum { LOOK = 50, LOOKS = 100 }; /* ms between looks at MPI_Finalize, and their number: 5 s */

static _Atomic int ended; /* MPI is finalized, or this is a forked child */
static char broken[256];  /* the first reason why MPI_Finalize might hang */
static int reasons;
static int exit_code = -1;   /* that of the program, if it has ended */
static _Atomic int survived; /* whether a rank has died and the others have continued */
static int processes = -1;   /* an epoll file with the processes that are watched; -1: none */
static _Atomic int returned; /* whether MPI_Finalize has */
static int (*tells_return)(void);
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

void coll_progress_watch_process(int pid) {
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0) {
        survived |= errno == ESRCH;
        return;
    }
    if (processes < 0)
        processes = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(processes, EPOLL_CTL_ADD, fd, &event);
}

void coll_progress_finalized(void) {
    returned = 1;
}

/* Whether a rank has died; the processes that are watched end in MPI_Finalize, after all have come there, or die. */
static int one_died(void) {
    struct pollfd file = {processes, POLLIN, 0};
    return survived || poll(&file, 1, 0) > 0; /* poll ignores a file of -1 */
}

/* MPI's last fence can wait for ever for a rank that died, and a rank can die within it. */
static void *guard(void *unused) {
    (void)unused;
    int looks = 0;
    for (; !returned && looks < LOOKS; looks += one_died())
        nanosleep(&(struct timespec){0, LOOK * 1000000}, NULL);
    if (returned)
        return NULL;
    if (exit_code < 0)
        fprintf(stderr, "collectives: a rank died, and MPI_Finalize does not return: this process is ended\n");
    _exit(exit_code < 0 ? 1 : exit_code);
}

static void start_guard(void) {
    pthread_t thread;
    if ((!survived && processes < 0) || (tells_return && !tells_return()))
        return;
    atexit(coll_progress_finalized); /* mpi4py calls MPI_Finalize before the program's other functions for its exit */
    if (coll_thread_create(&thread, guard, NULL) == COLL_OK)
        pthread_detach(thread);
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
    start_guard();
}

int coll_progress_watch_end(const coll_mpi_api *mpi, int (*tells)(void)) {
    if (world)
        return COLL_OK;
    world = mpi;
    tells_return = tells;
    int code = coll_progress_watch_forks();
    return code == COLL_OK ? mpi->at_finalize(at_end) : code;
}

int coll_progress_ended(void) {
    return ended;
}
