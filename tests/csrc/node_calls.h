/* Random all-reduce calls whose results are checked, for the drivers of the node-local engine. */
#ifndef NODE_CALLS_H
#define NODE_CALLS_H

#include "error.h"
#include "node.h"
#include "ticks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int ranks, rank;
    size_t longest;  /* elements of uint32 */
    uint64_t common; /* random numbers that all ranks draw alike, */
    uint64_t own;    /* and those of this rank */
    long call;
    coll_heap *heap;
    coll_node *node;
    uint32_t *arrays[4]; /* input on the heap, private input, output on the heap, private output */
    void (*wait)(void);  /* between polls */
} player;

static unsigned next(uint64_t *x) {
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*x >> 33);
}

static size_t draw_count(player *p) {
    static const unsigned most[] = {15, 300, 20000, UINT32_MAX};
    unsigned kind = next(&p->common) % 8;
    return kind > 4 ? 1 : next(&p->common) % most[kind % 4] % (p->longest + 1);
}

static uint32_t value(long call, int rank, size_t i) {
    return (uint32_t)((unsigned long)call * 2654435761u + i * 40503u + (unsigned)rank * 97u);
}

static void fail(const player *p, const char *what) {
    fprintf(stderr, "rank %d, call %ld: %s\n", p->rank, p->call, what);
    fflush(stderr);
    _exit(1);
}

static void check(const player *p, const uint32_t *output, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t want = 0;
        for (int q = 0; q < p->ranks; q++)
            want += value(p->call, q, i);
        if (output[i] != want)
            fail(p, "wrong sum");
    }
}

/* One call: its length is drawn alike by all; where the arrays lie and delays, by each rank. */
static void play(player *p) {
    size_t count = draw_count(p);
    int all_shared = next(&p->common) % 4 == 0, delay = next(&p->own) % 16 == 0;
    uint32_t *input = p->arrays[all_shared ? 0 : next(&p->own) % 2];
    uint32_t *output = p->arrays[2 + (all_shared ? 0 : next(&p->own) % 2)];
    if (next(&p->own) % 3 == 0)
        output = input;
    for (size_t i = 0; i < count; i++)
        input[i] = value(p->call, p->rank, i);
    for (unsigned n = delay ? next(&p->own) % 50 : 0; n > 0; n--)
        p->wait();
    coll_node_call c;
    coll_node_message m = {.input = input, .output = output, .count = count, .itemsize = 4, .dtype = 7, .op = 0};
    coll_node_begin(&c, p->node, &m);
    int status;
    while ((status = coll_node_progress(&c)) == COLL_PENDING)
        p->wait();
    if (status != COLL_OK)
        fail(p, "error");
    check(p, output, count);
    memset(input, 0xEE, count * 4); /* whoever reads it after the call reads this */
    p->call++;
}

/* Everything a player has of its own; the areas of all must be there before join. */
static uint64_t prepare(player *p, int ranks, int rank, unsigned seed, size_t longest, void (*wait)(void)) {
    *p = (player){.ranks = ranks, .rank = rank, .longest = longest, .common = seed, .wait = wait};
    p->own = seed * 31u + (unsigned)rank;
    p->heap = coll_heap_new((size_t)1 << 30, COLL_HEAP_MEMFD);
    char *area = p->heap ? coll_heap_alloc(p->heap, coll_node_area_bytes()) : NULL;
    if (!area)
        fail(p, "no heap");
    memset(area, 0, coll_node_area_bytes());
    for (int i = 0; i < 4; i++)
        p->arrays[i] = i % 2 ? malloc(longest * 4 + 4) : coll_heap_alloc(p->heap, longest * 4 + 4);
    return (uint64_t)(area - coll_heap_base(p->heap));
}

static void join(player *p, char **bases, size_t *limits, uint64_t *areas) {
    p->node = coll_node_new(p->heap, p->ranks, p->rank, bases, limits, areas);
    coll_node_limits l = {.read = 2 << 10, .segment = 4 << 10, .stream = 64 << 10};
    coll_node_set_limits(p->node, &l);
}

static void leave(player *p) {
    coll_node_free(p->node);
    for (int i = 0; i < 4; i++)
        i % 2 ? free(p->arrays[i]) : coll_heap_release(p->heap, p->arrays[i]);
    coll_heap_free(p->heap);
}

#endif
