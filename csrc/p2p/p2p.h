/* Point-to-point messages of ranks that map each other's heaps, without MPI.
 *
 * A sender writes a message's envelope to a slot in the receiver's heap. Up to COLL_P2P_EAGER bytes are in the slot,
 * too (eager). The receiver copies longer data itself, from the sender's heap or private memory (rendezvous), and then
 * says so by a record in the sender's heap. Messages match by sender and tag, in the order in which they were sent. */
#ifndef COLL_P2P_H
#define COLL_P2P_H

#include "heap/heap.h"
#include "progress/progress.h"

typedef struct coll_p2p coll_p2p;

enum { COLL_P2P_EAGER = 192, COLL_P2P_ANY = -1 };

/* Bytes of the area that each rank of a group of `size` ranks provides, zeroed, in its own heap. */
size_t coll_p2p_area_bytes(int size);

/* What a rank knows of another one, or of itself. */
typedef struct {
    char *base;    /* where its heap is mapped in this process */
    size_t limit;  /* bytes of the heap */
    uint64_t area; /* offset of its area */
    int64_t pid;
} coll_p2p_peer;

/* A group of `size` ranks. All ranks must have zeroed their areas before any rank calls this. `reads_private`: every
 * rank can read the others' private memory; else data are copied to the heap first. NULL without memory, or if an area
 * is not in its heap. */
coll_p2p *coll_p2p_new(coll_heap *own, int size, int rank, const coll_p2p_peer *, int reads_private);
/* Free the group; its messages are given up. The area belongs to the caller, who frees it when all ranks are done. */
void coll_p2p_free(coll_p2p *);

/* What a sender tells of a message. */
typedef struct {
    int64_t tag;
    uint64_t bytes;
    uint64_t offset;  /* where the data are in the sender's heap; 0: not there */
    uint64_t address; /* or in its private memory */
    uint64_t opened;  /* value of the record while the receiver may copy */
    uint64_t record;  /* offset in the sender's heap; 0: the data are in the slot */
} coll_p2p_envelope;

/* A message of the program's. Only `status`, `source` and `received` are for others to read, once it has ended. */
typedef struct coll_p2p_message {
    coll_p2p *group;
    int receives, peer; /* peer: a rank, or COLL_P2P_ANY for a receive from any rank */
    int64_t tag;
    void *memory;
    size_t bytes;
    _Atomic int status;         /* COLL_PENDING, then COLL_OK or an error */
    int source;                 /* the rank that has sent what was received */
    size_t received;            /* bytes that it has sent: COLL_ERR_MESSAGE if these are not `bytes` */
    void *staging;              /* a copy on the heap, of data that the receiver cannot read where they are */
    void *record;               /* the record by which the receiver ends a rendezvous; NULL: none yet */
    coll_p2p_envelope envelope; /* of a receive: where its data are copied from */
    size_t copied;              /* bytes of these that have been copied */
    struct coll_p2p_message *next;
} coll_p2p_message;

/* Begin a message whose first five fields are set. It proceeds in the background. COLL_OK or an error. */
int coll_p2p_begin(coll_p2p_message *);
/* Give a message up, unless it has ended: nothing reads or writes its memory from then on. */
void coll_p2p_withdraw(coll_p2p_message *);
/* Give up all messages of a group, or only the receives that no message has reached. */
void coll_p2p_give_up_all(coll_p2p *, int receives_only);
/* Number of messages that have not ended. Without any, this rank reads and writes nothing of other ranks. */
int coll_p2p_pending(coll_p2p *);
/* The message as a task whose progress ends with the message's status. */
coll_task coll_p2p_task(coll_p2p_message *);

#endif
