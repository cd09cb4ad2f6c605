/* Transports: a table of functions that move bytes between ranks. There are two: MPI point-to-point
 * (mpi_transport.c, built once per MPI ABI) and in-process mailboxes (inproc.c). */
#ifndef COLL_TRANSPORT_H
#define COLL_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

/* The messages of one execution: `capacity` slots, each free or with a send or receive under way. */
typedef struct coll_messages coll_messages;
typedef struct coll_endpoint coll_endpoint;

typedef struct {
    coll_messages *(*messages_new)(coll_endpoint *, int capacity); /* NULL without memory */
    void (*messages_free)(coll_messages *);
    /* Begin to move `bytes` bytes, in a free slot. Messages of one (source, destination, tag) match in order of calls.
     */
    int (*send)(coll_messages *, int slot, const void *buf, size_t bytes, int peer, int tag);
    int (*recv)(coll_messages *, int slot, void *buf, size_t bytes, int peer, int tag);
    /* Write the slots that completed since the last call to done[capacity]; returns their number, or an error. */
    int (*test)(coll_messages *, int *done);
    /* Cancel the receives that no message has reached; returns how many others are incomplete. */
    int (*cancel)(coll_messages *);
    void (*endpoint_free)(coll_endpoint *);
    /* A send that completes only once its receive has been posted. */
    int (*send_met)(coll_messages *, int slot, const void *buf, size_t bytes, int peer, int tag);
} coll_transport;

/* A message that was not as long as its receive. expected is 0 if there was none. */
typedef struct {
    int peer;
    size_t bytes; /* SIZE_MAX if there were more than expected */
    size_t expected;
} coll_unequal;

struct coll_endpoint {
    const coll_transport *transport;
    int rank, size;
    int tag_limit;        /* tags are in [0, tag_limit) */
    size_t message_limit; /* the most bytes of one message */
    int mpi_error;        /* MPI's code of the last COLL_ERR_MPI */
    coll_unequal unequal; /* the last message that ended with COLL_ERR_MESSAGE */
    int gives_way;        /* whether `test`, if it finds nothing, gives the core to another thread for a moment */
};

/* In-process mailboxes: `size` endpoints in one process, usable from several threads. A message is copied when both
 * sides are posted (no buffering). With a seed other than 0, test reports completions late, in random order. */
typedef struct coll_inproc coll_inproc;
coll_inproc *coll_inproc_new(int size, unsigned seed);
void coll_inproc_free(coll_inproc *);
coll_endpoint *coll_inproc_endpoint(coll_inproc *, int rank);

#endif
