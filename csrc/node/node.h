/* The node-local engine: collectives of ranks that map each other's heaps, without messages.
 *
 * Schemes, by collective, length and place of the arrays:
 *   inline   up to 120 bytes are in the pair of cache lines of the flag; every rank folds the data of all ranks
 *   read     (all-reduce) copy in, publish, fold all inputs into the result; one synchronisation
 *   slices   (all-reduce, long reduce) every rank owns a slice: copy in what others own, by segments; fold the own
 *            slice, publish; copy the other slices out
 *   direct   slices of arrays that are all on heaps: nothing is copied, owners read all inputs and write all outputs
 *   pull     (all others) copy in by segments what others need, publish; take or fold what this rank needs; above
 *            limits.private the system copies once, from the private memory of one process to another's
 * Whether an input or output is on the heap may differ from rank to rank: the flags say so, and all mixtures work.
 *
 * Flags are 64-bit counters that only grow, modulo 2^64, and have one writer each. Their high bits contain the number
 * of the call, so that they need no reset. All schemes fold elements in rank order. */
#ifndef COLL_NODE_H
#define COLL_NODE_H

#include "heap/heap.h"
#include "kernels/kernels.h"

#include <stdatomic.h>

typedef struct coll_node coll_node;

/* Bytes of the flags that each rank provides to the group, zeroed, in its own heap. */
size_t coll_node_area_bytes(void);

/* A group of `size` ranks. bases[i] and limits[i] are the address at which rank i's heap is mapped here, and its size;
 * areas[i] is the offset of its flags. All ranks must have zeroed their flags before any rank calls this. NULL without
 * memory, or if flags are not in their heap. */
coll_node *coll_node_new(coll_heap *own, int size, int rank, char *const *bases, const size_t *limits,
                         const uint64_t *areas);
/* Free the group when no rank has calls under way. The flags belong to the caller. */
void coll_node_free(coll_node *);

/* Limits between schemes, in bytes; from the selection table, the same on all ranks. */
typedef struct {
    size_t copy;              /* messages up to this are copied in even from the heap: one synchronisation less */
    size_t read;              /* messages up to this are read whole by every rank; at most COLL_NODE_READ */
    size_t shortest, segment; /* the least and most of a segment; powers of two, at most COLL_NODE_SEGMENT */
    size_t stream;            /* results of vectors of at least this length bypass the cache */
    size_t private;           /* blocks of about this length or more are read in a process's private memory */
} coll_node_limits;
enum { COLL_NODE_INLINE = 120, COLL_NODE_READ = 64 << 10, COLL_NODE_SEGMENT = 256 << 10 };
void coll_node_set_limits(coll_node *, const coll_node_limits *);
/* Set the ranks' processes, which must be able to read each other's private memory (coll_heap_private_is_readable).
 * Without this call limits.private has no effect. */
void coll_node_set_processes(coll_node *, const int64_t *pids);

/* dst[i] = left[i] op right[i] for ops without a kernel; `spare` has COLL_NODE_PIECE bytes. Returns 0 or an error. */
typedef int (*coll_node_user_op)(void *context, void *dst, const void *left, const void *right, void *spare, size_t n);
enum { COLL_NODE_PIECE = 64 << 10, COLL_NODE_TYPES = 127 };

/* Kinds of calls. A barrier is an all-reduce of 0 elements. */
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

enum { COLL_NODE_VARIANTS = 16 };

/* One rank's part of a call. Kind, root, itemsize, dtype and op are the same on all ranks; so is count if cuts is NULL.
 *
 * The vector has one block per rank: of count / size elements, or from cuts[i] to cuts[i + 1]. Input and output are the
 * whole vector, with these exceptions. The input of all-gather and gather, and the output of reduce-scatter and
 * scatter, are only the block of this rank. In all-to-all, block i of the input (by input_cuts, if they differ) is for
 * rank i, block i of the output from rank i. bcast, reduce and the scans have no blocks. Buffers without meaning on a
 * rank (the output of a reduce on other ranks than the root) may be NULL. The buffer of bcast is the input on the root,
 * and the output elsewhere. Input and output are equal (in place) or do not overlap. all-to-all is never in place.
 * all-gather and gather are if the input is the rank's own block of the output; scatter and reduce-scatter are if the
 * output is its own block of the input.
 *
 * In an all-to-all with cuts, blocks may lie anywhere: with `starts`, block i of the output begins at starts[i], and
 * cuts only have the lengths; so have input_cuts with input_starts. Blocks of the input may overlap. Calls of which
 * other ranks must know that they are of the same kind have the same `variant`, below COLL_NODE_VARIANTS; it is 0 for
 * others. */
