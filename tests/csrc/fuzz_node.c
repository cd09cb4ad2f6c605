/* Fuzzes the node-local engine: ranks whose calls differ, and a rank whose part of the shared memory changes under
 * everybody's hands: flags, records of arrival, tables. The others may end with an error, with wrong numbers or not at
 * all; but they read and write nothing outside their buffers and the heaps, which have nothing mapped around them. */
#include "base/error.h"
#include "fuzz.h"
#include "node/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_RANKS = 18, CALLS = 10, KINDS = COLL_NODE_EXSCAN + 1 };
static const size_t HEAP = 8 << 20, ROOM = (size_t)1 << 30;
static const size_t LONGEST = 48 << 10; /* bytes of a vector, but for what is rounded up to elements */
enum { LONGEST_ITEM = 4096 };

static struct {
    coll_heap *heap;
    char *base;      /* of the heap, as the ranks map it */
    char *arrays[2]; /* on the heap: input, output */
} homes[MOST_RANKS];

typedef struct {
    int rank, size, call, failed;
    coll_node *node;
    coll_node_call calls[CALLS];
    size_t *cuts[CALLS];
    char *memory[CALLS][2]; /* private buffers */
} player;

typedef struct {
    coll_node_kind kind;
    int root, uneven;
    size_t count, item; /* elements of each block, or of the vector; of 2 bytes by the kernel, others by a user's op */
    unsigned places;
    int types; /* of what is only moved: 0: each rank has its own; odd: bytes; else that of all ranks */
} plan;

static void check(int condition) {
    if (!condition)
        abort();
}

