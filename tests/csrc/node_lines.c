/* Counts what the engine's own code loads and stores in one call, for the formulas of
 * collectives/analysis/node_cost.py. Compiled with -DCOLL_MODEL.   node_lines RANKS KIND BYTES HEAP COPY READ SEGMENT
 *
 * Caches are without limit: a load fetches a line unless the rank has kept it since it was last written, and a store
 * takes it away from all others. Ranks are fibers that run until they must wait. Prints a row for each rank: lines of
 * flags and inline data fetched; bytes loaded from own arrays, stored to own arrays, stored to and loaded from its own
 * staging, taken from other ranks' memory, stored to it. */
#include "node_calls.h"

#include <ucontext.h>

enum { STACK = 256 << 10, MOST = 64, CACHE_LINE = 64, FOLLOWED = 1 << 18, WARM = 24 };
enum { LINES_FETCHED, LOADED, STORED, STAGED, READ_BACK, TAKEN, GIVEN, COUNTERS };

static player players[MOST];
static ucontext_t fibers[MOST], scheduler;
static char *bases[MOST];
static size_t limits[MOST];
static uint64_t areas[MOST], *holders[MOST]; /* for each line of a heap, the ranks that have it */
static long counted[MOST][COUNTERS];
static int ranks, current, alive, heap, counting;
static size_t nbytes;
static coll_node_kind kind;

void coll_model_point(void);
void coll_model_load(const volatile void *from, size_t bytes);
void coll_model_store(const volatile void *to, size_t bytes);

void coll_model_point(void) {}

static void give_way(void) {
    swapcontext(&fibers[current], &scheduler);
}

/* The rank in whose heap an address is, or -1. */
static int home_of(const volatile void *p) {
    for (int q = 0; q < ranks; q++)
        if (coll_heap_has(bases[q], limits[q], (const void *)p))
            return q;
    return -1;
}

static int is_array(int home, const volatile void *p) {
    for (int i = 0; i < 4; i++) {
        const char *begin = (const char *)players[home].arrays[i];
        if ((const char *)p >= begin && (const char *)p < begin + 2 * nbytes)
            return 1;
    }
    return 0;
}

static int is_flag(int home, const volatile void *p) {
    return (size_t)((const char *)p - bases[home] - areas[home]) < coll_node_area_bytes();
}

/* Brings the lines to this rank, and away from the others if it stores; returns how many it did not have. */
static long touch(int home, const volatile void *p, size_t bytes, int store) {
    size_t at = (size_t)((const char *)p - bases[home]);
    uint64_t self = (uint64_t)1 << current;
    long fetched = 0;
    for (size_t i = at / CACHE_LINE; bytes && i <= (at + bytes - 1) / CACHE_LINE; i++) {
        if (i >= FOLLOWED)
            fail(&players[current], "beyond the lines that are followed");
        fetched += !(holders[home][i] & self);
        holders[home][i] = store ? self : holders[home][i] | self;
    }
    return fetched;
}

static void count(const volatile void *p, size_t bytes, int store) {
    int home = home_of(p);
    long fetched = home < 0 ? 0 : touch(home, p, bytes, store), *own = counted[current];
    if (!counting)
        return;
    if (home >= 0 && is_flag(home, p)) {
        own[LINES_FETCHED] += store ? 0 : fetched;
        return;
    }
    int mine = home < 0 || home == current, array = home < 0 || is_array(home, p);
    int which = !mine ? (store ? GIVEN : TAKEN) : array ? (store ? STORED : LOADED) : store ? STAGED : READ_BACK;
    own[which] += (long)bytes;
}

void coll_model_load(const volatile void *from, size_t bytes) {
    count(from, bytes, 0);
}

void coll_model_store(const volatile void *to, size_t bytes) {
    count(to, bytes, 1);
}

static void call(player *p) {
    coll_node_call c;
    coll_node_message m = {.kind = kind, .itemsize = 4, .dtype = UINT32, .op = SUM, .count = nbytes / 4};
    m.input = p->arrays[heap ? 0 : 1];
    m.output = kind == COLL_NODE_BCAST ? p->arrays[heap ? 0 : 1] : p->arrays[heap ? 2 : 3];
    coll_node_begin(&c, p->node, &m);
    int status;
    while ((status = coll_node_progress(&c)) == COLL_PENDING)
        give_way();
    if (status != COLL_OK)
        fail(p, "error");
    p->call++;
}

static void live(void) {
    player *p = &players[current];
    while (p->call < WARM)
        call(p);
    alive--;
    while (!counting) /* until all have come so far: what is counted is one call of all ranks */
        give_way();
    call(p);
    alive--;
    for (;;)
        give_way();
}

static void run_all(void) {
    for (alive = ranks; alive > 0;)
        for (current = 0; current < ranks; current++)
            swapcontext(&scheduler, &fibers[current]);
}

int main(int argc, char **argv) {
    ranks = argc < 8 ? 0 : atoi(argv[1]);
    if (ranks < 1 || ranks > MOST)
        return 2;
    kind = (coll_node_kind)atoi(argv[2]);
    nbytes = (size_t)atol(argv[3]);
    heap = atoi(argv[4]);
    coll_node_limits l = {
        .copy = (size_t)atol(argv[5]), .read = (size_t)atol(argv[6]), .stream = SIZE_MAX, .private = SIZE_MAX};
    l.shortest = l.segment = (size_t)atol(argv[7]);
    for (int i = 0; i < ranks; i++) {
        areas[i] = prepare(&players[i], ranks, i, 1, 1, nbytes / 4, give_way);
        bases[i] = coll_heap_base(players[i].heap);
        limits[i] = coll_heap_size(players[i].heap);
        holders[i] = calloc(FOLLOWED, sizeof *holders[i]);
    }
    for (int i = 0; i < ranks; i++) {
        join(&players[i], bases, limits, areas);
        coll_node_set_limits(players[i].node, &l);
        getcontext(&fibers[i]);
        fibers[i].uc_stack.ss_sp = malloc(STACK);
        fibers[i].uc_stack.ss_size = STACK;
        makecontext(&fibers[i], live, 0);
    }
    run_all();
    counting = 1;
    run_all();
    for (int i = 0; i < ranks; i++)
        for (int k = 0; k < COUNTERS; k++)
            printf("%ld%c", counted[i][k], k + 1 < COUNTERS ? ' ' : '\n');
    return 0;
}
