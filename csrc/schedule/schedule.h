/* Schedules as C reads them (collectives/schedules/steps.py has the same fields), and programs: schedules with their
 * dependencies.
 *
 * A program knows no length, datatype or address, so one serves every message. */
#ifndef COLL_SCHEDULE_H
#define COLL_SCHEDULE_H

#include <stdint.h>

enum { COLL_SEND, COLL_RECV, COLL_RECV_REDUCE, COLL_REDUCE, COLL_COPY };
enum { COLL_ALL = -1, COLL_NONE = -2, COLL_RECEIVED = -1, COLL_INPUT = 0, COLL_VECTOR = 1, COLL_SCRATCH = 2 };

typedef struct {
    int32_t kind, round, peer, block, nblocks, dst, left, right, src_block, reserved;
} coll_step;

/* Rounds that may be under way together on one rank. A round may begin once all rounds that lie this many back are
 * complete; two let a receive be posted before its message comes, and bound the staging memory. */
#define COLL_WINDOW 2

/* One action: a RECV_REDUCE step becomes a receive into a staging slot and a reduction. An operand COLL_RECEIVED
 * means the staging slot. */
typedef struct {
    int32_t kind, round, peer, block, nblocks, dst, left, right, src_block;
    int32_t slot;              /* staging slot, or -1 */
    int32_t waits;             /* what must happen before it may start */
    int32_t on_start, on_done; /* first edge in coll_program.edges of each kind; ends where the next begins */
} coll_action;

typedef struct {
    int size, nblocks, nscratch;
    int in_place;                  /* COLL_INPUT and COLL_VECTOR are the same memory, block by block */
    int input_block, vector_block; /* the one block that the caller's memory holds; COLL_ALL, COLL_NONE */
    int blockwise;                 /* block i is rank i's: segments cut each block, else the vector */
} coll_layout;

typedef struct {
    coll_layout layout;
    int nactions, nrounds, nslots;
    int single;           /* every step is of one block */
    int slot_blocks;      /* most blocks that a staging slot holds */
    coll_action *actions; /* nactions + 1: the last one only ends the edge lists */
    int32_t *edges;       /* actions that wait for a start or an end */
    int32_t *round_first; /* nrounds + 1: first action of each round */
} coll_program;

/* Checks every field and derives the dependencies.
 * NULL with *error set (COLL_ERR_SCHEDULE, COLL_ERR_MEMORY) and, in *bad_step, the step that is malformed; -1: the
 * layout. */
coll_program *coll_program_new(const coll_step *steps, int nsteps, const coll_layout *, int *error, int *bad_step);
void coll_program_free(coll_program *p);

#endif
