/* Fuzzes coll_program_new and the executor: records read as they are, layouts, cuts and counts, on in-process ranks.
 * What is not refused is run, on memory of the exact size, and must not touch any other. */
#include "base/error.h"
#include "schedule/executor.h"
#include "fuzz.h"

#include <stdlib.h>

enum { RANKS = 5, STEPS = 24, BLOCKS = 8, MEMORY = 1 << 16 };

typedef struct {
    coll_program *program;
    coll_exec *exec;
    char *memory[2]; /* of the input and the vector */
    char *input, *vector;
} player;

static void check(int condition) {
    if (!condition)
        abort();
}

static void mix(void *dst, const void *left, const void *right, size_t n) {
    for (size_t i = 0; i < n; i++)
        ((char *)dst)[i] = (char)(((const char *)left)[i] ^ ((const char *)right)[i]);
}

static int mix_by_user(void *itemsize, void *dst, const void *left, const void *right, void *spare, size_t n) {
    n *= *(const size_t *)itemsize;
    memcpy(spare, right, n);
    mix(dst, left, spare, n);
    return COLL_OK;
}

static void halve(void *dst, const void *src, int p, size_t n) {
    for (size_t i = 0; i < n; i++)
        ((char *)dst)[i] = (char)(((const char *)src)[i] / p);
}

/* A buffer that has the blocks, if there is one. */
static int32_t draw_buffer(choices *c, const coll_layout *l, int first, const coll_step *s) {
    int32_t buffer = mostly(c, first, 4);
    int held = buffer == COLL_INPUT ? l->input_block : buffer == COLL_VECTOR ? l->vector_block : COLL_ALL;
    int there = buffer >= COLL_INPUT && buffer - COLL_SCRATCH < l->nscratch &&
                (held == COLL_ALL || (held == s->block && s->nblocks == 1));
    return there || below(c, 64) == 0 ? buffer : l->vector_block == COLL_ALL ? COLL_VECTOR : COLL_SCRATCH;
}

/* A step of the same form on all ranks, its peers and blocks shifted by the rank, so that messages meet. */
static coll_step draw_step(choices *c, const coll_layout *l, int *round, int rank, int size) {
    coll_step s = {.kind = mostly(c, 0, 5)};
    unsigned where = below(c, 8);
    int ranks = l->size >= 1 && l->size <= RANKS ? l->size : size; /* seldom another number than there are */
    int shift = 1 + (int)(where & 1), to = (rank + shift) % ranks, from = (rank + ranks * shift - shift) % ranks;
    int nblocks = l->nblocks < 1 || l->nblocks > BLOCKS ? 1 : l->nblocks;
    *round += *round < 0 || below(c, 3) == 0;
    s.round = below(c, 200) ? *round : mostly(c, 0, 9);
    s.peer = s.kind == COLL_SEND ? to : from;
    s.block = mostly(c, 0, (unsigned)nblocks);
    if (where & 2 && s.block >= 0 && s.block < nblocks)
        s.block = (s.block + (s.kind == COLL_SEND ? to : rank)) % nblocks;
    s.nblocks = where & 4 && s.block >= 0 && s.block < nblocks ? mostly(c, 1, (unsigned)(nblocks - s.block)) : 1;
    s.src_block = where & 4 ? s.block : mostly(c, 0, (unsigned)nblocks);
    s.dst = draw_buffer(c, l, 1, &s);
    coll_step source = s;
    source.block = s.kind == COLL_COPY ? s.src_block : s.block;
    s.left = draw_buffer(c, l, 0, &source);
    s.right = s.kind == COLL_RECV_REDUCE && below(c, 64) ? COLL_RECEIVED : draw_buffer(c, l, 0, &s);
    return s;
}

static int draw_steps(choices *c, const coll_layout *l, coll_step *steps, int rank, int size) {
    int n = (int)below(c, below(c, 4) ? 6 : STEPS + 1), round = -1;
    for (int i = 0; i < n; i++)
        steps[i] = draw_step(c, l, &round, rank, size);
    unsigned wild = below(c, 64); /* the rank that gets a record as it is */
    for (size_t i = 0; n && (int)wild == rank && i < sizeof *steps / sizeof(int32_t); i++)
        ((int32_t *)&steps[below(c, (unsigned)n)])[i] = (int32_t)draw(c, 4);
    return n;
}

static coll_layout draw_layout(choices *c, int size) {
    coll_layout l = {.size = below(c, 64) ? size : mostly(c, 0, RANKS)};
    l.nblocks = mostly(c, 1, BLOCKS);
    l.nscratch = mostly(c, 0, 3);
    l.in_place = (int)below(c, 2);
    l.input_block = below(c, 2) ? COLL_ALL : mostly(c, -2, BLOCKS + 2);
    l.vector_block = below(c, 2) ? COLL_ALL : mostly(c, -2, BLOCKS + 2);
    l.blockwise = (int)below(c, 2);
    return l;
}

static const size_t *draw_cuts(choices *c, size_t *cuts) {
    if (below(c, 3))
        return NULL;
    size_t at = below(c, 4) ? 0 : below(c, 100);
    for (int i = 0; i <= BLOCKS; i++, at += below(c, 16))
        cuts[i] = below(c, 100) ? at : any_size(c);
    return cuts;
}

static const size_t *draw_starts(choices *c, size_t *starts) {
    if (below(c, 3))
        return NULL;
    for (int i = 0; i < BLOCKS; i++)
        starts[i] = below(c, 100) ? below(c, 60) : any_size(c);
    return starts;
}

