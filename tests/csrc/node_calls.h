/* Random collective calls whose results are checked, for the drivers of the node-local engine. */
#ifndef NODE_CALLS_H
#define NODE_CALLS_H

#include "base/error.h"
#include "node/internal.h"
#include "base/partition.h"
#include "base/ticks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KINDS = COLL_NODE_EXSCAN + 1, MOST_RANKS = 256, UINT32 = 7, SUM = 0, LONGEST_ITEM = 4096, USED_AGAIN = 0x5A };

typedef struct {
    int ranks, rank, kinds; /* kinds: how many of the collectives are called */
    size_t longest;         /* elements of uint32 */
    uint64_t common;        /* random numbers that all ranks draw alike, */
    uint64_t own;           /* and those of this rank */
    long call;
    coll_heap *heap;
    coll_node *node;
    char *arrays[4];    /* input on the heap, private input, output on the heap, private output */
    size_t array_bytes; /* of each */
    char *spare;        /* of the user's op */
    void (*wait)(void); /* between polls */
    long quits;         /* call that this rank gives up, after some polls; -1: none */
    unsigned polls;
    int quitters;                  /* how many ranks have such a call */
    int gone;                      /* it has given up */
    const coll_node_call *current; /* the call that it is in */
} player;

/* What all ranks know of a call; blocks is a table of the blocks' lengths: from rank q (row) to rank d. */
typedef struct {
    coll_node_kind kind;
    int root, uneven;
    size_t count, item; /* elements, and bytes of one: 4 with a kernel, others with an op of the user's */
    size_t cuts[MOST_RANKS + 1], input_cuts[MOST_RANKS + 1];
    int placed; /* blocks lie in the reverse order: */
    size_t starts[MOST_RANKS], input_starts[MOST_RANKS];
} plan;

static unsigned next(uint64_t *x) {
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*x >> 33);
}

static size_t draw_count(player *p) {
    static const unsigned most[] = {15, 300, 20000, UINT32_MAX};
    unsigned kind = next(&p->common) % 8;
    return kind > 4 ? 1 : next(&p->common) % most[kind % 4] % (p->longest + 1);
}

/* Sizes around what lines, parts, slices and segments are made of, and any; of parts a ring must have room for two. */
static size_t draw_item(player *p, int parts) {
    static const unsigned sizes[] = {1, 2, 3, 24, 63, 65, 120, 127, 129, 131, 280, 1000, 3000, LONGEST_ITEM};
    unsigned kind = next(&p->common) % 8, x = next(&p->common);
    size_t item = kind < 7 ? sizes[x % (sizeof sizes / sizeof *sizes)] : 1 + x % LONGEST_ITEM;
    size_t most = parts ? STAGING / 2 / (size_t)p->ranks / LINE * LINE : LONGEST_ITEM;
    return kind < 5 ? 4 : item < most ? item : most;
}

/* Unit i of what a rank contributes: units are elements with a kernel, bytes with an op of the user's. */
static uint32_t value(long call, int rank, size_t i) {
    return (uint32_t)((unsigned long)call * 2654435761u + i * 40503u + (i >> 8) * 97u + (unsigned)rank * 97u);
}

static size_t units(const plan *s) {
    return s->item == 4 ? 1 : s->item;
}

static int add_bytes(void *context, void *dst, const void *left, const void *right, void *spare, size_t n) {
    size_t bytes = n * *(const size_t *)context;
    (void)spare;
    coll_model_point();
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)dst)[i] =
            (unsigned char)(((const unsigned char *)left)[i] + ((const unsigned char *)right)[i]);
    coll_model_point();
    return COLL_OK;
}

static void fail(const player *p, const char *what) {
    fprintf(stderr, "rank %d, call %ld: %s\n", p->rank, p->call, what);
    fflush(stderr);
    _exit(1);
}

/* Elements that rank q sends to rank d in an uneven all-to-all: anything that both can compute. */
static size_t sent(const plan *s, int q, int d, int ranks) {
    size_t each = s->count / (size_t)ranks;
    return s->uneven ? (each * (size_t)((q * 3 + d * 5) % 4) + (size_t)(q + d) % 3) / 4 : each;
}