/* The heap once more, with room around it that nobody may touch. */
static char *map_alone(coll_heap *heap) {
    char *room = mmap(NULL, 2 * ROOM + HEAP, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int flags = MAP_SHARED | MAP_FIXED, file = (int)coll_heap_identify(heap).fd;
    check(room != MAP_FAILED && mmap(room + ROOM, HEAP, PROT_READ | PROT_WRITE, flags, file, 0) != MAP_FAILED);
    return room + ROOM;
}

static void make_homes(int ranks) {
    for (int i = 0; i < ranks && !homes[i].heap; i++) {
        coll_heap *heap = coll_heap_new(HEAP);
        check(heap != NULL);
        homes[i].heap = heap;
        homes[i].base = map_alone(heap);
        for (int k = 0; k < 2; k++) {
            char *array = coll_heap_alloc(heap, LONGEST + MOST_RANKS * LONGEST_ITEM);
            check(array != NULL);
            homes[i].arrays[k] = homes[i].base + (array - coll_heap_base(heap));
        }
    }
}

/* The only kernel: reads all operands and writes all results, where the sanitizer looks. */
static void fold(void *const *dst, int q, const void *const *src, int p, size_t n) {
    static char acc[1 << 16];
    for (int k = 0; k < p; k++)
        memcpy(acc, src[k], n * sizeof(uint16_t));
    for (int k = 0; k < q; k++)
        memcpy(dst[k], acc, n * sizeof(uint16_t));
}

coll_reducep_fn coll_reducep(int dtype, int op) {
    (void)dtype, (void)op;
    return fold;
}

/* The user's op: the same, on elements of any size. */
static int fold_items(void *context, void *dst, const void *left, const void *right, void *spare, size_t n) {
    size_t bytes = n * *(const size_t *)context;
    memcpy(spare, left, bytes);
    memmove(dst, right, bytes);
    return 0;
}

void coll_copy(void *dst, const void *src, size_t nbytes) {
    memcpy(dst, src, nbytes);
}

void coll_copy_stream(void *dst, const void *src, size_t nbytes) {
    memcpy(dst, src, nbytes);
}

coll_reducep_fn coll_reducep_stream(int dtype, int op) {
    return coll_reducep(dtype, op);
}

static int has_blocks(coll_node_kind kind) {
    return kind >= COLL_NODE_ALLGATHER && kind <= COLL_NODE_ALLTOALL;
}

static plan draw_plan(choices *c, int size) {
    plan s = {.kind = (coll_node_kind)below(c, KINDS), .root = (int)below(c, (unsigned)size)};
    static const unsigned most[] = {8, 64, 1000, 24 << 10};
    s.count = draw(c, 2) % most[below(c, 4)];
    s.item = below(c, 4) ? sizeof(uint16_t) : 1 + draw(c, 2) % LONGEST_ITEM;
    s.count = s.item > sizeof(uint16_t) ? (s.count * sizeof(uint16_t) + s.item - 1) / s.item : s.count;
    s.uneven = has_blocks(s.kind) && below(c, 2);
    s.count /= has_blocks(s.kind) ? (size_t)size : 1;
    s.places = (unsigned)draw(c, 1);
    s.types = (int)below(c, 32);
    return s;
}

/* Elements that rank q has for rank d. */
static size_t sent(const plan *s, int q, int d) {
    return s->uneven ? s->count * (size_t)((q * 3 + d * 5) % 4) / 4 : s->count;
}

static size_t *cut(const plan *s, int rank, int size) {
    size_t *cuts = calloc(2 * ((size_t)size + 1), sizeof *cuts), *input = cuts + size + 1;
    for (int i = 0; i < size; i++) {
        int all_to_all = s->kind == COLL_NODE_ALLTOALL;
        cuts[i + 1] = cuts[i] + sent(s, i, all_to_all ? rank : 0);
        input[i + 1] = input[i] + sent(s, all_to_all ? rank : i, all_to_all ? i : 0);
    }
    return cuts;
}

/* The type that a rank says its elements have: the others', bytes, or now and then another one. */
static int type_of(const plan *s, int rank) {
    int moves = s->kind == COLL_NODE_BCAST || (has_blocks(s->kind) && s->kind != COLL_NODE_REDUCE_SCATTER);
    if (!moves || s->types % 2)
        return 0;
    return s->types ? s->types : 1 + rank % COLL_NODE_TYPES;
}

/* A buffer of so many bytes: on the heap or of its exact size. */
static void *place(player *p, int which, size_t bytes, int shared) {
    if (shared)
        return homes[p->rank].arrays[which];
    char *made = malloc(bytes);
    memset(made, p->rank, bytes);
    return p->memory[p->call][which] = made;
}

static void start(player *p, const plan *s) {
    size_t *cuts = p->cuts[p->call] = cut(s, p->rank, p->size);
    size_t all = has_blocks(s->kind) ? cuts[p->size] : s->count, own = cuts[p->rank + 1] - cuts[p->rank];
    size_t in = all, out = all;
    if (s->kind == COLL_NODE_ALLGATHER || s->kind == COLL_NODE_GATHER)
        in = own;
    if (s->kind == COLL_NODE_REDUCE_SCATTER || s->kind == COLL_NODE_SCATTER)
        out = own;
    if (s->kind == COLL_NODE_ALLTOALL)
        in = cuts[2 * p->size + 1];
    coll_node_message m = {.kind = s->kind, .root = s->root, .count = all, .itemsize = s->item};
    m.type = type_of(s, p->rank);
    int shared = s->places >> (p->rank % 4) * 2 & 3;
    m.input = place(p, 0, in * s->item, shared & 1 || s->places == 255);
    m.output = s->kind == COLL_NODE_BCAST ? (void *)(uintptr_t)m.input : place(p, 1, out * s->item, shared & 2);
    m.cuts = s->uneven ? cuts : NULL;
    m.input_cuts = s->uneven && s->kind == COLL_NODE_ALLTOALL ? cuts + p->size + 1 : NULL;
    if (s->item != sizeof(uint16_t)) {
        static char spare[2 * COLL_NODE_PIECE]; /* no call stops within an op */
        m.user_op = fold_items;
        m.user_context = (void *)(uintptr_t)&s->item;
        m.user_spare = spare;
    }
    coll_node_begin(&p->calls[p->call], p->node, &m);
}

/* Whether the rank has more to do. */
static int step(player *p, const plan *plans, int deviant, const plan *other) {
    if (p->failed || p->call == CALLS)
        return 0;
    coll_node_call *c = &p->calls[p->call];
    if (!c->node)
        start(p, p->rank == deviant && p->call == CALLS / 2 ? other : &plans[p->call]);
    int ranks[MOST_RANKS], status = coll_node_progress(c);
    int n = status == COLL_PENDING ? coll_node_waiting(c, ranks, 2) : 0;
    for (int i = 0; i < n; i++)
        check(ranks[i] >= 0 && ranks[i] < p->size && ranks[i] != p->rank);
    check(status <= COLL_PENDING);
    p->failed = status < 0;
    p->call += status == COLL_OK;
    return 1;
}

/* A number such as flags and records hold, or not quite, or anything. */
static uint64_t garbage(choices *c, uint64_t was, uint64_t near) {
    switch (below(c, 8)) {
    case 0:
        return 0;
    case 1:
        return was ^ (uint64_t)1 << below(c, 64);
    case 2:
        return HEAP - draw(c, 2);
    case 3:
        return draw(c, 8);
    case 4:
        return was + draw(c, 1) - 128;
    case 5:
        return near + draw(c, 1) % 4;
    case 6:
        return draw(c, 2) | draw(c, 1) << 48;
    default:
        return draw(c, 3);
    }
}

/* Something in the shared memory of one rank changes. */
static void corrupt(choices *c, const coll_node_call *call) {
    uint64_t number = call->number;
    char *ring = call->node->work;
    area *a = own_area(call->node);
    line *l = &a->lines[number % LINES];
    counter *counters[] = {&a->staged, &a->reduced, &a->copied, &a->done};
    _Atomic uint64_t *flag = &counters[below(c, 4)]->value;
    uint64_t *words = (uint64_t *)&l->arrival;
    unsigned what = below(c, 16), field = below(c, sizeof l->arrival / sizeof *words);
    if (what < 3) {
        atomic_store(flag, garbage(c, atomic_load(flag), number << SEGMENT_BITS));
    } else if (what == 3) {
        _Atomic uint64_t *word = below(c, 4) ? &l->word : &a->bundles[number % LINES].word;
        atomic_store(word, garbage(c, atomic_load(word), number));
    } else if (what == 4) {
        atomic_fetch_xor(&l->word, INLINE_FLAG);
    } else if (what < 7) { /* the table before the call's place in the ring */
        size_t back = 8 * below(c, 64);
        uint64_t *entry = (uint64_t *)(ring + (call->at < back ? 0 : call->at - back) / 8 * 8);
        *entry = garbage(c, *entry, 0);
    } else {
        words[field] = garbage(c, words[field], HEAP);
    }
}

static void prepare(player *players, int size, choices *c, uint64_t *areas) {
    char *bases[MOST_RANKS];
    size_t limits[MOST_RANKS];
    int64_t pids[MOST_RANKS];
    coll_node_limits l = {.copy = 100, .read = 2 << 10, .shortest = 4 << 10, .segment = 4 << 10, .stream = 16 << 10};
    l.private = 3 << 10;
    int reads_private = (int)below(c, 2);
    uint64_t wrong = any_size(c); /* an area that is nowhere */
    for (int i = 0; i < size; i++) {
        bases[i] = homes[i].base;
        limits[i] = HEAP;
        pids[i] = getpid();
        /* flags or ring at the very end of the heap: whoever goes past them leaves it */
        areas[i] = HEAP - coll_node_area_bytes() - (i % 2 ? 2 * STAGING : 0);
        memset(bases[i] + areas[i], 0, coll_node_area_bytes());
    }
    for (int i = 0; i < size; i++) {
        players[i] = (player){.rank = i, .size = size};
        uint64_t right = areas[size - 1];
        areas[size - 1] = wrong;
        players[i].node = coll_node_new(homes[i].heap, size, i, bases, limits, areas);
        check(!players[i].node || wrong <= HEAP - coll_node_area_bytes());
        coll_node_free(players[i].node);
        areas[size - 1] = right;
        players[i].node = coll_node_new(homes[i].heap, size, i, bases, limits, areas);
        check(players[i].node != NULL);
        coll_node_set_limits(players[i].node, &l);
        if (reads_private)
            coll_node_set_processes(players[i].node, pids);
        size_t ring = coll_node_work_bytes(players[i].node);
        players[i].node->work = bases[i] + HEAP - ring - (i % 2 ? 0 : STAGING);
    }
}

static void finish(player *players, int size) {
    for (int i = 0; i < size; i++) {
        player *p = &players[i];
        p->node->work = NULL; /* no block of the heap's */
        coll_node_free(p->node);
        for (int k = 0; k < CALLS; k++) {
            free(p->cuts[k]);
            free(p->memory[k][0]);
            free(p->memory[k][1]);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t left) {
    static const int sizes[] = {2, 3, 4, 5, 2, 3, 4, MOST_RANKS};
    choices c = {data, left};
    static player players[MOST_RANKS];
    static uint64_t areas[MOST_RANKS];
    int size = sizes[below(&c, 8)], deviant = (int)below(&c, 32), corrupted = (int)below(&c, (unsigned)size);
    make_homes(MOST_RANKS);
    prepare(players, size, &c, areas);
    plan plans[CALLS], other = draw_plan(&c, size);
    for (int i = 0; i < CALLS; i++)
        plans[i] = draw_plan(&c, size);
    unsigned most = 100u * (unsigned)size, often = below(&c, 2), idle = 0;
    for (unsigned turn = 0; turn < most && idle < 2u * (unsigned)size; turn++) {
        unsigned x = (unsigned)draw(&c, 1);
        player *victim = &players[corrupted];
        if (x >= 192 && often && victim->call < CALLS && victim->calls[victim->call].node)
            corrupt(&c, &victim->calls[victim->call]);
        else
            idle = step(&players[c.left ? x % (unsigned)size : turn % (unsigned)size], plans, deviant, &other)
                       ? 0
                       : idle + 1;
    }
    finish(players, size);
    return 0;
}
