/* The engine's own code under a scheduler that switches ranks at random at every access to shared memory.
 * Compiled with -DCOLL_MODEL.   node_model RANKS CALLS SEED LONGEST KINDS [QUITTERS] */
#include "node_calls.h"

#include <ucontext.h>

enum { STACK = 256 << 10, MOST = 64 };

static player players[MOST];
static ucontext_t fibers[MOST], scheduler;
static int current, alive, patience;
static long calls;
static uint64_t chance;

void coll_model_point(void);
void coll_model_load(const volatile void *from, size_t bytes);
void coll_model_store(const volatile void *to, size_t bytes);

void coll_model_load(const volatile void *from, size_t bytes) {
    (void)from, (void)bytes;
}

void coll_model_store(const volatile void *to, size_t bytes) {
    (void)to, (void)bytes;
}

/* Ranks run for turns of random length: long ones let one rank run far ahead of another. */
void coll_model_point(void) {
    if (patience-- > 0)
        return;
    swapcontext(&fibers[current], &scheduler);
}

static void give_way(void) {
    patience = 0;
    coll_model_point();
}

static void live(void) {
    player *p = &players[current];
    while (p->call < calls && !p->gone)
        play(p);
    alive--;
    for (;;)
        give_way();
}

int main(int argc, char **argv) {
    static char *bases[MOST];
    static size_t limits[MOST];
    static uint64_t areas[MOST];
    int ranks = argc < 6 ? 0 : atoi(argv[1]);
    if (ranks < 1 || ranks > MOST)
        return 2;
    calls = atol(argv[2]);
    chance = (uint64_t)atol(argv[3]) + 1;
    for (int i = 0; i < ranks; i++) {
        areas[i] =
            prepare(&players[i], ranks, i, atoi(argv[5]), (unsigned)atoi(argv[3]), (size_t)atol(argv[4]), give_way);
        bases[i] = coll_heap_base(players[i].heap);
        limits[i] = coll_heap_size(players[i].heap);
    }
    for (int i = 0; i < ranks; i++) {
        join(&players[i], bases, limits, areas);
        plan_to_quit(&players[i], argc > 6 ? atoi(argv[6]) : 0);
        getcontext(&fibers[i]);
        fibers[i].uc_stack.ss_sp = malloc(STACK);
        fibers[i].uc_stack.ss_size = STACK;
        makecontext(&fibers[i], live, 0);
    }
    long turns = 0;
    for (alive = ranks; alive > 0; turns++) {
        current = (int)(next(&chance) % (unsigned)ranks);
        unsigned kind = next(&chance) % 8;
        patience = (int)(next(&chance) % (kind == 0 ? 2000u : kind < 4 ? 40u : 4u));
        swapcontext(&scheduler, &fibers[current]);
        if (turns > calls * ranks * 2000000L)
            fail(&players[current], "no end");
    }
    for (int i = 0; i < ranks; i++)
        check_used_again(&players[i]);
    printf("%ld calls on %d ranks in %ld turns: every result right\n", calls, ranks, turns);
    return 0;
}