static coll_message draw_message(choices *c, size_t cuts[4][BLOCKS + 1]) {
    coll_message m = {.count = below(c, 200), .itemsize = (size_t)1 << below(c, 5)};
    unsigned odd = below(c, 32);
    if (odd == 0)
        m.count = any_size(c);
    if (odd == 1)
        m.itemsize = any_size(c);
    m.segments = 1 + (int)below(c, 9) - (odd == 2);
    m.depth = 1 + (int)below(c, 5) - (odd == 3);
    m.cuts = draw_cuts(c, cuts[0]);
    m.input_cuts = draw_cuts(c, cuts[1]);
    m.starts = draw_starts(c, cuts[2]);
    m.input_starts = draw_starts(c, cuts[3]);
    return m;
}

/* Bytes of the caller's memory, or more than we have; *first: where its one block begins. */
static size_t extent(const coll_layout *l, const coll_message *m, const size_t *cuts, const size_t *starts, int held,
                     size_t *first) {
    size_t even[BLOCKS + 1], each = m->count / (size_t)l->nblocks, longer = m->count % (size_t)l->nblocks;
    for (int i = 0; i <= l->nblocks; i++)
        even[i] = (size_t)i * each + ((size_t)i < longer ? (size_t)i : longer);
    cuts = cuts ? cuts : even;
    *first = held < 0 ? 0 : cuts[held] * m->itemsize;
    size_t count = held == COLL_NONE ? 0 : held < 0 ? cuts[l->nblocks] : cuts[held + 1] - cuts[held];
    for (int i = 0; starts && held == COLL_ALL && i < l->nblocks; i++) {
        size_t end = starts[i] + cuts[i + 1] - cuts[i];
        count = end > count ? end : count;
    }
    return count <= MEMORY / m->itemsize ? count * m->itemsize : SIZE_MAX;
}

static char *new_memory(size_t bytes) {
    char *made = malloc(bytes);
    memset(made, 1, bytes);
    return made;
}

/* Whether the caller could have memory for the call. */
static int give_memory(player *p, const coll_layout *l, const coll_message *m) {
    size_t first, input_first, bytes = extent(l, m, m->cuts, m->starts, l->vector_block, &first);
    const size_t *input_cuts = m->input_cuts ? m->input_cuts : m->cuts;
    size_t input_bytes = extent(l, m, input_cuts, m->input_starts, l->input_block, &input_first);
    if (bytes == SIZE_MAX || input_bytes == SIZE_MAX)
        return 0;
    p->vector = p->memory[1] = new_memory(bytes);
    int alike = !m->input_cuts && !m->starts && !m->input_starts;
    if (l->in_place && alike && l->vector_block == COLL_ALL)
        p->input = p->vector + input_first;
    else if (l->in_place && alike && l->vector_block == l->input_block)
        p->input = p->vector;
    else
        p->input = p->memory[0] = new_memory(input_bytes);
    return 1;
}

static void prepare(player *p, coll_endpoint *endpoint, choices *c, const coll_layout *l, const coll_message *m) {
    coll_step steps[STEPS];
    int n = draw_steps(c, l, steps, endpoint->rank, endpoint->size), error = COLL_PENDING, bad;
    p->program = coll_program_new(steps, n, l, &error, &bad);
    check(p->program ? error == COLL_OK : error == COLL_ERR_SCHEDULE || error == COLL_ERR_MEMORY);
    if (!p->program || l->nblocks > BLOCKS)
        return;
    p->exec = coll_exec_new(p->program, endpoint, m, &error);
    check(p->exec ? error == COLL_OK : error == COLL_ERR_ARGUMENT || error == COLL_ERR_MEMORY);
    if (p->exec && give_memory(p, l, m))
        check(coll_exec_start(p->exec, p->input, p->vector, (int)below(c, 4)) == COLL_OK);
}

static void run(player *players, int size, choices *c) {
    int peers[RANKS];
    for (unsigned turn = 0; turn < 64u * (unsigned)size; turn++) {
        player *p = &players[c->left ? below(c, (unsigned)size) : turn % (unsigned)size];
        if (!p->vector)
            continue;
        int status = coll_exec_progress(p->exec, below(c, 64));
        check(status <= COLL_PENDING);
        int waiting = coll_exec_waiting(p->exec, peers, size);
        for (int i = 0; i < waiting; i++)
            check(peers[i] >= 0 && peers[i] < size);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t left) {
    choices c = {data, left};
    player players[RANKS] = {0};
    size_t cuts[4][BLOCKS + 1];
    int size = 1 + (int)below(&c, RANKS);
    coll_inproc *group = coll_inproc_new(size, (unsigned)draw(&c, 1));
    coll_layout layout = draw_layout(&c, size);
    coll_message message = draw_message(&c, cuts);
    unsigned how = below(&c, 4);
    message.reduce = how == 0 && message.itemsize == 1 ? mix : NULL;
    message.user_op = how < 3 ? mix_by_user : NULL;
    message.user_context = &message.itemsize;
    message.scale = how == 1 && message.itemsize == 1 ? halve : NULL;
    size_t limit = 61 + draw(&c, 2); /* some thousand pieces at most: mailboxes are searched from their beginning */
    choices steps = c;
    for (int rank = 0; rank < size; rank++) {
        coll_endpoint *endpoint = coll_inproc_endpoint(group, rank);
        endpoint->message_limit = limit;
        c = steps; /* the same on all ranks */
        prepare(&players[rank], endpoint, &c, &layout, &message);
    }
    run(players, size, &c);
    for (int rank = 0; rank < size; rank++) {
        coll_exec_free(players[rank].exec);
        coll_program_free(players[rank].program);
        free(players[rank].memory[0]);
        free(players[rank].memory[1]);
    }
    coll_inproc_free(group);
    return 0;
}
