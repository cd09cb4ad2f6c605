/* Generalized requests, as which MPI knows this library's non-blocking collectives. */
#include <mpi.h>

#include "base/error.h"
#include "base/ticks.h"
#include "mpi_requests.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAUSE = 1000 * 1000 * 1000 }; /* ns between calls of MPI's for a request after which another wait has begun */

/* What MPI knows of a generalized request. */
typedef struct {
    int status; /* first, since the caller of request_start has its address */
    atomic_int ended;
    atomic_int waits;              /* threads in help_wait for the request, */
    _Atomic long long begun, last; /* when a wait began (ns), and when help_wait last returned */
    _Atomic long long tested;      /* when the main thread was last in help_test for the request */
} state;

static int query(void *of, MPI_Status *status) {
    MPI_Status_set_elements(status, MPI_BYTE, 0);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return ((state *)of)->status == COLL_OK ? MPI_SUCCESS : MPI_ERR_OTHER;
}

static void (*released_function)(void);

static int release(void *of) {
    free(of);
    if (released_function)
        released_function();
    return MPI_SUCCESS;
}

void coll_mpi_on_release(void (*function)(void)) {
    released_function = function;
}

static int refuse_cancel(void *of, int complete) {
    (void)of;
    return complete ? MPI_SUCCESS : MPI_ERR_REQUEST;
}

static void (*test_function)(void);
static void (*wait_function)(const atomic_int *ended);

void coll_mpi_on_wait(void (*test)(void), void (*wait)(const atomic_int *ended)) {
    test_function = test;
    wait_function = wait;
}

/* A thread that waits in MPI for generalized requests keeps its core from the thread that moves them. MPICH has the
 * program move its requests itself (Latham et al. 2007, doi 10.1007/978-3-540-75416-9_33). Relatives of MPICH with the
 * same ABI may lack the function. */
#ifndef OPEN_MPI
#pragma weak MPIX_Grequest_start

static void enter(state *of, int64_t now) {
    if (of->waits == 0 && now - of->last > PAUSE)
        of->begun = now; /* first, since who sees the wait reads it */
    atomic_fetch_add(&of->waits, 1);
}

static void leave(state *of, int64_t now) {
    atomic_store(&of->last, now);
    atomic_fetch_sub(&of->waits, 1);
}

/* MPI calls this in MPI_Test, and again and again in its waits for some of several requests. */
static int help_test(void *of, MPI_Status *status) {
    static _Thread_local int main_thread = -1;
    (void)status;
    if (main_thread < 0)
        main_thread = syscall(SYS_gettid) == getpid();
    if (main_thread)
        ((state *)of)->tested = coll_now();
    test_function();
    return MPI_SUCCESS;
}

/* MPI calls this again until all requests are complete. */
static int help_wait(int n, void **of, double timeout, MPI_Status *status) {
    (void)timeout, (void)status;
    int64_t now = coll_now();
    for (int i = 0; i < n; i++)
        enter(of[i], now);
    for (int i = 0; i < n; i++)
        wait_function(&((state *)of[i])->ended);
    now = coll_now();
    for (int i = 0; i < n; i++)
        leave(of[i], now);
    return MPI_SUCCESS;
}
#endif

static int start_generalized(state *of, MPI_Request *handle) {
#ifndef OPEN_MPI
    if (wait_function && MPIX_Grequest_start)
        return MPIX_Grequest_start(query, release, refuse_cancel, help_test, help_wait, of, handle);
#endif
    return MPI_Grequest_start(query, release, refuse_cancel, of, handle);
}

int coll_mpi_request_start(intptr_t *request, int **status) {
    MPI_Request handle;
    state *of = calloc(1, sizeof *of);
    if (!of)
        return COLL_ERR_MEMORY;
    if (start_generalized(of, &handle) != MPI_SUCCESS) {
        free(of);
        return COLL_ERR_MPI;
    }
    *request = (intptr_t)handle;
    *status = &of->status;
    return COLL_OK;
}

int coll_mpi_request_complete(intptr_t request, int *status) {
    atomic_store_explicit(&((state *)status)->ended, 1, memory_order_release);
    return MPI_Grequest_complete((MPI_Request)request) == MPI_SUCCESS ? COLL_OK : COLL_ERR_MPI;
}

int64_t coll_mpi_request_waited(const int *status, int64_t main_since) {
    const state *of = (const state *)status;
    int64_t now = coll_now();
    if (of->waits || now - of->last < PAUSE)
        return now - of->begun;
    return of->tested > main_since && now - of->tested < PAUSE ? now - main_since : 0;
}
