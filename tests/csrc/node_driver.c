/* Threads drive the node-local engine through random calls.   node_driver RANKS CALLS SEED LONGEST KINDS [QUITTERS] */
#include "node_calls.h"

#include <pthread.h>
#include <sched.h>

static int ranks, kinds, quitters;
static long calls;
static unsigned seed;
static size_t longest;
static pthread_barrier_t barrier;
static char *bases[256];
static size_t limits[256];
static uint64_t areas[256];

static void give_way(void) {
    static _Thread_local unsigned polls;
    polls++;
    if (polls % 256 == 0 || ranks > 2)
        sched_yield();
    else
        coll_pause();
}

static void *run(void *argument) {
    player p;
    int rank = (int)(intptr_t)argument;
    areas[rank] = prepare(&p, ranks, rank, kinds, seed, longest, give_way);
    bases[rank] = coll_heap_base(p.heap);
    limits[rank] = coll_heap_size(p.heap);
    pthread_barrier_wait(&barrier);
    join(&p, bases, limits, areas);
    pthread_barrier_wait(&barrier);
    plan_to_quit(&p, quitters);
    while (p.call < calls && !p.gone)
        play(&p);
    pthread_barrier_wait(&barrier);
    check_used_again(&p);
    leave(&p);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[256];
    if (argc < 6 || (ranks = atoi(argv[1])) < 1 || ranks > 256)
        return 2;
    calls = atol(argv[2]);
    seed = (unsigned)atoi(argv[3]);
    longest = (size_t)atol(argv[4]);
    kinds = atoi(argv[5]);
    quitters = argc > 6 ? atoi(argv[6]) : 0;
    pthread_barrier_init(&barrier, NULL, (unsigned)ranks);
    for (int i = 0; i < ranks; i++)
        pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i);
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
    printf("%ld calls on %d ranks: every result right\n", calls, ranks);
    return 0;
}
