/* The node-local engine: ranks that map each other's heaps reduce without messages.
 *
 * Schemes, by length and by where the arrays lie:
 *   inline   up to 56 bytes travel in the line that carries the flag; every rank folds all of them
 *   read     copy in, publish, fold all inputs into the result; one synchronisation
 *   slices   every rank owns a slice: copy in what others own, by segments; fold the own slice, publish; copy the rest
 * out direct   slices of arrays that all lie on heaps: nothing is copied, owners read all inputs and write all outputs
 * What is rank-local (input or output on the heap or not) travels with the flags, and every mixture is served.
 *
 * Flags are 64-bit counters that only grow and have one writer each. A call's number is in their high bits, so that
 * they never need to be reset. Elements are folded in rank order, whatever the scheme. */
#ifndef COLL_NODE_H
#define COLL_NODE_H

#include "heap.h"
#include "kernels/kernels.h"

#include <stdatomic.h>

typedef struct coll_node coll_node;

/* Bytes of the area of flags that each rank gives to the group, zeroed, in its own heap. */
size_t coll_node_area_bytes(void);

/* A group of `size` ranks. bases[i] and limits[i] are rank i's heap as mapped here and its size; areas[i] the offset of
 * its area. All ranks must have zeroed their area before any rank calls this. NULL: no memory. */
coll_node *coll_node_new(coll_heap *own, int size, int rank, char *const *bases, const size_t *limits,
                         const uint64_t *areas);
/* Every rank is done with its calls. The areas belong to the caller. */
void coll_node_free(coll_node *);

/* Limits between schemes, in bytes: from the selection table, the same on all ranks. */
typedef struct {
    size_t read;    /* longest message that every rank reads whole, at most COLL_NODE_READ */
    size_t segment; /* longest of slices, a power of two, at most COLL_NODE_SEGMENT */
    size_t stream;  /* vectors at least so long are stored past the cache */
} coll_node_limits;
enum { COLL_NODE_INLINE = 56, COLL_NODE_READ = 64 << 10, COLL_NODE_SEGMENT = 256 << 10 };
void coll_node_set_limits(coll_node *, const coll_node_limits *);

/* dst[i] = left[i] op right[i] for ops without a kernel; `spare` holds COLL_NODE_PIECE bytes. Returns 0 or an error. */
typedef int (*coll_node_user_op)(void *context, void *dst, const void *left, const void *right, void *spare, size_t n);
enum { COLL_NODE_PIECE = 64 << 10 };

/* What is reduced; the same on all ranks, but for the addresses. */
typedef struct {
    const void *input; /* input == output: in place */
    void *output;
    size_t count, itemsize; /* itemsize <= COLL_NODE_PIECE */
    int dtype, op;          /* of the kernels; without a kernel user_op, its context, and 2 * COLL_NODE_PIECE bytes */
    coll_node_user_op user_op;
    void *user_context;
    char *user_spare;
} coll_node_message;

/* One call, from its start to its end. */
typedef struct {
    coll_node *node;
    coll_node_message message;
    uint64_t number; /* in the group: its turn comes when all before it are done */
    uint64_t word;   /* what this rank's line says in this call, and the others' must */
    int state, status, everything_shared;
    int segments, staged, reduced, copied;
    size_t segment;       /* elements */
    size_t segment_bytes; /* of its place in the ring */
    size_t at;            /* of the first one's */
    coll_reducep_fn fold, fold_stream;
} coll_node_call;

/* Take a number: calls run in this order, which must be the same on all ranks. */
void coll_node_begin(coll_node_call *, coll_node *, const coll_node_message *);
/* COLL_OK when the result is there and the buffers are the caller's again, COLL_PENDING, or COLL_ERR_MESSAGE when
 * another rank's call differs in length, type or op. Never blocks. */
int coll_node_progress(coll_node_call *);
/* Ranks that the call waits for at present, into ranks[max]; returns their number. */
int coll_node_waiting(const coll_node_call *, int *ranks, int max);

#endif
