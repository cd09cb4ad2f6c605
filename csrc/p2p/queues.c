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
    record *r = m->record;
    if (r) {
        r->next = g->free_records;
        g->free_records = r;
    }
    m->staging = m->record = NULL;
    g->pending--;
    coll_moves++;
    atomic_store_explicit(&m->status, status, memory_order_release); /* last: from here on the owner may free it */
}

/* ---- sending */

/* Allocate more records; 0 without memory. */
static int add_records(coll_p2p *g) {
    block *made = coll_heap_alloc(g->heap, sizeof *made);
    if (!made)
        return 0;
    memset(made, 0, sizeof *made);
    made->next = g->blocks;
    g->blocks = made;
    for (int i = 0; i < RECORDS; i++) {
        made->records[i].next = g->free_records;
        g->free_records = &made->records[i];
    }
    return 1;
}

/* Open a record for a message, of which there is one; the value of its state says that the receiver may copy. */
static void open_record(coll_p2p *g, coll_p2p_message *m, envelope *e) {
    record *r = g->free_records;
    g->free_records = r->next;
    m->record = r;
    e->record = (uint64_t)((const char *)r - g->peers[g->rank].at.base);
    e->opened = (r->state / STATES + 1) * STATES + OPENED;
    atomic_store_explicit(&r->state, e->opened, memory_order_relaxed); /* published with the slot */
}

/* Fill in where the receiver finds the data. COLL_OK, an error, or COLL_PENDING if memory is lacking which the end of
 * other messages frees. */
static int expose(coll_p2p *g, coll_p2p_message *m, envelope *e) {
    const coll_p2p_peer *own = &g->peers[g->rank].at;
    const void *data = m->memory;
    e->record = 0;
    if (m->bytes <= COLL_P2P_EAGER)
        return COLL_OK;
    if (!g->free_records && !add_records(g))
        return g->rendezvous.first ? COLL_PENDING : COLL_ERR_MEMORY;
    if (!g->reads_private && m->peer != g->rank && !coll_heap_has(own->base, own->limit, data)) {
        m->staging = coll_heap_alloc(g->heap, m->bytes);
        if (!m->staging)
            return g->rendezvous.first ? COLL_PENDING : COLL_ERR_MEMORY;
        data = memcpy(m->staging, data, m->bytes);
    }
    open_record(g, m, e);
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
    if (!m->record && m->bytes)
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
        if (status == COLL_OK && m->record)
            list_add(&g->rendezvous, m);
        else
            coll_p2p_end(g, m, status);
    }
}

/* End the sends whose data have been copied, or whose receives have been given up. */
static void end_rendezvous(coll_p2p *g) {
    for (coll_p2p_message **at = &g->rendezvous.first; *at;) {
        coll_p2p_message *m = *at;
        uint64_t state = see(&((record *)m->record)->state) % STATES;
        if (state == OPENED) {
            at = &m->next;
            continue;
        }
        list_remove(&g->rendezvous, at);
        coll_p2p_end(g, m, state == COPIED ? COLL_OK : COLL_ERR_GIVEN_UP);
    }
}

/* ---- receiving */

static int matches(const coll_p2p_message *m, int source, const envelope *e) {
    return (m->peer == source || m->peer == COLL_P2P_ANY) && m->tag == e->tag;
}

/* The state of the record of a rendezvous; NULL if what the sender tells is wrong. */
static _Atomic uint64_t *state_of(const coll_p2p *g, int source, const envelope *e) {
    const coll_p2p_peer *from = &g->peers[source].at;
    int ok = e->record % 64 == 0 && e->record < from->limit && sizeof(record) <= from->limit - e->record;
    return ok ? &((record *)(from->base + e->record))->state : NULL;
}

/* Copy a piece of the data from where the sender has them. COLL_OK or COLL_ERR_READ. */
static int copy_piece(const coll_p2p *g, const coll_p2p_message *m, size_t bytes) {
    const coll_p2p_peer *from = &g->peers[m->source].at;
    const envelope *e = &m->envelope;
    void *to = (char *)m->memory + m->copied;
    if (m->source == g->rank)
        memmove(to, (const char *)(uintptr_t)e->address + m->copied, bytes);
    else if (e->offset && e->offset < from->limit && e->bytes <= from->limit - e->offset)
        memcpy(to, from->base + e->offset + m->copied, bytes);
    else if (!g->reads_private || coll_heap_read_private(from->pid, to, e->address + m->copied, bytes))
        return COLL_ERR_READ;
    return COLL_OK;
}

/* End a receive by rendezvous, and tell the sender. If the sender has given it up, the data may have changed while they
 * were copied. */
static void end_copy(coll_p2p *g, coll_p2p_message *m, int status) {
    uint64_t opened = m->envelope.opened, closed = opened - OPENED + (status == COLL_ERR_GIVEN_UP ? REFUSED : COPIED);
    if (!atomic_compare_exchange_strong(state_of(g, m->source, &m->envelope), &opened, closed))
        status = COLL_ERR_GIVEN_UP;
    coll_p2p_end(g, m, status);
}

/* Copy the next piece of a receive by rendezvous, which is in no list, and end it after the last piece. */
static void copy_on(coll_p2p *g, coll_p2p_message *m) {
    const envelope *e = &m->envelope;
    size_t left = m->bytes - m->copied, bytes = left < PIECE || m->source == g->rank ? left : PIECE;
    int status = COLL_OK, goes_on = see(state_of(g, m->source, e)) == e->opened; /* else its memory may be gone */
    if (goes_on)
        status = copy_piece(g, m, bytes);
    m->copied += bytes;
    coll_moves++;
    if (status == COLL_OK && goes_on && m->copied < m->bytes)
        list_add(&g->copying, m);
    else
        end_copy(g, m, status);
}

/* Give the data of a message to the receive that it matches. */
static void deliver(coll_p2p *g, coll_p2p_message *m, int source, const envelope *e, const unsigned char *data) {
    int status = e->bytes == m->bytes ? COLL_OK : COLL_ERR_MESSAGE;
    m->source = source;
    m->received = e->bytes;
    m->envelope = *e;
    m->copied = 0;
    if (e->record ? !state_of(g, source, e) : e->bytes > COLL_P2P_EAGER) {
        coll_p2p_end(g, m, COLL_ERR_READ);
    } else if (!e->record) {
        if (status == COLL_OK && e->bytes)
            memcpy(m->memory, data, e->bytes);
        coll_p2p_end(g, m, status);
    } else if (status == COLL_OK) {
        copy_on(g, m);
    } else {
        end_copy(g, m, status);
    }
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
    if (!u->envelope.record)
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
    coll_p2p_message *copied = g->copying.first;
    if (copied) {
        list_remove(&g->copying, &g->copying.first);
        copy_on(g, copied);
    }
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
    if (m->receives) {
        if (remove_from(&g->receives, m))
            coll_p2p_end(g, m, COLL_ERR_GIVEN_UP);
        else if (remove_from(&g->copying, m))
            end_copy(g, m, COLL_ERR_GIVEN_UP);
        return;
    }
    record *r = m->record;
    if (!remove_from(r ? &g->rendezvous : &g->peers[m->peer].sends, m))
        return;
    int status = COLL_ERR_GIVEN_UP;
    if (r) {
        uint64_t opened = r->state / STATES * STATES + OPENED;
        if (!atomic_compare_exchange_strong(&r->state, &opened, opened - OPENED + WITHDRAWN))
            status = opened % STATES == COPIED ? COLL_OK : status; /* the receiver has just copied them */
    }
    coll_p2p_end(g, m, status);
}
