/* Dependencies of a schedule, derived from which blocks each step reads and writes. */
#include "schedule.h"
#include "error.h"

#include <stdlib.h>
#include <string.h>

/* What is longer is no schedule: numbers of actions and edges are ints. */
enum { MOST_STEPS = 1 << 28, MOST_EDGES = 1 << 28 };

static int range_ok(int block, int nblocks, int total) {
    return block >= 0 && nblocks > 0 && nblocks <= total && block <= total - nblocks;
}

/* The one block that the caller's memory holds, or all, or none. */
static int held_ok(const coll_layout *l, int block) {
    return block == COLL_ALL || block == COLL_NONE || range_ok(block, 1, l->nblocks);
}

static int layout_ok(const coll_layout *l) {
    return l->size >= 1 && l->nblocks >= 1 && l->nscratch >= 0 && held_ok(l, l->input_block) &&
           held_ok(l, l->vector_block);
}

/* Whether the blocks lie in a buffer: the caller's may hold one block only, or be missing. */
static int within(const coll_layout *l, int buffer, int block, int nblocks) {
    if (buffer < COLL_INPUT || buffer - COLL_SCRATCH >= l->nscratch || !range_ok(block, nblocks, l->nblocks))
        return 0;
    int held = buffer == COLL_INPUT ? l->input_block : buffer == COLL_VECTOR ? l->vector_block : COLL_ALL;
    return held == COLL_ALL || (held == block && nblocks == 1);
}

static int operand_ok(const coll_layout *l, const coll_step *s, int buffer) {
    if (s->kind == COLL_RECV_REDUCE && buffer == COLL_RECEIVED)
        return 1;
    return within(l, buffer, s->kind == COLL_COPY ? s->src_block : s->block, s->nblocks);
}

static int step_ok(const coll_layout *l, const coll_step *s, int last_round) {
    int message = s->kind <= COLL_RECV_REDUCE;
    if (s->kind < COLL_SEND || s->kind > COLL_COPY || s->round < 0 || s->round < last_round ||
        s->round > last_round + 1)
        return 0;
    if (!range_ok(s->block, s->nblocks, l->nblocks) || (message && (s->peer < 0 || s->peer >= l->size)))
        return 0;
    if (s->kind != COLL_SEND && (s->dst == COLL_INPUT || !within(l, s->dst, s->block, s->nblocks)))
        return 0;
    if (s->kind != COLL_RECV && !operand_ok(l, s, s->left))
        return 0;
    if (s->kind == COLL_REDUCE || s->kind == COLL_RECV_REDUCE) {
        if (!operand_ok(l, s, s->right))
            return 0;
        if (s->kind == COLL_RECV_REDUCE && (s->left == COLL_RECEIVED) == (s->right == COLL_RECEIVED))
            return 0;
    }
    return 1;
}

typedef struct {
    int buffer, block, nblocks;
} range;

static int overlap(range a, range b, int in_place) {
    if (a.buffer < 0 || b.buffer < 0)
        return 0;
    if (in_place && a.buffer == COLL_INPUT)
        a.buffer = COLL_VECTOR;
    if (in_place && b.buffer == COLL_INPUT)
        b.buffer = COLL_VECTOR;
    return a.buffer == b.buffer && a.block < b.block + b.nblocks && b.block < a.block + a.nblocks;
}

static range written(const coll_action *a) {
    return (range){a->kind == COLL_SEND ? COLL_NONE : a->dst, a->block, a->nblocks};
}

static range read_by(const coll_action *a, int buffer) {
    return (range){buffer, a->kind == COLL_COPY ? a->src_block : a->block, a->nblocks};
}

/* Whether b, later in the program, must wait for the end of a. A staged receive only meets its own reduction: two
 * slots of one number are a window of rounds apart. */
static int conflict(const coll_action *a, const coll_action *b, int in_place) {
    range wa = written(a), wb = written(b);
    if (a->kind == COLL_RECV && a->slot >= 0 && b->slot == a->slot && b->kind == COLL_REDUCE && b->round == a->round)
        return 1;
    return overlap(wa, wb, in_place) || overlap(wa, read_by(b, b->left), in_place) ||
           overlap(wa, read_by(b, b->right), in_place) || overlap(wb, read_by(a, a->left), in_place) ||
           overlap(wb, read_by(a, a->right), in_place);
}

static int is_message(const coll_action *a) {
    return a->kind == COLL_SEND || a->kind == COLL_RECV;
}

/* Messages of one direction to one peer are posted in the order of the program, since MPI matches them so. */
static int same_channel(const coll_action *a, const coll_action *b) {
    return is_message(a) && a->kind == b->kind && a->peer == b->peer;
}

