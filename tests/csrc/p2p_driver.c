/* Threads as ranks send each other messages in rounds.   p2p_driver RANKS ROUNDS SEED READS_PRIVATE */
#include "base/error.h"
#include "p2p/p2p.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 16, MANY = 14, LONGEST = 100000, TAGS = 2, ANY_TAG = 7, LATE_TAG = 9 };

static const size_t LENGTHS[] = {0, 1, COLL_P2P_EAGER, COLL_P2P_EAGER + 1, 5000, LONGEST};
static int ranks, rounds, reads_private;
static unsigned seed;
static pthread_barrier_t barrier;
static coll_p2p_peer peers[MOST];

/* One rank's messages with another one, in a round. */
typedef struct {
    coll_p2p_message messages[MANY];
    char *memory[MANY];
} exchange;

typedef struct {
    int rank;
    unsigned random;
    coll_heap *heap;
    coll_p2p *group;
    exchange sent[MOST], received[MOST];
} player;

static void expect(int condition, const char *what, int rank, int number) {
    if (!condition) {
        printf("rank %d: %s: %d\n", rank, what, number);
        abort();
    }
}

static unsigned next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* What both ranks know of message i of a round. */
static unsigned of(int round, int source, int target, int i) {
    unsigned state = seed + (unsigned)(((round * MOST + source) * MOST + target) * MANY + i) * 2654435761u;
    next(&state);
    return next(&state);
}

static size_t length(unsigned message) {
    return LENGTHS[message % (sizeof LENGTHS / sizeof *LENGTHS)];
}

static int on_heap(int i) {
    return i % 2;
}

static char *memory(player *p, int i) {
    char *found = on_heap(i) ? coll_heap_alloc(p->heap, LONGEST) : malloc(LONGEST);
    expect(found != NULL, "no memory", p->rank, i);
    return found;
}

static coll_p2p_message *begin(player *p, coll_p2p_message *m, int receives, int peer, int tag, char *at,
                               size_t bytes) {
    m->group = p->group;
    m->receives = receives;
    m->peer = peer;
    m->tag = tag;
    m->memory = at;
    m->bytes = bytes;
    expect(coll_p2p_begin(m) == COLL_OK, "not begun", p->rank, peer);
    return m;
}

static int end(player *p, coll_p2p_message *m) {
    coll_task task = coll_p2p_task(m);
    int status = coll_progress_wait(&task, NULL, 1, 20000000000);
    expect(status != COLL_PENDING, "does not end, with", p->rank, m->peer);
    return status;
}

/* Messages from and to one other rank: of each tag in order, but one tag's before or after the other's. */
static void exchange_with(player *p, int other, int round) {
    int first = (int)(next(&p->random) % TAGS);
    for (int turn = 0; turn < 2 * MANY * TAGS; turn++) {
        int i = turn / 2 % MANY, tag = (first + turn / 2 / MANY) % TAGS;
        if (i % TAGS != tag)
            continue;
        unsigned sent = of(round, p->rank, other, i), received = of(round, other, p->rank, i);
        if (turn % 2) {
            memset(p->sent[other].memory[i], (int)sent, length(sent));
            begin(p, &p->sent[other].messages[i], 0, other, tag, p->sent[other].memory[i], length(sent));
        } else {
            begin(p, &p->received[other].messages[i], 1, other, tag, p->received[other].memory[i], length(received));
        }
    }
}

static void check_exchange(player *p, int other, int round) {
    for (int i = 0; i < MANY; i++) {
        unsigned message = of(round, other, p->rank, i);
        const char *at = p->received[other].memory[i];
        expect(end(p, &p->received[other].messages[i]) == COLL_OK, "not received", p->rank, i);
        for (size_t k = 0; k < length(message); k += 97)
            expect(at[k] == (char)message, "wrong data in message", p->rank, i);
        expect(end(p, &p->sent[other].messages[i]) == COLL_OK, "not sent", p->rank, i);
    }
}

/* All send to one rank, which receives from any. */
static void receive_from_any(player *p, int round) {
    coll_p2p_message m[MOST], own;
    int root = round % ranks, who[MOST], seen = 0;
    begin(p, &own, 0, root, ANY_TAG, (char *)&p->rank, sizeof p->rank);
    for (int i = 0; p->rank == root && i < ranks; i++) {
        begin(p, &m[i], 1, COLL_P2P_ANY, ANY_TAG, (char *)&who[i], sizeof who[i]);
        expect(end(p, &m[i]) == COLL_OK, "not received", p->rank, i);
        expect(m[i].source == who[i], "wrong source", p->rank, m[i].source);
        seen |= 1 << who[i];
    }
    expect(p->rank != root || seen == (1 << ranks) - 1, "not from all ranks", p->rank, seen);
    expect(end(p, &own) == COLL_OK, "not sent", p->rank, root);
}

