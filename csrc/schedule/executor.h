/* Runs any program: coll_exec_start once, then coll_exec_progress until it is done. Nothing is allocated in between.
 *
 * The vector is cut into segments, and up to `depth` cursors run the program over one segment each, each with its own
 * tag, so that the rounds of different segments overlap. A segment is a part of the vector, cut into blocks again. If
 * the blocks are given or belong to ranks (coll_layout.blockwise), a segment is a part of every block. A message longer
 * than the endpoint's limit is sent as several messages, in order. */
#ifndef COLL_EXECUTOR_H
#define COLL_EXECUTOR_H

#include "kernels/kernels.h"
#include "schedule.h"
#include "transport/transport.h"

/* dst[i] = left[i] op right[i] for ops without a kernel; `spare` has room for n elements. Returns 0 or an error. */
typedef int (*coll_user_op)(void *context, void *dst, const void *left, const void *right, void *spare, size_t n);

typedef struct {
    size_t count, itemsize; /* elements of the vector, bytes of one element */
    int segments, depth;    /* segments >= 1; cursors */
    /* nblocks + 1 boundaries of the blocks, in elements, which are copied; NULL: balanced blocks. input_cuts are those
     * of INPUT; NULL: the same. If they differ, INPUT must not be reduced. */
    const size_t *cuts, *input_cuts;
    /* Where the blocks lie, in elements, if not between the boundaries; only with cuts, if all steps have one block. */
    const size_t *starts, *input_starts;
    coll_reduce2_fn reduce; /* NULL: user_op, or nothing is reduced */
    coll_scale_fn scale;    /* NULL, or the division at the end of avg */
    coll_user_op user_op;
    void *user_context;
} coll_message;

typedef struct coll_exec coll_exec;

/* The program and the endpoint must outlive the execution. Returns NULL with *error set if it fails. */
coll_exec *coll_exec_new(const coll_program *, coll_endpoint *, const coll_message *, int *error);
void coll_exec_free(coll_exec *);

/* Start a run; it uses the tags [tag, tag + depth). Each address is of the memory that the rank has: all blocks, or its
 * one block, or anything if INPUT or VECTOR hold no blocks. Returns COLL_OK or COLL_ERR_ARGUMENT. */
int coll_exec_start(coll_exec *, const void *input, void *vector, int tag);
/* COLL_OK when the run is complete, COLL_PENDING, or an error. Returns after about `budget` bytes of local work. */
int coll_exec_progress(coll_exec *, size_t budget);
/* Write the peers that the run waits for, each once, to peers[max]; returns their number, or 0 without memory. */
int coll_exec_waiting(const coll_exec *, int *peers, int max);
int coll_exec_busy(const coll_exec *);
/* Whether coll_exec_progress, if it finds nothing to do, gives the core to another thread for a moment. */
int coll_exec_gives_way(const coll_exec *);
/* Cancel the receives that no message has reached; returns how many others are incomplete. May be called again. The run
 * makes no further progress. Sends are not cancelled. */
int coll_exec_abandon(coll_exec *);
/* Approximate bytes of memory of the execution, for caches of plans. */
size_t coll_exec_footprint(const coll_exec *);

#endif
