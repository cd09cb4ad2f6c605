/* Derives the dependencies of a schedule from the blocks that each step reads and writes. */
#include "schedule.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* Longer schedules are refused: numbers of actions and edges are ints. */
enum { MOST_STEPS = 1 << 28, MOST_EDGES = 1 << 28 };

static int range_ok(int block, int nblocks, int total) {
    return block >= 0 && nblocks > 0 && nblocks <= total && block <= total - nblocks;
}

/* Whether `block` says correctly what the caller's memory holds: one block, all, or none. */
static int held_ok(const coll_layout *l, int block) {
    return block == COLL_ALL || block == COLL_NONE || range_ok(block, 1, l->nblocks);
}

static int layout_ok(const coll_layout *l) {
    return l->size >= 1 && l->nblocks >= 1 && l->nscratch >= 0 && held_ok(l, l->input_block) &&
           held_ok(l, l->vector_block);
}

/* Whether the blocks lie in `buffer`; a buffer of the caller may hold one block only, or none. */
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

static int is_message(const coll_action *a) {
    return a->kind == COLL_SEND || a->kind == COLL_RECV;
}

static size_t count_actions(const coll_step *steps, int nsteps) {
    size_t n = (size_t)nsteps;
    for (int i = 0; i < nsteps; i++)
        n += steps[i].kind == COLL_RECV_REDUCE;
    return n;
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

/* What is known of earlier actions while the actions are visited in program order. An action waits for the last write
 * of each block that it reads or writes; if it writes, also for the reads since that write. Earlier accesses need no
 * edges, since the actions above have waited for them. So the number of edges is about the number of blocks touched,
 * not of pairs of actions. Entries are numbers of actions or of reads; -1: none. */
typedef struct {
    coll_program *p;
    int32_t *writer;        /* per buffer and block: the action of the last write */
    int32_t *readers;       /* per buffer and block: head of the list of reads since that write */
    int32_t *reader, *next; /* per read: its action; the next read of the list */
    int32_t *channel;       /* per direction and peer: the last message */
    int32_t *arrival;       /* per staging slot: the receive into it */
    int32_t *follower;      /* per action: the last action that was made to wait for its end */
    int nreads;
} trail;

static size_t cells(const coll_layout *l) {
    return ((size_t)COLL_SCRATCH + (size_t)l->nscratch) * (size_t)l->nblocks;
}

static size_t cell(const coll_layout *l, int buffer, int block) {
    if (l->in_place && buffer == COLL_INPUT)
        buffer = COLL_VECTOR;
    return (size_t)buffer * (size_t)l->nblocks + (size_t)block;
}

/* Number of blocks that all actions read; the count stops above MOST_EDGES. */
static size_t count_reads(const coll_program *p) {
    size_t n = 0;
    for (int i = 0; i < p->nactions && n <= MOST_EDGES; i++)
        n += (size_t)p->actions[i].nblocks * (size_t)((p->actions[i].left >= 0) + (p->actions[i].right >= 0));
    return n;
}

/* Allocate all tables at once; returns 0 without memory. */
static int trail_new(trail *t, coll_program *p) {
    size_t reads = count_reads(p), all = cells(&p->layout), peers = (size_t)p->layout.size;
    size_t actions = (size_t)p->nactions, slots = (size_t)p->nslots;
    *t = (trail){.p = p};
    if (reads > MOST_EDGES || all > MOST_EDGES)
        return 0;
    t->writer = malloc((2 * (all + reads + peers) + slots + actions) * sizeof(int32_t));
    t->readers = t->writer + all;
    t->reader = t->readers + all;
    t->next = t->reader + reads;
    t->channel = t->next + reads;
    t->arrival = t->channel + 2 * peers;
    t->follower = t->arrival + slots;
    return t->writer != NULL;
}

/* Reset the tables for a walk from the first action. */
static void trail_begin(trail *t) {
    size_t known = 2 * cells(&t->p->layout), reads = (size_t)(t->next - t->reader);
    size_t others = 2 * (size_t)t->p->layout.size + (size_t)t->p->nslots + (size_t)t->p->nactions;
    memset(t->writer, -1, known * sizeof(int32_t));
    memset(t->writer + known + 2 * reads, -1, others * sizeof(int32_t));
    t->nreads = 0;
}

/* Count an edge in `field` of its first action, or, once p->edges is allocated, write it there. */
static void add_edge(coll_program *p, int32_t *field, int to) {
    if (p->edges) {
        p->edges[*field] = to;
        p->actions[to].waits++;
    }
    ++*field;
}

/* Make action i wait for the end of action `earlier`, unless the window of rounds already ensures this. */
static void follow(trail *t, int earlier, int i) {
    coll_action *actions = t->p->actions;
    if (earlier < 0 || earlier == i || actions[earlier].round + COLL_WINDOW <= actions[i].round ||
        t->follower[earlier] == i)
        return;
    t->follower[earlier] = i;
    add_edge(t->p, &actions[earlier].on_done, i);
}

static void follow_read(trail *t, int i, int buffer) {
    const coll_action *a = &t->p->actions[i];
    int first = a->kind == COLL_COPY ? a->src_block : a->block;
    for (int b = first; buffer >= 0 && b < first + a->nblocks; b++) {
        size_t at = cell(&t->p->layout, buffer, b);
        follow(t, t->writer[at], i);
        t->reader[t->nreads] = i;
        t->next[t->nreads] = t->readers[at];
        t->readers[at] = t->nreads++;
    }
}

static void follow_write(trail *t, int i) {
    const coll_action *a = &t->p->actions[i];
    for (int b = a->block; a->kind != COLL_SEND && a->dst >= 0 && b < a->block + a->nblocks; b++) {
        size_t at = cell(&t->p->layout, a->dst, b);
        follow(t, t->writer[at], i);
        for (int r = t->readers[at]; r >= 0; r = t->next[r])
            follow(t, t->reader[r], i);
        t->readers[at] = -1;
        t->writer[at] = i;
    }
}

/* Messages of one direction to one peer are posted in program order, because MPI matches them in order. */
static void follow_channel(trail *t, int i) {
    const coll_action *a = &t->p->actions[i];
    int32_t *last = &t->channel[2 * a->peer + (a->kind == COLL_SEND)];
    if (*last >= 0)
        add_edge(t->p, &t->p->actions[*last].on_start, i);
    *last = i;
}

/* A staged receive only needs an edge to its own reduction: uses of one slot are a window of rounds apart. */
static void follow_staging(trail *t, int i) {
    const coll_action *a = &t->p->actions[i];
    if (a->kind == COLL_RECV)
        t->arrival[a->slot] = i;
    else
        follow(t, t->arrival[a->slot], i);
}

static void walk(trail *t) {
    trail_begin(t);
    for (int i = 0; i < t->p->nactions; i++) {
        const coll_action *a = &t->p->actions[i];
        if (is_message(a))
            follow_channel(t, i);
        if (a->slot >= 0)
            follow_staging(t, i);
        if (a->kind != COLL_RECV) {
            follow_read(t, i, a->left);
            follow_read(t, i, a->right);
        }
        follow_write(t, i);
    }
}

/* Turn numbers of edges into positions of the lists; returns the number of all edges, or more than MOST_EDGES. */
static size_t place_edges(coll_program *p) {
    size_t n = 0;
    for (int i = 0; i <= p->nactions && n <= MOST_EDGES; i++) {
        coll_action *a = &p->actions[i];
        int32_t starts = a->on_start, ends = a->on_done;
        a->on_start = (int32_t)n;
        a->on_done = (int32_t)n + starts;
        n += (size_t)starts + (size_t)ends;
    }
    return n;
}

/* Writing edges has moved the position of each list to its end, which is where the next list begins: move back. */
static void begin_edges(coll_program *p) {
    for (int i = p->nactions; i-- > 0;) {
        p->actions[i].on_done = p->actions[i].on_start;
        p->actions[i].on_start = i ? p->actions[i - 1].on_done : 0;
    }
}

/* Find the dependencies twice: first to count the edges, then to write them. */
static int link_actions(coll_program *p) {
    trail t;
    int made = trail_new(&t, p);
    if (made) {
        walk(&t);
        size_t edges = place_edges(p);
        p->edges = edges <= MOST_EDGES ? calloc(edges + 1, sizeof *p->edges) : NULL;
        made = p->edges != NULL;
    }
    if (made) {
        walk(&t);
        begin_edges(p);
    }
    free(t.writer);
    return made;
}

/* Add to each action the wait for its round to open. */
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
    p->actions = calloc(count_actions(steps, nsteps) + 1, sizeof *p->actions);
    p->round_first = calloc((size_t)p->nrounds + 1, sizeof *p->round_first);
    if (!p->actions || !p->round_first)
        goto fail;
    lower(p, steps, nsteps);
    if (!link_actions(p))
        goto fail;
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
