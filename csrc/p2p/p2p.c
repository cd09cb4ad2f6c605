/* Groups of point-to-point messages, and their progress: by the waiting thread, and by the progress thread. */
#include "p2p.h"
#include "internal.h"
#include "progress/ending.h"

#include <sched.h>
#include <stdlib.h>

size_t coll_p2p_area_bytes(int size) {
    return sizeof(area) + (size_t)size * sizeof(lane);
}

/* The task in the queue of non-blocking calls, as long as messages are pending. */
static int serve(void *self, size_t budget) {
    coll_p2p *g = self;
    (void)budget;
    if (pthread_mutex_trylock(&g->lock) != 0)
        return COLL_PENDING; /* another thread moves the messages */
    coll_p2p_move(g);
    g->served = g->pending > 0;
    int status = g->served ? COLL_PENDING : COLL_OK;
    pthread_mutex_unlock(&g->lock);
    return status;
}

static int serves_nobody(const void *self, int *ranks, int max) {
    (void)self, (void)ranks, (void)max;
    return 0;
}

static int stop_serving(void *self) {
    (void)self;
    return 0;
}

static coll_p2p *made(coll_heap *own, int size, int rank, int reads_private) {
    coll_p2p *g = calloc(1, sizeof *g + (size_t)size * sizeof *g->peers);
    if (!g)
        return NULL;
    g->heap = own;
    g->size = size;
    g->rank = rank;
    g->reads_private = reads_private;
    pthread_mutex_init(&g->lock, NULL);
    list_init(&g->receives);
    list_init(&g->copying);
    list_init(&g->rendezvous);
    g->early_end = &g->early;
    g->server.task = (coll_task){g, serve, serves_nobody, stop_serving, 0};
    return g;
}

coll_p2p *coll_p2p_new(coll_heap *own, int size, int rank, const coll_p2p_peer *peers, int reads_private) {
    coll_p2p *g = made(own, size, rank, reads_private);
    size_t bytes = coll_p2p_area_bytes(size);
    for (int i = 0; g && i < size; i++) {
        if (peers[i].area % 64 || bytes > peers[i].limit || peers[i].area > peers[i].limit - bytes) {
            coll_p2p_free(g);
            return NULL;
        }
        g->peers[i].at = peers[i];
        g->peers[i].area = (area *)(peers[i].base + peers[i].area);
        list_init(&g->peers[i].sends);
    }
    return g;
}

static void give_up_all(coll_p2p *g, list *l) {
    while (l->first)
        coll_p2p_give_up(g, l->first);
}

void coll_p2p_give_up_all(coll_p2p *g, int receives_only) {
    if (coll_progress_ended())
        return;
    pthread_mutex_lock(&g->lock);
    give_up_all(g, &g->receives);
    if (!receives_only) {
        give_up_all(g, &g->copying);
        give_up_all(g, &g->rendezvous);
    }
    for (int i = 0; i < g->size && !receives_only; i++)
        if (g->peers[i].area)
            give_up_all(g, &g->peers[i].sends);
    pthread_mutex_unlock(&g->lock);
}

int coll_p2p_pending(coll_p2p *g) {
    if (coll_progress_ended())
        return 0;
    pthread_mutex_lock(&g->lock);
    int pending = g->pending;
    pthread_mutex_unlock(&g->lock);
    return pending;
}

static int is_queued(const coll_p2p *g) {
    return atomic_load_explicit(&g->server.status, memory_order_acquire) == COLL_PENDING;
}

void coll_p2p_free(coll_p2p *g) {
    if (!g || coll_progress_ended()) /* a forked child's lock may be that of a thread which it does not have */
        return;
    coll_p2p_give_up_all(g, 0);
    if (is_queued(g))
        coll_progress_abandon(&g->server);
    if (is_queued(g)) /* this thread goes through the queue, and lets go of the server only later */
        return;
    for (unexpected *u = g->early, *next; u; u = next) {
        next = u->next;
        free(u);
    }
    for (block *b = g->blocks, *next; b; b = next) {
        next = b->next;
        coll_heap_release(g->heap, b);
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
}

int coll_p2p_begin(coll_p2p_message *m) {
    coll_p2p *g = m->group;
    if (m->peer >= g->size || (m->peer < 0 && (m->peer != COLL_P2P_ANY || !m->receives)))
        return COLL_ERR_ARGUMENT;
    m->status = COLL_PENDING;
    m->staging = m->record = NULL;
    m->source = m->peer;
    m->received = 0;
    pthread_mutex_lock(&g->lock);
    coll_p2p_enqueue(g, m);
    int starts = g->pending && !g->served, code = COLL_OK;
    g->served |= starts;
    pthread_mutex_unlock(&g->lock);
    if (starts) {
        while (is_queued(g)) /* the server has returned for the last time, but the queue has not let go of it */
            sched_yield();
        code = coll_progress_submit(&g->server);
    }
    if (code != COLL_OK) {
        pthread_mutex_lock(&g->lock);
        g->served = 0;
        coll_p2p_give_up(g, m);
        pthread_mutex_unlock(&g->lock);
    }
    return code;
}

void coll_p2p_withdraw(coll_p2p_message *m) {
    if (coll_progress_ended())
        return;
    pthread_mutex_lock(&m->group->lock);
    coll_p2p_give_up(m->group, m);
    pthread_mutex_unlock(&m->group->lock);
}

static int progress(void *self, size_t budget) {
    coll_p2p_message *m = self;
    (void)budget;
    int status = atomic_load_explicit(&m->status, memory_order_acquire);
    if (status == COLL_PENDING && pthread_mutex_trylock(&m->group->lock) == 0) {
        coll_p2p_move(m->group);
        pthread_mutex_unlock(&m->group->lock);
        status = atomic_load_explicit(&m->status, memory_order_acquire);
    }
    return status;
}

static int waiting(const void *self, int *ranks, int max) {
    const coll_p2p_message *m = self;
    if (m->peer == COLL_P2P_ANY || max < 1)
        return 0;
    ranks[0] = m->peer;
    return 1;
}

static int abandon(void *self) {
    coll_p2p_withdraw(self);
    return 0;
}

coll_task coll_p2p_task(coll_p2p_message *m) {
    return (coll_task){m, progress, waiting, abandon, 0};
}