static void cut(player *p, plan *s) {
    int n = p->ranks;
    for (int i = 0; i < n; i++) {
        size_t in = sent(s, i, p->rank, n), out = sent(s, p->rank, i, n);
        if (s->kind != COLL_NODE_ALLTOALL)
            in = out = sent(s, i, 0, n);
        int foreign = s->uneven && p->rank != s->root && i != p->rank; /* only the root knows the others' lengths */
        if (foreign && (s->kind == COLL_NODE_GATHER || s->kind == COLL_NODE_SCATTER))
            in = out = 0;
        s->cuts[i + 1] = s->cuts[i] + in;
        s->input_cuts[i + 1] = s->input_cuts[i] + out;
    }
    s->placed = s->uneven && s->kind == COLL_NODE_ALLTOALL && next(&p->common) % 2;
    for (int i = 0; i < n; i++) {
        s->starts[i] = s->cuts[n] - s->cuts[i + 1];
        s->input_starts[i] = s->input_cuts[n] - s->input_cuts[i + 1];
    }
}

static int has_blocks(coll_node_kind k) {
    return k != COLL_NODE_ALLREDUCE && k != COLL_NODE_REDUCE && k != COLL_NODE_BCAST && k != COLL_NODE_SCAN &&
           k != COLL_NODE_EXSCAN;
}

static int moves(coll_node_kind k) {
    return k == COLL_NODE_BCAST || (has_blocks(k) && k != COLL_NODE_REDUCE_SCATTER);
}

static plan draw(player *p) {
    plan s = {.kind = (coll_node_kind)(next(&p->common) % (unsigned)p->kinds)};
    s.root = (int)(next(&p->common) % (unsigned)p->ranks);
    s.uneven = next(&p->common) % 2 && has_blocks(s.kind);
    s.item = draw_item(p, has_blocks(s.kind));
    s.count = draw_count(p);
    if (s.item > 4)
        s.count = s.count * 4 / s.item + s.count % 2;
    if (has_blocks(s.kind)) {
        s.count -= s.count % (size_t)p->ranks;
        cut(p, &s);
    }
    return s;
}

static uint32_t folded(const player *p, size_t i, int operands) {
    uint32_t sum = 0;
    for (int q = 0; q < operands; q++)
        sum += value(p->call, q, i);
    return sum;
}

/* Where rank q's block begins in what is numbered through all blocks. */
static size_t first_of(const player *p, const plan *s, int q) {
    size_t first = 0;
    for (int i = 0; i < q; i++)
        first += sent(s, i, 0, p->ranks);
    return first;
}

/* Elements of the result from `at` on: what rank q contributes from its element `first` on, or, for q < 0, the sum of
 * what the first -q ranks do. */
static void expect(const player *p, const plan *s, const char *output, size_t at, size_t count, int q, size_t first) {
    size_t each = units(s), n = count * each;
    for (size_t i = 0, from = first * each; i < n; i++) {
        uint32_t right = q < 0 ? folded(p, from + i, -q) : value(p->call, q, from + i), found;
        if (s->item == 4)
            memcpy(&found, output + (at + i) * 4, 4);
        else
            found = (unsigned char)output[at * each + i], right = (unsigned char)right;
        if (found != right)
            fail(p, "wrong result");
    }
}

static void check(const player *p, const plan *s, const char *output) {
    int root = p->rank == s->root, n = p->ranks, kind = (int)s->kind;
    size_t own = first_of(p, s, p->rank), length = sent(s, p->rank, 0, n);
    switch (s->kind) {
    case COLL_NODE_ALLREDUCE:
    case COLL_NODE_REDUCE:
        if (root || kind == COLL_NODE_ALLREDUCE)
            expect(p, s, output, 0, s->count, -n, 0);
        break;
    case COLL_NODE_SCAN:
    case COLL_NODE_EXSCAN:
        if (p->rank || kind == COLL_NODE_SCAN)
            expect(p, s, output, 0, s->count, -(p->rank + (kind == COLL_NODE_SCAN)), 0);
        break;
    case COLL_NODE_BCAST:
        expect(p, s, output, 0, s->count, s->root, 0);
        break;
    case COLL_NODE_REDUCE_SCATTER:
        expect(p, s, output, 0, length, -n, own);
        break;
    case COLL_NODE_SCATTER:
        expect(p, s, output, 0, length, s->root, own);
        break;
    default: /* blocks side by side */
        for (int q = 0; q < n && (root || kind != COLL_NODE_GATHER); q++) {
            size_t shift = 0;
            for (int d = 0; kind == COLL_NODE_ALLTOALL && d < n; d++)
                shift += (s->placed ? d > p->rank : d < p->rank) ? sent(s, q, d, n) : 0;
            expect(p, s, output, s->placed ? s->starts[q] : s->cuts[q], s->cuts[q + 1] - s->cuts[q], q, shift);
        }
    }
}

