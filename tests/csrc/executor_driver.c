/* The executor, its queue and the in-process mailboxes under sanitizers: schedules made by hand, ranks as threads or
 * interleaved at random, and schedules with random faults.
 *
 *   executor_driver threads|interleaved|mutants RANKS CALLS SEED */
#include "base/error.h"
#include "progress/progress.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 6000, DEPTH = 4, BATCH = 4 };

static int ranks, calls;
static unsigned seed;
static coll_inproc *group;

static unsigned mix(unsigned a, unsigned b) {
    unsigned x = (a + 0x9E3779B9u) * 0x85EBCA6Bu ^ (b + 0x7F4A7C15u) * 0xC2B2AE35u;
    x ^= x >> 15;
    x *= 0x27D4EB2Fu;
    return x ^ x >> 13;
}

static void expect(int condition, const char *what, int call) {
    if (!condition) {
        printf("call %d: %s\n", call, what);
        abort();
    }
}

static coll_step message(int kind, int round, int peer, int block, int nblocks, int operand) {
    coll_step s = {.kind = kind, .round = round, .peer = peer, .block = block, .nblocks = nblocks};
    s.dst = kind == COLL_SEND ? COLL_NONE : COLL_VECTOR;
    s.left = kind == COLL_RECV ? COLL_NONE : operand;
    s.right = kind == COLL_RECV_REDUCE ? COLL_RECEIVED : COLL_NONE;
    s.src_block = block; /* not used, but so a fault in kind makes a copy */
    return s;
}

static coll_step copy(int round, int nblocks) {
    return (coll_step){COLL_COPY, round, COLL_NONE, 0, nblocks, COLL_VECTOR, COLL_INPUT, COLL_NONE, 0, 0};
}

static int mod(int a) {
    return (a % ranks + ranks) % ranks;
}

static int ring(coll_step *s, int rank) {
    int n = 0, round = 0;
    for (int k = 0; k < ranks - 1; k++, round++) {
        s[n++] = message(COLL_SEND, round, mod(rank + 1), mod(rank - k), 1, k ? COLL_VECTOR : COLL_INPUT);
        s[n++] = message(COLL_RECV_REDUCE, round, mod(rank - 1), mod(rank - k - 1), 1, COLL_INPUT);
    }
    for (int k = 0; k < ranks - 1; k++, round++) {
        s[n++] = message(COLL_SEND, round, mod(rank + 1), mod(rank + 1 - k), 1, COLL_VECTOR);
        s[n++] = message(COLL_RECV, round, mod(rank - 1), mod(rank - k), 1, COLL_NONE);
    }
    if (ranks == 1)
        s[n++] = copy(0, 1);
    return n;
}

/* For the largest power of two; the ranks beyond it send to a partner first and receive the result last. */
static int recursive_doubling(coll_step *s, int rank) {
    int n = 0, round = 0, inner = 1, held = COLL_INPUT;
    while (inner * 2 <= ranks)
        inner *= 2;
    if (rank >= inner) {
        s[n++] = message(COLL_SEND, 0, rank - inner, 0, 1, COLL_INPUT);
        s[n++] = message(COLL_RECV, 1, rank - inner, 0, 1, COLL_NONE);
        return n;
    }
    if (rank + inner < ranks) {
        s[n++] = message(COLL_RECV_REDUCE, round++, rank + inner, 0, 1, held);
        held = COLL_VECTOR;
    }
    for (int bit = 1; bit < inner; bit *= 2, round++, held = COLL_VECTOR) {
        s[n++] = message(COLL_SEND, round, rank ^ bit, 0, 1, held);
        s[n++] = message(COLL_RECV_REDUCE, round, rank ^ bit, 0, 1, held);
    }
    if (rank + inner < ranks)
        s[n++] = message(COLL_SEND, round, rank + inner, 0, 1, COLL_VECTOR);
    if (ranks == 1)
        s[n++] = copy(0, 1);
    return n;
}

static void add(void *dst, const void *left, const void *right, size_t n) {
    for (size_t i = 0; i < n; i++)
        ((unsigned *)dst)[i] = ((const unsigned *)left)[i] + ((const unsigned *)right)[i];
}

/* As MPI reduces: into a copy of the right operand. */
static int user_add(void *context, void *dst, const void *left, const void *right, void *spare, size_t n) {
    expect(context == &ranks, "user op with a wrong context", -1);
    memcpy(spare, right, n * sizeof(int));
    add(spare, left, spare, n);
    memcpy(dst, spare, n * sizeof(int));
    return COLL_OK;
}

/* Boundaries of the ring's blocks, of any lengths, the same on all ranks. */
static const size_t *cuts_of(int call, size_t count) {
    static _Thread_local size_t cuts[65];
    for (int i = 0; i <= ranks; i++) {
        size_t at = i == ranks ? count : mix(seed + (unsigned)i, (unsigned)call) % (count + 1);
        int j = i;
        for (; j > 0 && i < ranks && cuts[j - 1] > at; j--)
            cuts[j] = cuts[j - 1];
        cuts[j] = at;
    }
    cuts[0] = 0;
    return cuts;
}

