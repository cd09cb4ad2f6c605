/* The engine's own code under a scheduler that switches ranks at random at every access to shared memory.
 * Compiled with -DCOLL_MODEL.   node_model RANKS CALLS SEED LONGEST KINDS [QUITTERS | -1]
 * -1: a rank dies at a random moment; where the others come to a stop, one of them is known to wait for it. */
#include "node_calls.h"

#include <ucontext.h>

enum { STACK = 256 << 10, MOST = 64, LATEST_DEATH = 200, STOPPED = 2000 }; /* the latter in turns */

static player players[MOST];
static ucontext_t fibers[MOST], scheduler;
static int current, alive, patience;
static long calls;
static int dead = -1; /* the rank that does not run any more */
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

/* Let a rank that lives run for a while. */
static void turn(int ranks) {
    do
        current = (int)(next(&chance) % (unsigned)ranks);
    while (current == dead);
    unsigned kind = next(&chance) % 8;
    patience = (int)(next(&chance) % (kind == 0 ? 2000u : kind < 4 ? 40u : 4u));
    swapcontext(&scheduler, &fibers[current]);
}

static void live(void) {
    player *p = &players[current];
    while (p->call < calls && !p->gone)
        play(p);
    alive--;
    for (;;)
        give_way();
}

/* Whether a call that some rank is in is known to wait for the dead one. */
static int is_missed(int ranks) {
    patience = INT_MAX;
    for (int i = 0; i < ranks; i++) {
        int behind[MOST], n = i != dead && players[i].current ? coll_node_waiting(players[i].current, behind, MOST) : 0;
        for (int k = 0; k < n; k++)
            if (behind[k] == dead)
                return 1;
    }
    return 0;
}

/* Calls that all living ranks have ended together; -1: all of them. */
static long ended(int ranks) {
    long sum = 0, left = 0;
    for (int i = 0; i < ranks; i++) {
        sum += i == dead ? 0 : players[i].call;
        left += i != dead && players[i].call < calls;
    }
    return left ? sum : -1;
}

/* Let the others run until they have ended all calls, or none for long. */
static void run_without(int victim, int ranks) {
    long before = 0, now;
    dead = victim;
    for (int still = 0; (now = ended(ranks)) >= 0 && still < STOPPED * ranks; still = now == before ? still + 1 : 0) {
        before = now;
        turn(ranks);
    }
    if (now >= 0 && !is_missed(ranks))
        fail(&players[victim], "died, and nobody is known to wait for it");
}

int main(int argc, char **argv) {
    static char *bases[MOST];
    static size_t limits[MOST];
    static uint64_t areas[MOST];
    int ranks = argc < 6 ? 0 : atoi(argv[1]);
    if (ranks < 1 || ranks > MOST)
        return 2;
    int quitters = argc > 6 ? atoi(argv[6]) : 0;
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
        plan_to_quit(&players[i], quitters);
        getcontext(&fibers[i]);
        fibers[i].uc_stack.ss_sp = malloc(STACK);
        fibers[i].uc_stack.ss_size = STACK;
        makecontext(&fibers[i], live, 0);
    }
    long turns = 0, death = quitters < 0 ? next(&chance) % LATEST_DEATH : -1;
    for (alive = ranks; alive > 0; turns++) {
        if (turns == death) {
            run_without((int)(next(&chance) % (unsigned)ranks), ranks);
            printf("a rank died in turn %ld: it is missed\n", death);
            return 0;
        }
        turn(ranks);
        if (turns > calls * ranks * 2000000L)
            fail(&players[current], "no end");
    }
    for (int i = 0; i < ranks; i++)
        check_used_again(&players[i]);
    printf("%ld calls on %d ranks in %ld turns: every result right\n", calls, ranks, turns);
    return 0;
}
