/* The one symbol that the MPI transport library exports, `coll_mpi`. MPI handles are passed as integers, so that no
 * other file includes mpi.h. The library is built once per MPI ABI. */
#ifndef COLL_TRANSPORT_MPI_H
#define COLL_TRANSPORT_MPI_H

#include "transport.h"

#include <stdatomic.h>
#include <stdint.h>

#define COLL_MPI_VERSION 12

/* Whether a communicator of the program still exists: any thread may free it through another handle at any time. */
typedef struct {
    atomic_uint alive; /* all bits set; 0 once MPI has freed the communicator */
    atomic_int holders;
} coll_mpi_life;

typedef struct {
    int version;     /* COLL_MPI_VERSION */
    const char *abi; /* "mpich" or "openmpi" */
    /* Whether the MPI library that this transport is linked to is initialized, and its version text. The caller
     * compares both with mpi4py's, to detect a second MPI library in the process. */
    int (*initialized)(void);
    const char *(*library_version)(void);
    /* An endpoint on a communicator that only this library uses; the caller keeps it alive. NULL without memory. */
    coll_endpoint *(*endpoint_new)(intptr_t comm);
    /* The most bytes of a message that goes to another host at once, where a longer one waits for the receiver's
     * answer, which on a busy link queues behind data; 0 if that is not known, or if messages do not go by TCP. */
    size_t (*unannounced)(void);
    /* Let MPI make progress on all communication of the program. COLL_OK, or COLL_ERR_MPI if MPI reports that the
     * communicator is unusable: it was revoked, or a rank died. */
    int (*poll)(coll_endpoint *);
    /* inout[i] = in[i] op inout[i], by MPI_Reduce_local. */
    int (*reduce_local)(intptr_t op, intptr_t datatype, const void *in, void *inout, size_t n);
    /* Generalized requests. The caller writes COLL_OK or an error to *status before request_complete, and must not
     * access it afterwards. */
    int (*request_start)(intptr_t *request, int **status);
    int (*request_complete)(intptr_t request, int *status);
    /* For how long (ns) MPI has been waiting for a request, as far as it calls the functions of on_wait; 0: it does not
     * wait, or that is not known. The main thread has been in one C function since `main_since` (ns of the monotonic
     * clock): if MPI tests the request there, it waits. The request must not be complete. */
    int64_t (*request_waited)(const int *status, int64_t main_since);
    /* Set a function that is called, in any thread, when MPI releases a generalized request. */
    void (*on_release)(void (*function)(void));
    /* Set what MPI calls while the program tests such a request, and while it waits for one, which has ended when
     * `*ended` is not 0. Only MPICH and its relatives call them (MPIX_Grequest_start). */
    void (*on_wait)(void (*test)(void), void (*wait)(const atomic_int *ended));
    /* Set a function that is called when MPI_Finalize begins, but not in a forked child. COLL_OK or an error. */
    int (*at_finalize)(void (*function)(void));
    /* The coll_mpi_life of a communicator, or NULL. The caller must free it, whether or not MPI has freed the comm. */
    coll_mpi_life *(*life_new)(intptr_t comm);
    void (*life_free)(coll_mpi_life *);
    /* End all ranks by MPI_Abort. */
    void (*abort)(int code);
} coll_mpi_api;

#endif