/* One rank's part of a call: everything follows from its number, so that all ranks agree. */
typedef struct {
    int call, rank, in_place;
    size_t count;
    int *input, *vector;
    coll_program *program;
    coll_exec *exec;
    coll_request request;
} part;

static int value(int rank, size_t i, int call) {
    return (int)mix((unsigned)rank * 131071u + (unsigned)i, (unsigned)call) % 1000;
}

static size_t count_of(int call) {
    unsigned x = mix(seed, (unsigned)call);
    const size_t usual[] = {0, 1, (size_t)ranks - 1, (size_t)ranks, (size_t)ranks + 1, x % 100, x % MOST};
    return usual[x / 8 % 7];
}

static coll_exec *prepare(part *p, int call, int rank, coll_step *steps, int nsteps, int nblocks, int nscratch) {
    unsigned x = mix(seed * 31, (unsigned)call);
    int error, bad;
    *p = (part){.call = call, .rank = rank, .in_place = mix((unsigned)rank, x) & 1, .count = count_of(call)};
    p->input = malloc(p->count * sizeof(int) + 1);
    p->vector = p->in_place ? p->input : calloc(1, p->count * sizeof(int) + 1);
    for (size_t i = 0; i < p->count; i++)
        p->input[i] = value(rank, i, call);
    coll_layout layout = {ranks, nblocks, nscratch, p->in_place, COLL_ALL, COLL_ALL, 0};
    p->program = coll_program_new(steps, nsteps, &layout, &error, &bad);
    if (!p->program)
        return NULL;
    coll_message m = {
        .count = p->count, .itemsize = sizeof(int), .segments = 1 + (int)(x >> 3 & 7), .depth = 1 + (x >> 6) % DEPTH};
    m.reduce = x & 1 ? add : NULL;
    m.user_op = user_add;
    m.user_context = &ranks;
    if (nblocks == ranks && x >> 9 & 1)
        m.cuts = cuts_of(call, p->count);
    p->exec = coll_exec_new(p->program, coll_inproc_endpoint(group, rank), &m, &error);
    return p->exec;
}

static int build(coll_step *steps, int call, int rank, int *nblocks) {
    int which = mix(seed, (unsigned)call * 7) & 1;
    *nblocks = which ? ranks : 1;
    return which ? ring(steps, rank) : recursive_doubling(steps, rank);
}

static void begin(part *p, int call, int rank) {
    coll_step *steps = calloc((size_t)ranks * 4 + 64, sizeof *steps);
    int nblocks, nsteps = build(steps, call, rank, &nblocks);
    expect(prepare(p, call, rank, steps, nsteps, nblocks, 0) != NULL, "is refused", call);
    free(steps);
    expect(coll_exec_start(p->exec, p->input, p->vector, call * DEPTH) == COLL_OK, "does not start", call);
    expect(coll_exec_start(p->exec, p->input, p->vector, 0) == COLL_ERR_ARGUMENT, "starts twice", call);
}

static void finish(part *p) {
    for (size_t i = 0; i < p->count; i++) {
        int sum = 0;
        for (int r = 0; r < ranks; r++)
            sum += value(r, i, p->call);
        expect(p->vector[i] == sum, "wrong result", p->call);
    }
    expect(!coll_exec_busy(p->exec), "busy at the end", p->call);
}

static void destroy(part *p) {
    coll_exec_free(p->exec);
    coll_program_free(p->program);
    if (!p->in_place)
        free(p->vector);
    free(p->input);
}

/* A rank in its thread: batches of requests, each waited for in another order, with a blocking call between. */
static void *rank_main(void *argument) {
    int rank = (int)(intptr_t)argument;
    for (int call = 0; call + BATCH < calls; call += BATCH + 1) {
        part batch[BATCH + 1];
        for (int i = 0; i < BATCH; i++) {
            begin(&batch[i], call + i, rank);
            batch[i].request.task = coll_exec_task(batch[i].exec);
            expect(coll_progress_submit(&batch[i].request) == COLL_OK, "is not queued", call + i);
        }
        begin(&batch[BATCH], call + BATCH, rank);
        coll_task blocking = coll_exec_task(batch[BATCH].exec);
        int status, peers[64];
        while ((status = coll_progress_wait(&blocking, NULL, 1, 1000000)) == COLL_PENDING)
            coll_progress_waiting(&batch[0].request.task, peers, ranks);
        expect(status == COLL_OK, "fails", call + BATCH);
        for (unsigned i = 0, first = mix((unsigned)rank, (unsigned)call); i < BATCH; i++) {
            part *p = &batch[(first + i) % BATCH];
            while ((status = coll_progress_wait(NULL, &p->request, 1, 1000000)) == COLL_PENDING)
                ;
            expect(status == COLL_OK, "fails in the queue", p->call);
        }
        for (int i = 0; i <= BATCH; i++) {
            finish(&batch[i]);
            destroy(&batch[i]);
        }
    }
    return NULL;
}