/* Elements of this rank's input. */
static size_t input_length(const player *p, const plan *s) {
    if (s->kind == COLL_NODE_ALLGATHER || s->kind == COLL_NODE_GATHER)
        return sent(s, p->rank, 0, p->ranks);
    if (s->kind == COLL_NODE_ALLTOALL)
        return s->input_cuts[p->ranks];
    return has_blocks(s->kind) ? s->cuts[p->ranks] : s->count;
}

static void fill(const player *p, const plan *s, char *input) {
    size_t n = input_length(p, s) * units(s);
    for (size_t i = 0; i < n; i++) {
        uint32_t x = value(p->call, p->rank, i);
        s->item == 4 ? (void)memcpy(input + 4 * i, &x, 4) : (void)(input[i] = (char)x);
    }
}

static int may_be_in_place(const plan *s) {
    return !has_blocks(s->kind);
}

/* The arrays are in use again: none of their bytes changes any more. */
static void give_up(player *p) {
    int writer;
    coll_node_give_up(p->node);
    while (coll_node_writers(p->node, &writer, 1) > 0)
        p->wait();
    for (int i = 0; i < 4; i++)
        memset(p->arrays[i], USED_AGAIN, p->array_bytes);
    p->gone = 1;
}

/* When all ranks are through. */
static void check_used_again(player *p) {
    for (size_t i = 0; p->gone && i < 4 * p->array_bytes; i++)
        if (p->arrays[i % 4][i / 4] != USED_AGAIN)
            fail(p, "an array changed after its call was given up");
}

/* Wait for a call, or give it up; ranks look at others that give up now and then. */
static int follow(player *p, coll_node_call *c) {
    int status;
    for (unsigned polls = 0; (status = coll_node_progress(c)) == COLL_PENDING; polls++) {
        if (p->quits >= 0 && p->call >= p->quits && polls == p->polls)
            return COLL_ERR_GIVEN_UP;
        if (polls % 8 == 7 && (status = coll_node_look(c)) != COLL_PENDING)
            return status;
        p->wait();
    }
    return status;
}

/* One call: what it is, is drawn alike by all; where the arrays lie and delays, by each rank. */
static void play(player *p) {
    plan s = draw(p);
    int all_shared = next(&p->common) % 4 == 0, delay = next(&p->own) % 16 == 0;
    char *input = p->arrays[all_shared ? 0 : next(&p->own) % 2];
    char *output = p->arrays[2 + (all_shared ? 0 : next(&p->own) % 2)];
    size_t shift = next(&p->own) % 4 ? 0 : next(&p->own) % 16; /* arrays lie at any address */
    if (may_be_in_place(&s) && (s.kind == COLL_NODE_BCAST || next(&p->own) % 3 == 0))
        output = input;
    input += shift;
    output += shift;
    if (s.kind == COLL_NODE_REDUCE_SCATTER && (p->call + p->rank) % 3 == 0)
        output = input + first_of(p, &s, p->rank) * s.item; /* in place: the rank's own block */
    int has_input = (s.kind != COLL_NODE_BCAST && s.kind != COLL_NODE_SCATTER) || p->rank == s.root;
    if (has_input)
        fill(p, &s, input);
    for (unsigned n = delay ? next(&p->own) % 50 : 0; n > 0; n--)
        p->wait();
    coll_node_call c;
    coll_node_message m = {.kind = s.kind, .root = s.root, .input = input, .output = output, .itemsize = s.item};
    m.dtype = s.item == 4 ? UINT32 : -1;
    m.op = s.item == 4 ? SUM : -1;
    m.user_op = s.item == 4 ? NULL : add_bytes;
    m.user_context = &s.item;
    m.user_spare = p->spare;
    m.count = s.uneven ? s.cuts[p->ranks] : s.count;
    m.cuts = s.uneven ? s.cuts : NULL;
    m.input_cuts = s.uneven && s.kind == COLL_NODE_ALLTOALL ? s.input_cuts : NULL;
    m.variant = s.placed;
    m.starts = s.placed ? s.starts : NULL;
    m.input_starts = s.placed ? s.input_starts : NULL;
    int type = moves(s.kind) ? 1 + (int)(next(&p->common) % COLL_NODE_TYPES) : 0;
    m.type = next(&p->own) % 4 ? type : 0; /* bytes match any */
    coll_node_begin(&c, p->node, &m);
    p->current = &c;
    int status = follow(p, &c);
    p->current = NULL;
    if (status == COLL_ERR_GIVEN_UP && p->quitters) {
        give_up(p);
        return;
    }
    if (status != COLL_OK)
        fail(p, "error");
    check(p, &s, output);
    if (has_input)
        memset(input, 0xEE, input_length(p, &s) * s.item); /* whoever reads it after the call reads this */
    p->call++;
}

