/* Runs any program: one call to start, then progress until it is done. Nothing is allocated between the two.
 *
 * The vector is cut into segments, and up to `depth` cursors run the program over one segment each, with a tag of their
 * own, so that the rounds of different segments overlap. A segment is a piece of the vector, cut in blocks in its turn;
 * where the blocks are given or are the ranks' own (coll_layout.blockwise), it is a piece of every block. A message
 * longer than the endpoint takes goes as several, in order. */
#ifndef COLL_EXECUTOR_H
#define COLL_EXECUTOR_H

#include "kernels/kernels.h"
#include "schedule.h"
#include "transport/transport.h"

/* dst[i] = left[i] op right[i] for ops without a kernel; `spare` holds n elements. Returns 0 or an error. */
typedef int (*coll_user_op)(void *context, void *dst, const void *left, const void *right, void *spare, size_t n);

typedef struct {
    size_t count, itemsize; /* elements of the vector, bytes of one */
    int segments, depth;    /* segments >= 1; cursors at once */
    /* nblocks + 1 boundaries of the blocks, in elements, copied; NULL: balanced. Of INPUT, which is then not reduced;
     * NULL: the same. */
    const size_t *cuts, *input_cuts;
    coll_reduce2_fn reduce; /* NULL: user_op, or nothing is reduced */
    coll_scale_fn scale;    /* NULL, or the division at the end of avg */
    coll_user_op user_op;
    void *user_context;
} coll_message;

typedef struct coll_exec coll_exec;

/* The program and the endpoint must outlive it. NULL with *error set. */
coll_exec *coll_exec_new(const coll_program *, coll_endpoint *, const coll_message *, int *error);
void coll_exec_free(coll_exec *);

/* Tags [tag, tag + depth) belong to this run. The addresses are of what the rank has: of its one block where INPUT or
 * VECTOR hold no more, anything where they hold nothing. Returns COLL_OK. */
int coll_exec_start(coll_exec *, const void *input, void *vector, int tag);
/* COLL_OK when all is done, COLL_PENDING, or an error. Returns after about `budget` bytes of local work. */
int coll_exec_progress(coll_exec *, size_t budget);
/* Peers that the run waits for, each once, into peers[max]; returns their number. */
int coll_exec_waiting(const coll_exec *, int *peers, int max);
int coll_exec_busy(const coll_exec *);
/* Take back the receives that no message has reached; returns how many others are not complete yet. It can be called
 * again, and never progresses any more. Sends stay under way. */
int coll_exec_abandon(coll_exec *);
/* Bytes held by the execution, about, for caches of plans. */
size_t coll_exec_footprint(const coll_exec *);

#endif