static void run_threads(void) {
    pthread_t *threads = calloc((size_t)ranks, sizeof *threads);
    for (int r = 0; r < ranks; r++)
        pthread_create(&threads[r], NULL, rank_main, (void *)(intptr_t)r);
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    free(threads);
    coll_progress_stop(1000000000);
    expect(coll_progress_outstanding() == 0, "requests left", calls);
}

/* Up to `limit` steps of random ranks, by random small budgets; whether all came to their end. */
static int interleave(part *parts, unsigned limit, int call) {
    int left = ranks;
    char *done = calloc((size_t)ranks, 1);
    for (unsigned i = 0; i < limit && left; i++) {
        unsigned x = mix(i, seed + (unsigned)call), r = x % (unsigned)ranks;
        if (done[r] || !parts[r].exec)
            continue;
        int status = coll_exec_progress(parts[r].exec, x >> 16 & 255);
        int peers[64], n = coll_exec_waiting(parts[r].exec, peers, ranks < 64 ? ranks : 64);
        for (int k = 0; k < n; k++)
            expect(peers[k] >= 0 && peers[k] < ranks, "waits for no rank", call);
        if (status != COLL_PENDING) {
            done[r] = 1;
            left -= status == COLL_OK;
        }
    }
    free(done);
    return left == 0;
}

static void run_interleaved(void) {
    part *parts = calloc((size_t)ranks, sizeof *parts);
    for (int call = 0; call < calls; call++) {
        for (int r = 0; r < ranks; r++)
            begin(&parts[r], call, r);
        expect(interleave(parts, 100000000, call), "no end", call);
        for (int r = 0; r < ranks; r++) {
            finish(&parts[r]);
            destroy(&parts[r]);
        }
    }
    free(parts);
}

static void mutate(coll_step *steps, int nsteps, int nblocks, unsigned x) {
    if (x >> 5 & 1) { /* a copy of a block to the place of another, perhaps longer one */
        coll_step *s = &steps[(x >> 8) % (unsigned)nsteps];
        *s = copy(s->round, 1);
        s->block = (int)((x >> 16) % (unsigned)nblocks);
        s->src_block = (int)((x >> 20) % (unsigned)nblocks);
        return;
    }
    const int32_t values[] = {-3, -2, -1, 0, 1, 2, 3, ranks, ranks - 1, 1 << 30, INT32_MAX, INT32_MIN};
    for (unsigned k = 0; k <= x % 3; k++) {
        unsigned y = mix(x, k);
        int32_t *fields = &steps[y % (unsigned)nsteps].kind;
        fields[(y >> 8) % 9] = y & 1 << 20 ? values[(y >> 12) % 12] : (int32_t)((y >> 12) % (unsigned)(ranks + 3));
    }
}

/* A fault in the schedule of one rank: refused, or run without harm to memory; the ranks may wait for ever. */
static void run_mutants(void) {
    int refused = 0, stuck = 0;
    part *parts = calloc((size_t)ranks, sizeof *parts);
    coll_step *steps = calloc((size_t)ranks * 4 + 64, sizeof *steps);
    for (int call = 0; call < calls; call++) {
        unsigned x = mix(seed * 7, (unsigned)call);
        for (int r = 0; r < ranks; r++) {
            int nblocks, nsteps = build(steps, call, r, &nblocks);
            if (r == (int)(x % (unsigned)ranks))
                mutate(steps, nsteps, nblocks, x);
            if (prepare(&parts[r], call, r, steps, nsteps, nblocks, (int)(x >> 4 & 1)))
                coll_exec_start(parts[r].exec, parts[r].input, parts[r].vector, call * DEPTH);
            else
                refused++;
        }
        stuck += !interleave(parts, 40u * (unsigned)ranks * (unsigned)ranks, call);
        for (int r = 0; r < ranks; r++)
            destroy(&parts[r]);
    }
    printf("%d refused, %d without an end; ", refused, stuck);
    free(steps);
    free(parts);
}

int main(int argc, char **argv) {
    expect(argc == 5, "usage: executor_driver threads|interleaved|mutants RANKS CALLS SEED", 0);
    ranks = atoi(argv[2]);
    calls = atoi(argv[3]);
    seed = (unsigned)atoi(argv[4]);
    int threads = strcmp(argv[1], "threads") == 0;
    group = coll_inproc_new(ranks, threads ? 0 : seed); /* late completions are for one thread per endpoint */
    for (int r = 0; r < ranks; r++)
        coll_inproc_endpoint(group, r)->message_limit = seed % 2 ? 1000 : (size_t)-1;
    if (threads)
        run_threads();
    else if (strcmp(argv[1], "interleaved") == 0)
        run_interleaved();
    else
        run_mutants();
    coll_inproc_free(group);
    printf("%d calls on %d ranks: all right\n", calls, ranks);
    return 0;
}
