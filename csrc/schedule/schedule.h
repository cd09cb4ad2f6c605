/* Schedules as records (collectives/schedules/steps.py has the same fields), and programs: schedules with dependencies.
 *
 * A program does not depend on length, datatype or address, so that one program serves every message. */
#ifndef COLL_SCHEDULE_H
#define COLL_SCHEDULE_H

#include <stdint.h>

enum { COLL_SEND, COLL_RECV, COLL_RECV_REDUCE, COLL_REDUCE, COLL_COPY };
enum { COLL_ALL = -1, COLL_NONE = -2, COLL_RECEIVED = -1, COLL_INPUT = 0, COLL_VECTOR = 1, COLL_SCRATCH = 2 };

typedef struct {
    int32_t kind, round, peer, block, nblocks, dst, left, right, src_block, reserved;
} coll_step;

/* Number of rounds that may be under way at once on one rank: a round may begin once all rounds this many back are
 * complete. With two, a receive is posted before its message arrives; the staging memory stays bounded. */
#define COLL_WINDOW 2

/* One action. A RECV_REDUCE step becomes two: a receive into a staging slot, and a reduction whose operand
 * COLL_RECEIVED is that slot. */
typedef struct {
    int32_t kind, round, peer, block, nblocks, dst, left, right, src_block;
    int32_t slot;              /* staging slot, or -1 */
    int32_t waits;             /* number of events before it may start */
    int32_t on_start, on_done; /* starts of its two lists in coll_program.edges; each ends where the next begins */
} coll_action;

typedef struct {
    int size, nblocks, nscratch;
    int in_place;                  /* COLL_INPUT and COLL_VECTOR are the same memory, block by block */
    int input_block, vector_block; /* the one block that the caller's memory holds, or COLL_ALL or COLL_NONE */
    int blockwise;                 /* block i belongs to rank i: segments cut each block, not the vector */
} coll_layout;

typedef struct {
    coll_layout layout;
    int nactions, nrounds, nslots;
    int single;           /* whether every step has one block */
    int slot_blocks;      /* the most blocks in a staging slot */
    coll_action *actions; /* nactions + 1: the last one only ends the lists of edges */
    int32_t *edges;       /* actions that wait for the start or the end of another action */
    int32_t *round_first; /* nrounds + 1: first action of each round */
} coll_program;

/* Check every field and derive the dependencies. On failure returns NULL, sets *error to COLL_ERR_SCHEDULE or
 * COLL_ERR_MEMORY, and *bad_step to the malformed step, or to -1 if no step is at fault. */
coll_program *coll_program_new(const coll_step *steps, int nsteps, const coll_layout *, int *error, int *bad_step);
void coll_program_free(coll_program *p);

#endif
