/* In-process mailboxes: ranks are objects (or threads) of one process; for tests, sanitizers and thread groups. */
#include "transport.h"
#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct letter letter;
struct letter { /* one posted send or receive, in a slot of its execution */
    letter *next;
    const void *from;
    void *to;
    size_t bytes;
    int source, tag, in_use;
    _Atomic int state; /* COLL_PENDING until the two letters meet, then COLL_OK or an error */
};

typedef struct { /* letters to one rank that have not met their counterpart */
    pthread_mutex_t lock;
    letter *sends, **sends_end, *recvs, **recvs_end;
} mailbox;

struct coll_messages {
    coll_endpoint *endpoint;
    int capacity;
    letter letters[];
};

typedef struct {
    coll_endpoint base;
    coll_inproc *group;
    uint64_t random; /* xorshift state; 0: completions are reported at once */
} inproc_endpoint;

struct coll_inproc {
    int size;
    mailbox *boxes;
    inproc_endpoint *endpoints;
};

static coll_messages *inproc_messages_new(coll_endpoint *endpoint, int capacity) {
    coll_messages *m = calloc(1, sizeof *m + (size_t)capacity * sizeof m->letters[0]);
    if (m) {
        m->endpoint = endpoint;
        m->capacity = capacity;
    }
    return m;
}

/* Remove from a list the letters of `m`, which have not met their counterpart. */
static void withdraw(letter **head, letter ***end, const coll_messages *m) {
    letter **at = head;
    while (*at)
        if (*at >= m->letters && *at < m->letters + m->capacity)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    *end = at;
}

static void inproc_messages_free(coll_messages *m) {
    coll_inproc *g = ((inproc_endpoint *)m->endpoint)->group;
    for (int i = 0; i < g->size; i++) {
        mailbox *box = &g->boxes[i];
        pthread_mutex_lock(&box->lock);
        withdraw(&box->sends, &box->sends_end, m);
        withdraw(&box->recvs, &box->recvs_end, m);
        pthread_mutex_unlock(&box->lock);
    }
    free(m);
}

/* Remove the first letter with that source and tag from the list; returns it, or NULL if there is none. */
static letter *take(letter **head, letter ***end, int source, int tag) {
    for (letter **at = head; *at; at = &(*at)->next)
        if ((*at)->source == source && (*at)->tag == tag) {
            letter *found = *at;
            *at = found->next;
            if (!*at)
                *end = at;
            return found;
        }
    return NULL;
}

static void put(letter ***end, letter *l) {
    l->next = NULL;
    **end = l;
    *end = &l->next;
}

static void deliver(letter *send, letter *recv) {
    int same = send->bytes == recv->bytes;
    if (same)
        memcpy(recv->to, send->from, send->bytes);
    int state = same ? COLL_OK : COLL_ERR_MESSAGE;
    atomic_store_explicit(&send->state, state, memory_order_release);
    atomic_store_explicit(&recv->state, state, memory_order_release);
}

static letter *fill(coll_messages *m, int slot, size_t bytes, int source, int tag) {
    letter *l = &m->letters[slot];
    l->bytes = bytes;
    l->source = source;
    l->tag = tag;
    l->in_use = 1;
    atomic_store_explicit(&l->state, COLL_PENDING, memory_order_relaxed);
    return l;
}

static int inproc_send(coll_messages *m, int slot, const void *buf, size_t bytes, int peer, int tag) {
    inproc_endpoint *self = (inproc_endpoint *)m->endpoint;
    mailbox *box = &self->group->boxes[peer];
    letter *l = fill(m, slot, bytes, self->base.rank, tag);
    l->from = buf;
    pthread_mutex_lock(&box->lock);
    letter *other = take(&box->recvs, &box->recvs_end, l->source, tag);
    if (other)
        deliver(l, other);
    else
        put(&box->sends_end, l);
    pthread_mutex_unlock(&box->lock);
    return COLL_OK;
}

static int inproc_recv(coll_messages *m, int slot, void *buf, size_t bytes, int peer, int tag) {
    inproc_endpoint *self = (inproc_endpoint *)m->endpoint;
    mailbox *box = &self->group->boxes[self->base.rank];
    letter *l = fill(m, slot, bytes, peer, tag);
    l->to = buf;
    pthread_mutex_lock(&box->lock);
    letter *other = take(&box->sends, &box->sends_end, peer, tag);
    if (other)
        deliver(other, l);
    else
        put(&box->recvs_end, l);
    pthread_mutex_unlock(&box->lock);
    return COLL_OK;
}

static uint64_t draw(uint64_t *x) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    return *x ^= *x << 17;
}

static int inproc_test(coll_messages *m, int *done) {
    inproc_endpoint *self = (inproc_endpoint *)m->endpoint;
    int n = 0, first = self->random ? (int)(draw(&self->random) % (unsigned)m->capacity) : 0;
    for (int i = 0; i < m->capacity; i++) {
        int slot = (first + i) % m->capacity;
        letter *l = &m->letters[slot];
        if (!l->in_use)
            continue;
        int state = atomic_load_explicit(&l->state, memory_order_acquire);
        if (state < 0)
            return state;
        if (state == COLL_PENDING || (self->random && draw(&self->random) & 1))
            continue;
        l->in_use = 0;
        done[n++] = slot;
    }
    return n;
}

/* Data are copied at once when both letters are posted, so that no receive is incomplete after this. */
static int inproc_cancel(coll_messages *m) {
    mailbox *box = &((inproc_endpoint *)m->endpoint)->group->boxes[m->endpoint->rank];
    pthread_mutex_lock(&box->lock);
    withdraw(&box->recvs, &box->recvs_end, m);
    pthread_mutex_unlock(&box->lock);
    return 0;
}

static void inproc_endpoint_free(coll_endpoint *endpoint) {
    (void)endpoint; /* the group owns it */
}

static const coll_transport inproc_transport = {inproc_messages_new,  inproc_messages_free, inproc_send,
                                                inproc_recv,          inproc_test,          inproc_cancel,
                                                inproc_endpoint_free, inproc_send};

coll_inproc *coll_inproc_new(int size, unsigned seed) {
    coll_inproc *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->boxes = calloc((size_t)size, sizeof *g->boxes);
    g->endpoints = calloc((size_t)size, sizeof *g->endpoints);
    if (!g->boxes || !g->endpoints) {
        free(g->boxes);
        free(g->endpoints);
        free(g);
        return NULL;
    }
    g->size = size;
    for (int i = 0; i < size; i++) {
        mailbox *box = &g->boxes[i];
        pthread_mutex_init(&box->lock, NULL);
        box->sends_end = &box->sends;
        box->recvs_end = &box->recvs;
        g->endpoints[i] = (inproc_endpoint){
            .base = {&inproc_transport, i, size, 1 << 30, SIZE_MAX, 0},
            .group = g,
            .random = seed ? seed * 0x9E3779B97F4A7C15u + (uint64_t)i * 0xBF58476D1CE4E5B9u + 1 : 0,
        };
    }
    return g;
}

void coll_inproc_free(coll_inproc *g) {
    if (!g)
        return;
    for (int i = 0; i < g->size; i++)
        pthread_mutex_destroy(&g->boxes[i].lock);
    free(g->boxes);
    free(g->endpoints);
    free(g);
}

coll_endpoint *coll_inproc_endpoint(coll_inproc *g, int rank) {
    return &g->endpoints[rank].base;
}
