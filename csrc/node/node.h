/* The node-local engine: collectives of ranks that map each other's heaps, without messages.
 *
 * Schemes, by collective, length and by where the arrays lie:
 *   inline   up to 120 bytes travel in the pair of lines that carries the flag; every rank folds all of them
 *   read     (all-reduce) copy in, publish, fold all inputs into the result; one synchronisation
 *   slices   (all-reduce, long reduce) every rank owns a slice: copy in what others own, by segments; fold the own
 *            slice, publish; copy the rest out
 *   direct   slices of arrays that all lie on heaps: nothing is copied, owners read all inputs and write all outputs
 *   pull     (all others) copy in by segments what others want, publish; take or fold what one wants oneself; from
 *            limits.private on the system copies once, from one process's private memory to another's
 * What is rank-local (input or output on the heap or not) travels with the flags, and every mixture is served.
 *
 * Flags are 64-bit counters that only grow, modulo 2^64, and have one writer each. A call's number is in their high
 * bits, so that they never need to be reset. Elements are folded in rank order, whatever the scheme. */
#ifndef COLL_NODE_H
#define COLL_NODE_H

#include "heap/heap.h"
#include "kernels/kernels.h"

#include <stdatomic.h>

typedef struct coll_node coll_node;

/* Bytes of the area of flags that each rank gives to the group, zeroed, in its own heap. */
size_t coll_node_area_bytes(void);

/* A group of `size` ranks. bases[i] and limits[i] are rank i's heap as mapped here and its size; areas[i] the offset of
 * its area. All ranks must have zeroed their area before any rank calls this. NULL: no memory, or an area that is not
 * in its heap. */
coll_node *coll_node_new(coll_heap *own, int size, int rank, char *const *bases, const size_t *limits,
                         const uint64_t *areas);
/* Every rank is done with its calls. The areas belong to the caller. */
void coll_node_free(coll_node *);

/* Limits between schemes, in bytes: from the selection table, the same on all ranks. */
typedef struct {
    size_t copy;              /* longest message that is copied in wherever it lies: with one synchronisation less */
    size_t read;              /* longest message that every rank reads whole, at most COLL_NODE_READ */
    size_t shortest, segment; /* of segments, powers of two, at most COLL_NODE_SEGMENT */
    size_t stream;            /* results of vectors at least so long are stored past the cache */
    size_t private;           /* blocks about so long and longer are read in a process's private memory */
} coll_node_limits;
enum { COLL_NODE_INLINE = 120, COLL_NODE_READ = 64 << 10, COLL_NODE_SEGMENT = 256 << 10 };
void coll_node_set_limits(coll_node *, const coll_node_limits *);
/* The ranks' processes, which must be able to read each other's private memory (coll_heap_private_is_readable). Where
 * this is not called, limits.private has no effect. */
void coll_node_set_processes(coll_node *, const int64_t *pids);

/* dst[i] = left[i] op right[i] for ops without a kernel; `spare` holds COLL_NODE_PIECE bytes. Returns 0 or an error. */
typedef int (*coll_node_user_op)(void *context, void *dst, const void *left, const void *right, void *spare, size_t n);
enum { COLL_NODE_PIECE = 64 << 10, COLL_NODE_TYPES = 127 };

/* A barrier is an all-reduce of nothing. */
typedef enum {
    COLL_NODE_ALLREDUCE,
    COLL_NODE_REDUCE,
    COLL_NODE_BCAST,
    COLL_NODE_ALLGATHER,
    COLL_NODE_GATHER,
    COLL_NODE_REDUCE_SCATTER,
    COLL_NODE_SCATTER,
    COLL_NODE_ALLTOALL,
    COLL_NODE_SCAN,
    COLL_NODE_EXSCAN,
} coll_node_kind;

/* One rank's part of a call. Kind, root, itemsize, dtype and op are the same on all ranks, and so is count where cuts
 * is NULL.
 *
 * The vector has a block for each rank: count / size elements, or from cuts[i] to cuts[i + 1]. Input and output are the
 * whole vector, but: the block of this rank only is the input of all-gather and gather, and the output of
 * reduce-scatter and scatter. In all-to-all, block i of the input (input_cuts, if they differ) is for rank i, block i
 * of the output from it. bcast, reduce and the scans know no blocks. Buffers that have no meaning on a rank (the output
 * of a reduce elsewhere than at the root) may be NULL; the buffer of bcast is the input at the root, the output
 * elsewhere. Input and output are the same (in place) or do not overlap; all-to-all and reduce-scatter are never in
 * place, all-gather and gather are where the input is its own block of the output, scatter where the output is its own
 * block of the input. */
typedef struct {
    coll_node_kind kind;
    int root;
    const void *input;
    void *output;
    size_t count, itemsize; /* itemsize <= COLL_NODE_PIECE */
    const size_t *cuts, *input_cuts;
    int dtype, op; /* of the kernels; without a kernel user_op, its context, and 2 * COLL_NODE_PIECE bytes */
    int type;      /* of elements that are only moved, from 1 on to COLL_NODE_TYPES; 0 (bytes) matches any */
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
    uint64_t common; /* to all ranks, of this call and those before: who differed in one that needed nobody is found */
    int state, status, everything_shared, inlined;
    int segments, claimed, staged, reduced, copied;
    size_t segment;       /* elements */
    size_t segment_bytes; /* of its place in the ring */
    size_t at;            /* of the first one's */
    int slots;            /* of the ring, used in turn */
    uint64_t after;       /* while it waits for its turn, or for room in the ring: the call that all must have ended */
    coll_reducep_fn fold, fold_stream;
} coll_node_call;

/* Whether a message can be one of a group of `size` ranks, as far as numbers tell. */
int coll_node_message_ok(const coll_node_message *, int size);
/* Numbers taken so far. */
uint64_t coll_node_calls(const coll_node *);
/* Note a call that all ranks make elsewhere between calls of the group: `kind` is the same on all of them. */
void coll_node_mix(coll_node *, uint64_t kind);
/* Take a number: calls run in this order, which must be the same on all ranks. */
void coll_node_begin(coll_node_call *, coll_node *, const coll_node_message *);
/* COLL_OK when the result is there and the buffers are the caller's again, COLL_PENDING, or COLL_ERR_MESSAGE when
 * another rank's call differs in length, type or op. Never blocks. */
int coll_node_progress(coll_node_call *);
/* Ranks that the call waits for at present, into ranks[max]; returns their number. */
int coll_node_waiting(const coll_node_call *, int *ranks, int max);

/* Giving up: this rank ends no call of the group any more, and nobody progresses one here. Ranks that look at it from
 * now on get COLL_ERR_GIVEN_UP. */
void coll_node_give_up(coll_node *);
/* Ranks that write to this rank's arrays for a call that it has given up, into ranks[max]; returns their number. Where
 * it is 0 once, no byte of them changes any more. */
int coll_node_writers(const coll_node *, int *ranks, int max);
/* Ranks that have given up a call, this one included. */
int coll_node_quitters(const coll_node *, int *ranks, int max);
/* Ends a call that waits with an error, if a rank has given it up, or has made another one; returns its status. */
int coll_node_look(coll_node_call *);

#endif