/* Everything a player has of its own; the areas of all must be there before join. */
static uint64_t prepare(player *p, int ranks, int rank, int kinds, unsigned seed, size_t longest, void (*wait)(void)) {
    *p = (player){.ranks = ranks, .rank = rank, .kinds = kinds, .longest = longest, .common = seed, .wait = wait};
    p->own = seed * 31u + (unsigned)rank;
    p->quits = -1;
    p->heap = coll_heap_new((size_t)1 << 30);
    char *area = p->heap ? coll_heap_alloc(p->heap, coll_node_area_bytes()) : NULL;
    if (!area)
        fail(p, "no heap");
    memset(area, 0, coll_node_area_bytes());
    p->array_bytes = longest * 8 + 4 * ((size_t)ranks + 2) * LONGEST_ITEM;
    for (int i = 0; i < 4; i++)
        p->arrays[i] = i % 2 ? malloc(p->array_bytes) : coll_heap_alloc(p->heap, p->array_bytes);
    p->spare = malloc(2 * COLL_NODE_PIECE);
    return (uint64_t)(area - coll_heap_base(p->heap));
}

/* Have some ranks, at random, give up one of the first calls. */
static void plan_to_quit(player *p, int quitters) {
    p->quitters = quitters;
    for (int i = 0; i < quitters; i++) {
        int rank = (int)(next(&p->common) % (unsigned)p->ranks);
        long call = next(&p->common) % 6;
        unsigned polls = next(&p->common) % (next(&p->common) % 2 ? 8u : 200u);
        if (rank == p->rank)
            p->quits = call, p->polls = polls;
    }
}

/* As if the group had made so many calls; its counters and lines were last written as long ago as may be. */
static void go_on_from(coll_node *n, uint64_t calls) {
    area *a = own_area(n);
    uint64_t then = calls - RENEWED, before = then & (((uint64_t)1 << WORD_BITS) - 1);
    n->issued = n->finished = n->all_done = calls;
    for (int i = 0; i < LINES; i++)
        a->lines[i].word = a->results[i].word = a->bundles[i].word = before;
    a->staged.value = a->reduced.value = a->copied.value = then << SEGMENT_BITS;
    a->done.value = calls;
}

static void join(player *p, char **bases, size_t *limits, uint64_t *areas) {
    p->node = coll_node_new(p->heap, p->ranks, p->rank, bases, limits, areas);
    coll_node_limits l = {.copy = 100, .read = 2 << 10, .shortest = 4 << 10, .segment = 4 << 10, .stream = 64 << 10};
    l.private = 2 << 10;
    coll_node_set_limits(p->node, &l);
    int64_t pids[MOST_RANKS];
    for (int i = 0; i < p->ranks; i++)
        pids[i] = getpid();
    if (p->common % 2) /* with some seeds: private memory is read where it lies */
        coll_node_set_processes(p->node, pids);
    if (p->common / 2 % 2) /* and numbers wrap in words, in counters, or are written anew */
        go_on_from(p->node, ((uint64_t)4 << (p->common % 3 ? 64 - SEGMENT_BITS : WORD_BITS)) - 100);
}

static void leave(player *p) {
    coll_node_free(p->node);
    for (int i = 0; i < 4; i++)
        i % 2 ? free(p->arrays[i]) : coll_heap_release(p->heap, p->arrays[i]);
    free(p->spare);
    coll_heap_free(p->heap);
}

#endif