/* Messages that are given up, and one that is too long. */
static void give_up(player *p, int round) {
    coll_p2p_message receive, send, wrong;
    int to = (p->rank + 1) % ranks, from = (p->rank + ranks - 1) % ranks, bytes = round % 2 ? 10 : LONGEST;
    char *at = memory(p, 0), *into = memory(p, 0);
    begin(p, &receive, 1, from, LATE_TAG, into, 10);
    coll_p2p_withdraw(&receive);
    expect(end(p, &receive) == COLL_ERR_GIVEN_UP, "received", p->rank, round);
    pthread_barrier_wait(&barrier);
    begin(p, &send, 0, to, LATE_TAG, at, LONGEST);
    coll_p2p_withdraw(&send);
    expect(end(p, &send) == COLL_ERR_GIVEN_UP, "sent", p->rank, round);
    begin(p, &wrong, 0, to, LATE_TAG, at, (size_t)bytes);
    pthread_barrier_wait(&barrier);
    begin(p, &receive, 1, from, LATE_TAG, into, LONGEST);
    expect(end(p, &receive) == COLL_ERR_GIVEN_UP, "received what was given up", p->rank, round);
    memset(into, 5, 100);
    begin(p, &receive, 1, from, LATE_TAG, into, 99);
    expect(end(p, &receive) == COLL_ERR_MESSAGE && (int)receive.received == bytes, "length", p->rank, round);
    expect(into[0] == 5 && into[99] == 5, "written", p->rank, round);
    expect(end(p, &wrong) == COLL_OK, "not sent", p->rank, round);
    free(at);
    free(into);
}

/* A receive that is given up while its data are copied: its sender learns of that. */
static void give_up_a_copy(player *p) {
    static int ended[MOST];
    coll_p2p_message receive, send;
    int to = (p->rank + 1) % ranks, from = (p->rank + ranks - 1) % ranks;
    char *at = memory(p, 0), *into = memory(p, 0);
    begin(p, &send, 0, to, LATE_TAG, at, LONGEST);
    pthread_barrier_wait(&barrier);
    begin(p, &receive, 1, from, LATE_TAG, into, LONGEST);
    coll_p2p_withdraw(&receive);
    ended[p->rank] = end(p, &receive);
    pthread_barrier_wait(&barrier);
    expect(end(p, &send) == ended[to], "the sender was told", p->rank, ended[to]);
    expect(coll_p2p_pending(p->group) == 0, "pending", p->rank, 0);
    pthread_barrier_wait(&barrier);
    free(at);
    free(into);
}

/* More long messages than records are allocated together, the last of which is received first. */
static void last_first(player *p) {
    enum { MORE = 150, LENGTH = 2000 };
    coll_p2p_message *send = calloc(MORE, sizeof *send), receive;
    char *at = memory(p, 0), into[LENGTH];
    int to = (p->rank + 1) % ranks, from = (p->rank + ranks - 1) % ranks;
    for (int i = 0; i < MORE; i++)
        begin(p, &send[i], 0, to, LATE_TAG + 1 + i, at + i, LENGTH);
    for (int i = MORE - 1; i >= 0; i--) {
        begin(p, &receive, 1, from, LATE_TAG + 1 + i, into, LENGTH);
        expect(end(p, &receive) == COLL_OK, "not received", p->rank, i);
    }
    for (int i = 0; i < MORE; i++)
        expect(end(p, &send[i]) == COLL_OK, "not sent", p->rank, i);
    free(at);
    free(send);
}

static void prepare(player *p, int rank) {
    *p = (player){.rank = rank, .random = seed + (unsigned)rank, .heap = coll_heap_new((size_t)1 << 30)};
    size_t bytes = coll_p2p_area_bytes(ranks);
    char *area = p->heap ? coll_heap_alloc(p->heap, bytes) : NULL;
    expect(area != NULL, "no heap", rank, 0);
    memset(area, 0, bytes);
    char *base = coll_heap_base(p->heap);
    peers[rank] = (coll_p2p_peer){base, coll_heap_size(p->heap), (uint64_t)(area - base), getpid()};
    for (int other = 0; other < ranks; other++)
        for (int i = 0; i < MANY; i++) {
            p->sent[other].memory[i] = memory(p, i);
            p->received[other].memory[i] = memory(p, i + 1);
        }
}

static void leave(player *p) {
    coll_p2p_free(p->group);
    for (int other = 0; other < ranks; other++)
        for (int i = 0; i < MANY; i++) {
            on_heap(i) ? coll_heap_release(p->heap, p->sent[other].memory[i]) : free(p->sent[other].memory[i]);
            on_heap(i + 1) ? coll_heap_release(p->heap, p->received[other].memory[i])
                           : free(p->received[other].memory[i]);
        }
    pthread_barrier_wait(&barrier); /* nobody writes to the area any more */
    coll_heap_free(p->heap);
}

static void *run(void *argument) {
    player *p = malloc(sizeof *p);
    prepare(p, (int)(intptr_t)argument);
    pthread_barrier_wait(&barrier);
    p->group = coll_p2p_new(p->heap, ranks, p->rank, peers, reads_private);
    expect(p->group != NULL, "no group", p->rank, 0);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < ranks; i++)
            exchange_with(p, (p->rank + i) % ranks, round);
        for (int i = 0; i < ranks; i++)
            check_exchange(p, (p->rank + i) % ranks, round);
        receive_from_any(p, round);
        if (round % 8 == 0) {
            give_up(p, round / 8);
            give_up_a_copy(p);
        }
    }
    last_first(p);
    pthread_barrier_wait(&barrier);
    leave(p);
    free(p);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[MOST];
    if (argc < 5 || (ranks = atoi(argv[1])) < 1 || ranks > MOST)
        return 2;
    rounds = atoi(argv[2]);
    seed = (unsigned)atoi(argv[3]);
    reads_private = atoi(argv[4]);
    pthread_barrier_init(&barrier, NULL, (unsigned)ranks);
    for (int i = 0; i < ranks; i++)
        pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i);
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
    coll_progress_stop(1000000000);
    printf("%d rounds on %d ranks: all right\n", rounds, ranks);
    return 0;
}
