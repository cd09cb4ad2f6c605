/* What the MPI transport library exports: one symbol, `coll_mpi`. MPI handles cross as integers, so that nothing else
 * includes mpi.h, and the library is built once per MPI ABI. */
#ifndef COLL_TRANSPORT_MPI_H
#define COLL_TRANSPORT_MPI_H

#include "transport.h"

#include <stdatomic.h>
#include <stdint.h>

#define COLL_MPI_VERSION 6

/* Whether a communicator of the program's lives still: another handle to it may free it at any time, in any thread. */
typedef struct {
    atomic_uint alive; /* all bits, or none from when MPI frees the communicator */
    atomic_int holders;
} coll_mpi_life;

typedef struct {
    int version;     /* COLL_MPI_VERSION */
    const char *abi; /* "mpich" or "openmpi" */
    /* Whether the MPI library that the transport is linked to has been initialized, and its version text: the caller
     * compares both with mpi4py's, lest a second MPI library was loaded into the process. */
    int (*initialized)(void);
    const char *(*library_version)(void);
    /* Endpoint on a communicator of the library's own; the caller keeps the communicator alive. NULL: no memory. */
    coll_endpoint *(*endpoint_new)(intptr_t comm);
    /* Let MPI make progress on whatever the program has under way. COLL_OK, or COLL_ERR_MPI where MPI says that the
     * communicator is of no use any more: it was revoked, or a rank died. */
    int (*poll)(coll_endpoint *);
    /* inout[i] = in[i] op inout[i], by MPI_Reduce_local. */
    int (*reduce_local)(intptr_t op, intptr_t datatype, const void *in, void *inout, size_t n);
    /* Generalized requests. The caller writes COLL_OK or an error to **status before it completes the request, and
     * does not touch it afterwards. */
    int (*request_start)(intptr_t *request, int **status);
    int (*request_complete)(intptr_t request);
    /* Have a function called, in any thread, when MPI is done with a generalized request. */
    void (*on_release)(void (*function)(void));
    /* Have a function called when MPI_Finalize begins; not in a forked child. COLL_OK or an error. */
    int (*at_finalize)(void (*function)(void));
    /* The life of a communicator, or NULL. The holder gives it back whether the communicator has been freed or not. */
    coll_mpi_life *(*life_new)(intptr_t comm);
    void (*life_free)(coll_mpi_life *);
    /* End all ranks. */
    void (*abort)(int code);
} coll_mpi_api;

#endif
