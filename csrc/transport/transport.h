/* Transports: a small table of functions that moves bytes between ranks. Makers: MPI point-to-point
 * (mpi_transport.c, built once per MPI ABI) and in-process mailboxes (inproc.c). */
#ifndef COLL_TRANSPORT_H
#define COLL_TRANSPORT_H

#include <stddef.h>

/* The messages of one execution: `capacity` slots, each free or holding a send or receive under way. */
typedef struct coll_messages coll_messages;
typedef struct coll_endpoint coll_endpoint;

typedef struct {
    coll_messages *(*messages_new)(coll_endpoint *, int capacity); /* NULL: no memory */
    void (*messages_free)(coll_messages *);
    /* Begin to move `bytes` bytes, in slot. Messages of one (source, destination, tag) match in the order of the calls.
     */
    int (*send)(coll_messages *, int slot, const void *buf, size_t bytes, int peer, int tag);
    int (*recv)(coll_messages *, int slot, void *buf, size_t bytes, int peer, int tag);
    /* Slots that completed since the last call, into done[capacity]; returns how many, or an error. */
    int (*test)(coll_messages *, int *done);
    /* Take back the receives that no message has reached; returns how many others are not complete yet. */
    int (*cancel)(coll_messages *);
    void (*endpoint_free)(coll_endpoint *);
} coll_transport;

struct coll_endpoint {
    const coll_transport *transport;
    int rank, size;
    int tag_limit;        /* tags lie in [0, tag_limit) */
    size_t message_limit; /* bytes in one message */
    int mpi_error;        /* code of the last COLL_ERR_MPI */
};

/* In-process mailboxes: `size` endpoints in one process, usable from several threads. A message moves when both sides
 * are posted (no buffering). With a seed other than 0, test reports completions late, in a random order. */
typedef struct coll_inproc coll_inproc;
coll_inproc *coll_inproc_new(int size, unsigned seed);
void coll_inproc_free(coll_inproc *);
coll_endpoint *coll_inproc_endpoint(coll_inproc *, int rank);

#endif