typedef struct {
    coll_node_kind kind;
    int root;
    const void *input;
    void *output;
    size_t count, itemsize; /* itemsize <= COLL_NODE_PIECE */
    const size_t *cuts, *input_cuts, *starts, *input_starts;
    int variant;
    int dtype, op; /* of the kernels; without a kernel user_op, its context, and 2 * COLL_NODE_PIECE bytes of spare */
    int type;      /* number of the type of data that are only moved, 1 to COLL_NODE_TYPES; 0 (bytes) matches any */
    coll_node_user_op user_op;
    void *user_context;
    char *user_spare;
} coll_node_message;

/* One call, from begin to end. */
typedef struct {
    coll_node *node;
    coll_node_message message;
    uint64_t number;  /* in the group; the call begins when all calls with lower numbers have ended */
    uint64_t word;    /* what the lines of this rank and of the others must say in this call */
    uint64_t common;  /* hash of this and earlier calls, equal on all ranks; it reveals earlier calls that differed */
    uint64_t in_heap; /* offset of the input in this rank's heap, if all that others read of it lies there, else 0 */
    int state, status, everything_shared, inlined;
    int in_private; /* whether the others read the input in this process's private memory */
    int segments, claimed, staged, reduced, copied;
    unsigned moves;       /* how often a "pull" has moved data */
    size_t kept;          /* elements of this rank's own block that are in the output; SIZE_MAX: all */
    size_t segment;       /* elements of a segment */
    size_t segment_bytes; /* bytes of a segment's place in the ring */
    size_t at;            /* start of the first segment's place */
    int slots;            /* number of places in the ring, used in turn */
    uint64_t after;       /* while it waits for its turn or for room in the ring: the call that all must have ended */
    coll_reducep_fn fold;
} coll_node_call;

/* Whether the numbers in a message are valid for a group of `size` ranks. */
int coll_node_message_ok(const coll_node_message *, int size);
/* Number of calls begun so far. */
uint64_t coll_node_calls(const coll_node *);
/* Add to the history a call that all ranks make outside the group; `kind` is the same on all of them. */
void coll_node_mix(coll_node *, uint64_t kind);
/* Give a call its number. Calls run in order of numbers, which must be the same on all ranks. */
void coll_node_begin(coll_node_call *, coll_node *, const coll_node_message *);
/* COLL_OK when the result is complete and the buffers are the caller's again; COLL_PENDING; COLL_ERR_MESSAGE if another
 * rank's call differs in length, type or op; or another error. Never blocks. */
int coll_node_progress(coll_node_call *);
/* Write the ranks that the call waits for at present to ranks[max]; returns their number. */
int coll_node_waiting(const coll_node_call *, int *ranks, int max);

/* Give up: this rank ends no further call of the group, and must not progress one. Ranks that inspect a call of it from
 * now on get COLL_ERR_GIVEN_UP. */
void coll_node_give_up(coll_node *);
/* Write to ranks[max] the ranks that write to this rank's arrays for a call that it has given up; returns their number.
 * Once that is 0, the arrays do not change any more. */
int coll_node_writers(const coll_node *, int *ranks, int max);
/* Write to ranks[max] the ranks that have given up a call, this one included; returns their number. */
int coll_node_quitters(const coll_node *, int *ranks, int max);
/* End a waiting call with an error if a rank has given it up or makes a different one; returns the call's status. */
int coll_node_look(coll_node_call *);

#endif
