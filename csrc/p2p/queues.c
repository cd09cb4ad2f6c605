/* The queues of point-to-point messages: how sends find slots, and how messages find receives. */
#include "base/moves.h"
#include "internal.h"

#include <stdlib.h>
#include <string.h>

static uint64_t see(const _Atomic uint64_t *flag) {
    return atomic_load_explicit(flag, memory_order_acquire);
}

void coll_p2p_end(coll_p2p *g, coll_p2p_message *m, int status) {
    if (m->staging)
        coll_heap_release(g->heap, m->staging);
    m->staging = NULL;
    if (m->record >= 0)
        g->free_records[g->records++] = m->record;
    m->record = -1;
    g->pending--;
    coll_moves++;
    atomic_store_explicit(&m->status, status, memory_order_release); /* last: from here on the owner may free it */
}

/* ---- sending */

/* Open a record: its value says that the receiver may copy. 0 if there is none free. */
static uint64_t open_record(coll_p2p *g, coll_p2p_message *m) {
    if (g->records == 0)
        return 0;
    m->record = g->free_records[--g->records];
    _Atomic uint64_t *state = &g->peers[g->rank].area->records[m->record].state;
    uint64_t opened = (*state / STATES + 1) * STATES + OPENED;
    atomic_store_explicit(state, opened, memory_order_relaxed); /* published with the slot */
    return opened;
}

/* Fill in where the receiver finds the data. COLL_OK, COLL_PENDING without a free record, or an error. */
static int expose(coll_p2p *g, coll_p2p_message *m, envelope *e) {
    const coll_p2p_peer *own = &g->peers[g->rank].at;
    const void *data = m->memory;
    e->record = -1;
    if (m->bytes <= COLL_P2P_EAGER)
        return COLL_OK;
    if (g->records == 0)
        return COLL_PENDING;
    if (!g->reads_private && m->peer != g->rank && !coll_heap_has(own->base, own->limit, data)) {
        m->staging = coll_heap_alloc(g->heap, m->bytes);
        if (!m->staging)
            return COLL_ERR_MEMORY;
        data = memcpy(m->staging, data, m->bytes);
    }
    e->opened = open_record(g, m);
    e->record = m->record;
    e->offset = coll_heap_has(own->base, own->limit, data) ? (uint64_t)((const char *)data - own->base) : 0;
    e->address = (uint64_t)(uintptr_t)data;
    return COLL_OK;
}

/* Write a message to its slot. COLL_OK, COLL_PENDING if there is none free, or an error. */
static int put(coll_p2p *g, coll_p2p_message *m) {
    struct peer *to = &g->peers[m->peer];
    lane *l = &to->area->lanes[g->rank];
    if (to->sent - see(&l->taken) >= SLOTS)
        return COLL_PENDING;
    slot *s = &l->slots[to->sent % SLOTS];
    s->envelope.tag = m->tag;
    s->envelope.bytes = m->bytes;
    int status = expose(g, m, &s->envelope);
    if (status != COLL_OK)
        return status;
    if (m->record < 0 && m->bytes)
        memcpy(s->data, m->memory, m->bytes);
    atomic_store_explicit(&s->number, ++to->sent, memory_order_release);
    atomic_fetch_add_explicit(&to->area->bell, 1, memory_order_release);
    coll_moves++;
    return COLL_OK;
}

/* Send what waits for a slot to one peer, in order. */
static void send_to(coll_p2p *g, struct peer *to) {
    while (to->sends.first) {
        coll_p2p_message *m = to->sends.first;
        int status = put(g, m);
        if (status == COLL_PENDING)
            return;
        list_remove(&to->sends, &to->sends.first);
        if (status == COLL_OK && m->record >= 0)
            list_add(&g->rendezvous, m);
        else
            coll_p2p_end(g, m, status);
    }
}

/* End the sends whose data have been copied. */
static void end_rendezvous(coll_p2p *g) {
    const area *own = g->peers[g->rank].area;
    for (coll_p2p_message **at = &g->rendezvous.first; *at;) {
        coll_p2p_message *m = *at;
        if (see(&own->records[m->record].state) % STATES == OPENED) {
            at = &m->next;
            continue;
        }
        list_remove(&g->rendezvous, at);
        coll_p2p_end(g, m, COLL_OK);
    }
}

/* ---- receiving */

static int matches(const coll_p2p_message *m, int source, const envelope *e) {
    return (m->peer == source || m->peer == COLL_P2P_ANY) && m->tag == e->tag;
}

/* Copy data from where the sender has them. COLL_OK or COLL_ERR_READ. */
static int copy_from(const coll_p2p *g, int source, const envelope *e, void *to) {
    const coll_p2p_peer *from = &g->peers[source].at;
    if (source == g->rank)
        memmove(to, (const void *)(uintptr_t)e->address, e->bytes);
    else if (e->offset && e->offset < from->limit && e->bytes <= from->limit - e->offset)
        memcpy(to, from->base + e->offset, e->bytes);
    else if (!g->reads_private || coll_heap_read_private(from->pid, to, e->address, e->bytes))
        return COLL_ERR_READ;
    return COLL_OK;
}

