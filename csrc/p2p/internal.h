/* What the files of point-to-point messages share: the areas in the heaps, and the group. */
#ifndef COLL_P2P_INTERNAL_H
#define COLL_P2P_INTERNAL_H

#include "base/error.h"
#include "p2p.h"

#include <pthread.h>
#include <stdatomic.h>

#ifndef COLL_P2P_PIECE /* tests make it shorter */
#define COLL_P2P_PIECE (4 << 20)
#endif

enum {
    LINE = 128,   /* distance of what different ranks write: some prefetchers fetch cache lines in pairs */
    SLOTS = 8,    /* messages of one sender that may wait for one receiver to look; later ones wait at the sender */
    RECORDS = 64, /* records that are allocated together */
    PIECE = COLL_P2P_PIECE, /* bytes that are copied at a time: a wait looks at signals in between */
};

/* By a record the sender and the receiver of a rendezvous agree about its end. It is in the sender's heap. */
typedef struct record {
    _Alignas(64) _Atomic uint64_t state;
    struct record *next; /* for the owner: the next one that is free */
} record;

/* Records live as long as the group, since a receiver looks at the record of a rendezvous that was given up long ago.
 */
typedef struct block {
    _Alignas(64) struct block *next;
    record records[RECORDS];
} block;

typedef coll_p2p_envelope envelope;

typedef struct {
    _Alignas(LINE) _Atomic uint64_t number; /* of the message in the slot, counted from 1 by sender and receiver */
    envelope envelope;
    unsigned char data[COLL_P2P_EAGER];
} slot;

/* From one sender to the owner of the area. */
typedef struct {
    slot slots[SLOTS];
    _Alignas(LINE) _Atomic uint64_t taken; /* number of the last message that the receiver has taken from its slot */
} lane;

/* The states of a record: 4 times a number that grows, plus one of these. REFUSED: the receive has been given up. */
enum { REFUSED = 0, OPENED = 1, COPIED = 2, WITHDRAWN = 3, STATES = 4 };

typedef struct {
    _Alignas(LINE) _Atomic uint64_t bell; /* messages that came to the owner of the area */
    lane lanes[];                         /* by sender */
} area;

/* A message that came before the receive for it. */
typedef struct unexpected {
    struct unexpected *next;
    int source;
    envelope envelope;
    unsigned char data[COLL_P2P_EAGER];
} unexpected;

/* A list of messages, in order. */
typedef struct {
    coll_p2p_message *first, **end;
} list;

struct coll_p2p {
    coll_heap *heap;
    int size, rank, reads_private;
    pthread_mutex_t lock; /* guards all below, and every message that has not ended */
    uint64_t heard;       /* the bell, when this rank last looked through the lanes */
    list receives;        /* for which no message has come */
    list copying;         /* receives whose data this rank copies, piece by piece */
    list rendezvous;      /* sends whose data the receiver may copy now */
    unexpected *early, **early_end;
    record *free_records;
    block *blocks;
    int pending; /* messages that have not ended */
    int served;  /* whether `server` is in the queue of non-blocking calls, or about to be */
    coll_request server;
    struct peer {
        coll_p2p_peer at;
        area *area;
        uint64_t sent, taken; /* numbers of the last message to this peer, and of the last one from it */
        list sends;           /* to this peer, for which there is no slot or no record yet */
    } peers[];
};

/* queues.c; all with the lock held. */

/* Move on what can be moved; returns whether anything was. */
int coll_p2p_move(coll_p2p *);
/* Put a new message in its queue. */
void coll_p2p_enqueue(coll_p2p *, coll_p2p_message *);
/* End a message with a status, and free what it had. */
void coll_p2p_end(coll_p2p *, coll_p2p_message *, int status);
/* Take a message out of its queue, and end it with COLL_ERR_GIVEN_UP, unless it has ended. */
void coll_p2p_give_up(coll_p2p *, coll_p2p_message *);

static inline void list_init(list *l) {
    l->first = NULL;
    l->end = &l->first;
}

static inline void list_add(list *l, coll_p2p_message *m) {
    m->next = NULL;
    *l->end = m;
    l->end = &m->next;
}

/* Remove the message to which `at`, a link of the list, leads. */
static inline void list_remove(list *l, coll_p2p_message **at) {
    coll_p2p_message *m = *at;
    *at = m->next;
    if (l->end == &m->next)
        l->end = at;
}

#endif