static void lower(coll_program *p, const coll_step *steps, int nsteps) {
    coll_action *a = p->actions;
    for (int round = 0, i = 0; i < nsteps; round = steps[i - 1].round + 1) {
        int begin = i, slot = 0;
        p->round_first[round] = (int32_t)(a - p->actions);
        for (; i < nsteps && steps[i].round == round; i++) {
            const coll_step *s = &steps[i];
            int staged = s->kind == COLL_RECV_REDUCE;
            if (s->kind <= COLL_RECV_REDUCE) {
                *a++ = (coll_action){.kind = s->kind == COLL_SEND ? COLL_SEND : COLL_RECV,
                                     .round = round,
                                     .peer = s->peer,
                                     .block = s->block,
                                     .nblocks = s->nblocks,
                                     .dst = staged ? COLL_RECEIVED : s->dst,
                                     .left = staged ? COLL_NONE : s->left,
                                     .right = COLL_NONE,
                                     .slot = staged ? slot++ * COLL_WINDOW + round % COLL_WINDOW : -1};
                if (staged && s->nblocks > p->slot_blocks)
                    p->slot_blocks = s->nblocks;
            }
        }
        slot = 0;
        for (int j = begin; j < i; j++) {
            const coll_step *s = &steps[j];
            int staged = s->kind == COLL_RECV_REDUCE;
            if (s->kind >= COLL_RECV_REDUCE)
                *a++ = (coll_action){.kind = s->kind == COLL_COPY ? COLL_COPY : COLL_REDUCE,
                                     .round = round,
                                     .peer = -1,
                                     .block = s->block,
                                     .nblocks = s->nblocks,
                                     .dst = s->dst,
                                     .left = s->left,
                                     .right = s->kind == COLL_COPY ? COLL_NONE : s->right,
                                     .src_block = s->src_block,
                                     .slot = staged ? slot++ * COLL_WINDOW + round % COLL_WINDOW : -1};
        }
        if (slot * COLL_WINDOW > p->nslots)
            p->nslots = slot * COLL_WINDOW;
    }
    p->nactions = (int)(a - p->actions);
    p->round_first[p->nrounds] = p->nactions;
}

/* Counts the edges (edges == NULL) or writes them; returns their number, or more than MOST_EDGES. */
static int link_actions(coll_program *p, int32_t *edges) {
    int n = 0, in_place = p->layout.in_place;
    for (int i = 0; i < p->nactions && n <= MOST_EDGES; i++) {
        coll_action *a = &p->actions[i];
        int horizon = a->round + COLL_WINDOW < p->nrounds ? p->round_first[a->round + COLL_WINDOW] : p->nactions;
        a->on_start = n;
        for (int j = i + 1; j < p->nactions && is_message(a); j++)
            if (same_channel(a, &p->actions[j])) {
                if (edges) {
                    edges[n] = j;
                    p->actions[j].waits++;
                }
                n++;
                break;
            }
        a->on_done = n;
        for (int j = i + 1; j < horizon; j++)
            if (conflict(a, &p->actions[j], in_place)) {
                if (edges) {
                    edges[n] = j;
                    p->actions[j].waits++;
                }
                n++;
            }
    }
    p->actions[p->nactions].on_start = p->actions[p->nactions].on_done = n;
    return n;
}

/* A round waits for the window to open, besides. */
static void finish_actions(coll_program *p) {
    p->single = 1;
    for (int i = 0; i < p->nactions; i++) {
        p->actions[i].waits += p->actions[i].round >= COLL_WINDOW;
        p->single &= p->actions[i].nblocks == 1;
    }
}

coll_program *coll_program_new(const coll_step *steps, int nsteps, const coll_layout *layout, int *error,
                               int *bad_step) {
    coll_program *p = calloc(1, sizeof *p);
    *error = COLL_ERR_MEMORY;
    *bad_step = -1;
    if (!p)
        return NULL;
    p->layout = *layout;
    if (!layout_ok(layout) || nsteps < 0 || nsteps > MOST_STEPS) {
        *error = COLL_ERR_SCHEDULE;
        goto fail;
    }
    for (int i = 0, last = -1; i < nsteps; last = steps[i++].round)
        if (!step_ok(layout, &steps[i], last)) {
            *error = COLL_ERR_SCHEDULE;
            *bad_step = i;
            goto fail;
        }
    p->nrounds = nsteps ? steps[nsteps - 1].round + 1 : 0;
    p->actions = calloc(2 * (size_t)nsteps + 1, sizeof *p->actions);
    p->round_first = calloc((size_t)p->nrounds + 1, sizeof *p->round_first);
    if (!p->actions || !p->round_first)
        goto fail;
    lower(p, steps, nsteps);
    int edges = link_actions(p, NULL);
    p->edges = edges <= MOST_EDGES ? calloc((size_t)edges + 1, sizeof *p->edges) : NULL;
    if (!p->edges)
        goto fail;
    link_actions(p, p->edges);
    finish_actions(p);
    *error = COLL_OK;
    return p;
fail:
    coll_program_free(p);
    return NULL;
}

void coll_program_free(coll_program *p) {
    if (!p)
        return;
    free(p->actions);
    free(p->edges);
    free(p->round_first);
    free(p);
}