/* Give the data of a message to the receive that it matches, and end both. */
static void deliver(coll_p2p *g, coll_p2p_message *m, int source, const envelope *e, const unsigned char *data) {
    int status = e->bytes == m->bytes ? COLL_OK : COLL_ERR_MESSAGE;
    m->source = source;
    m->received = e->bytes;
    if (e->record >= RECORDS || (e->record < 0 && e->bytes > COLL_P2P_EAGER)) {
        status = COLL_ERR_READ;
    } else if (e->record < 0) {
        if (status == COLL_OK && e->bytes)
            memcpy(m->memory, data, e->bytes);
    } else {
        uint64_t opened = e->opened;
        _Atomic uint64_t *state = &g->peers[source].area->records[e->record].state;
        int copied = COLL_OK;
        if (status == COLL_OK && see(state) == opened) /* not after it was given up: the memory may be gone */
            copied = copy_from(g, source, e, m->memory);
        if (!atomic_compare_exchange_strong(state, &opened, opened - OPENED + COPIED))
            status = COLL_ERR_GIVEN_UP; /* the data may have changed while they were copied */
        else if (copied != COLL_OK)
            status = copied;
    }
    coll_p2p_end(g, m, status);
}

/* The first receive for a message, taken out of its queue; NULL: none has begun. */
static coll_p2p_message *receive_for(coll_p2p *g, int source, const envelope *e) {
    for (coll_p2p_message **at = &g->receives.first; *at; at = &(*at)->next)
        if (matches(*at, source, e)) {
            coll_p2p_message *m = *at;
            list_remove(&g->receives, at);
            return m;
        }
    return NULL;
}

/* Keep a message for a later receive; 0 without memory. */
static int keep(coll_p2p *g, int source, const slot *s) {
    unexpected *u = malloc(sizeof *u);
    if (!u)
        return 0;
    u->next = NULL;
    u->source = source;
    u->envelope = s->envelope;
    if (u->envelope.record < 0)
        memcpy(u->data, s->data, u->envelope.bytes <= COLL_P2P_EAGER ? u->envelope.bytes : 0);
    *g->early_end = u;
    g->early_end = &u->next;
    return 1;
}

/* Take the messages of one sender from their slots; 0 if memory for that is lacking. */
static int take_from(coll_p2p *g, int source) {
    struct peer *from = &g->peers[source];
    lane *l = &g->peers[g->rank].area->lanes[source];
    for (;;) {
        slot *s = &l->slots[from->taken % SLOTS];
        if (see(&s->number) != from->taken + 1)
            return 1;
        coll_p2p_message *m = receive_for(g, source, &s->envelope);
        if (m)
            deliver(g, m, source, &s->envelope, s->data);
        else if (!keep(g, source, s))
            return 0;
        atomic_store_explicit(&l->taken, ++from->taken, memory_order_release);
        coll_moves++;
    }
}

/* Take all messages that have come. The bell is read first: it rings again for what comes meanwhile. */
static void take(coll_p2p *g) {
    uint64_t bell = see(&g->peers[g->rank].area->bell);
    if (bell == g->heard)
        return;
    int all = 1;
    for (int source = 0; source < g->size; source++)
        all &= take_from(g, source);
    if (all)
        g->heard = bell;
}

/* ---- both */

int coll_p2p_move(coll_p2p *g) {
    unsigned before = coll_moves;
    if (g->pending == 0)
        return 0;
    take(g);
    if (g->rendezvous.first)
        end_rendezvous(g);
    for (int peer = 0; peer < g->size; peer++)
        if (g->peers[peer].sends.first)
            send_to(g, &g->peers[peer]);
    return coll_moves != before;
}

void coll_p2p_enqueue(coll_p2p *g, coll_p2p_message *m) {
    g->pending++;
    take(g); /* so that a message which came earlier is found among the early ones */
    if (!m->receives) {
        list_add(&g->peers[m->peer].sends, m);
        send_to(g, &g->peers[m->peer]);
        return;
    }
    for (unexpected **at = &g->early; *at; at = &(*at)->next) {
        unexpected *u = *at;
        if (!matches(m, u->source, &u->envelope))
            continue;
        *at = u->next;
        if (g->early_end == &u->next)
            g->early_end = at;
        deliver(g, m, u->source, &u->envelope, u->data);
        free(u);
        return;
    }
    list_add(&g->receives, m);
}

static int remove_from(list *l, const coll_p2p_message *m) {
    for (coll_p2p_message **at = &l->first; *at; at = &(*at)->next)
        if (*at == m) {
            list_remove(l, at);
            return 1;
        }
    return 0;
}

void coll_p2p_give_up(coll_p2p *g, coll_p2p_message *m) {
    if (m->status != COLL_PENDING)
        return;
    list *in = m->receives ? &g->receives : m->record >= 0 ? &g->rendezvous : &g->peers[m->peer].sends;
    if (!remove_from(in, m))
        return;
    int status = COLL_ERR_GIVEN_UP;
    if (m->record >= 0) {
        _Atomic uint64_t *state = &g->peers[g->rank].area->records[m->record].state;
        uint64_t opened = *state / STATES * STATES + OPENED;
        if (!atomic_compare_exchange_strong(state, &opened, opened - OPENED + WITHDRAWN))
            status = COLL_OK; /* the receiver has just copied them */
    }
    coll_p2p_end(g, m, status);
}
