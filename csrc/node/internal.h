/* What the files of the node-local engine share: the layout of the flags, and the group. */
#ifndef COLL_NODE_INTERNAL_H
#define COLL_NODE_INTERNAL_H

#include "base/error.h"
#include "node.h"

#include <limits.h>
#include <stdatomic.h>
#include <string.h>

enum { TURN, INLINE, ARRIVE, READ, SLICES, PULL, ENDED }; /* states of a call */
enum {
    LINE = 128, /* apart enough for prefetchers that fetch lines in pairs */
    LINES = 8,  /* calls that a rank which waits for nobody may be ahead of the others */
    GROUP = 16, /* ranks that read each other's lines in inline calls; more ranks form groups of so many */
};

/* Words and counters have the low bits of calls' numbers. Nobody takes an old one for a new one, since all are written
 * anew, a line in each of the LINES first calls of every RENEWED, long before the numbers in them come again. */
#ifdef COLL_MODEL
enum { WORD_BITS = 6, SIGNATURE_AT = 40, SEGMENT_BITS = 58, RENEWED = 16 };
#else
enum { WORD_BITS = 40, SIGNATURE_AT = WORD_BITS, SEGMENT_BITS = 32, RENEWED = 1 << 24 };
#endif
static const uint64_t INLINE_FLAG = (uint64_t)1 << 63;              /* in a word: the data are in the line */
static const uint64_t NUMBER_MASK = ((uint64_t)1 << WORD_BITS) - 1; /* in a word: the call's number */

/* What a rank says when it arrives at a call: where its data are. Offsets are in its heap; 0 is nowhere. */
typedef struct {
    uint64_t input, output, staging;
    uint64_t private; /* address of an input that others read in the memory of this process */
    uint64_t at;      /* its place in the ring */
    uint64_t lane;    /* elements of a segment for one receiver, and above 48 bits the slots of its ring */
    uint64_t table;   /* where its blocks begin in its input, if receivers cannot know */
} arrival;

static inline uint64_t lane_segment(const arrival *a) {
    return a->lane << 16 >> 16;
}

static inline uint64_t lane_slots(const arrival *a) {
    return a->lane >> 48;
}

typedef struct {
    _Alignas(LINE) _Atomic uint64_t word; /* call's number, and a signature of its arguments above it */
    union {
        unsigned char payload[COLL_NODE_INLINE];
        arrival arrival;
    };
} line;

typedef struct {
    _Alignas(LINE) _Atomic uint64_t word;
    unsigned char payload[GROUP * COLL_NODE_INLINE];
} bundle;

typedef struct {
    _Alignas(LINE) _Atomic uint64_t value;
} counter;

/* One rank's flags; it alone writes them. A line is written again LINES calls later, when all ranks have ended the call
 * that it was for. */
typedef struct {
    line lines[LINES];
    line results[LINES];   /* leaders of groups: the result of an inline call, for their members */
    bundle bundles[LINES]; /* leaders of groups: their members' lines side by side */
    counter staged;        /* segments copied in: call's number << SEGMENT_BITS | segments */
    counter reduced;       /* segments folded, or taken from all ranks */
    counter copied;        /* segments copied out */
    counter done;          /* calls in which it reads nobody's memory any more */
    counter given_up;      /* the first call that it will not end, 0: none; later ones neither */
    counter writing;       /* call in which it writes to other ranks' arrays at present, or 0 */
} area;

/* Places to stage in are taken in turn from a ring that is longer than a second-level cache: what another core has read
 * a moment ago is slow to write. Bytes of the ring, a power of two and several times as long as what a call may stage
 * before the others have arrived, for they may still read what it staged in the call before. */
#ifdef COLL_MODEL
enum { STAGING = 16 << 10 };
#else
enum { STAGING = 2 << 20 };
#endif
enum { LEAST = 4 << 10 };               /* of segments */
enum { COLL_NODE_ALL_TAKEN = INT_MAX }; /* more than the segments of any call */
enum { SECTORS = 16 };                  /* of the ring: who still reads is known for each */

/* How copies into memory that others read are made: see node_hand.c. */
struct handing {
    int far;      /* past the cache */
    int slow;     /* measured ones in a row that were slow */
    int rest;     /* copies until the next one is measured, */
    int patience; /* and after that one, if it is slow */
};

struct coll_node {
    int size, rank;
    coll_heap *heap;
    coll_node_limits limits;
    int reads_private;                 /* whether ranks may read each other's private memory */
    _Atomic uint64_t issued, finished; /* calls */
    char *work;                        /* staging ring, tables; allocated when they are first needed */
    size_t at;                         /* next place of the staging ring */
    int sector;                        /* the one that the last claim was in, or -1 */
    uint64_t users[SECTORS];           /* last call that staged something in each */
    uint64_t all_done;                 /* calls that all ranks are known to have ended */
    uint64_t history;                  /* of the calls so far, the same on all ranks */
    struct handing handing;
    const void **sources; /* per rank, for one fold */
    void **targets;       /* per rank, and one more */
    struct peer {
        char *base;
        size_t limit;
        int64_t pid;
        area *area;
        arrival arrival;     /* of the call under way, */
        const char *inlined; /* or the data in the line; */
        size_t first;        /* where this rank's block begins in its input; */
        int here, taken;     /* whether they are known; segments taken from it */
    } peers[];
};

static inline uint64_t progress_of(const coll_node_call *c, int segments) {
    return c->number << SEGMENT_BITS | (uint64_t)segments;
}

/* The model checker (tests/csrc/node_model.c) switches ranks at these points, and tests/csrc/node_lines.c counts what
 * is loaded and stored; otherwise both are compiled away. */
#ifdef COLL_MODEL
void coll_model_point(void);
void coll_model_load(const volatile void *from, size_t bytes);
void coll_model_store(const volatile void *to, size_t bytes);
#else
static inline void coll_model_point(void) {}
static inline void coll_model_load(const volatile void *from, size_t bytes) {
    (void)from, (void)bytes;
}
static inline void coll_model_store(const volatile void *to, size_t bytes) {
    (void)to, (void)bytes;
}
#endif

static inline uint64_t see(const _Atomic uint64_t *flag) {
    coll_model_point();
    coll_model_load(flag, sizeof *flag);
    return atomic_load_explicit(flag, memory_order_acquire);
}

/* Whether a number does not come before another one; numbers wrap. */
static inline int not_before(uint64_t number, uint64_t other) {
    return (int64_t)(number - other) >= 0;
}

/* Whether a counter has come so far. */
static inline int reached(const counter *counter, uint64_t value) {
    return not_before(see(&counter->value), value);
}

static inline void publish(_Atomic uint64_t *flag, uint64_t value) {
    coll_model_point();
    coll_model_store(flag, sizeof *flag);
    atomic_store_explicit(flag, value, memory_order_release);
    coll_model_point();
}

/* Copies between private and shared memory. */
static inline void move(void *to, const void *from, size_t bytes) {
    coll_model_load(from, bytes);
    coll_model_store(to, bytes);
#ifdef COLL_MODEL
    for (; bytes > 64; bytes -= 64, to = (char *)to + 64, from = (const char *)from + 64) {
        coll_model_point();
        memcpy(to, from, 64);
    }
    coll_model_point();
#endif
    if (bytes < COLL_COPY_FROM)
        memcpy(to, from, bytes);
    else
        coll_copy(to, from, bytes);
}

/* hand.c */
enum { HAND_FROM = 8 << 10, HAND_PIECE = 16 << 10 };
void coll_node_hand_long(struct handing *, void *to, const void *from, size_t bytes);
/* Folds to the first of two targets, and takes the result past the cache to the second. */
int coll_node_fold_and_hand(coll_node_call *, int sources, size_t elements);

/* Copies into memory that other ranks read. */
static inline void hand(coll_node *n, void *to, const void *from, size_t bytes) {
#ifndef COLL_MODEL
    if (bytes >= HAND_FROM) {
        coll_node_hand_long(&n->handing, to, from, bytes);
        return;
    }
#else
    (void)n;
#endif
    move(to, from, bytes);
}

/* Copies from the private memory of another rank. */
static inline int read_private(int64_t pid, void *to, const void *from, size_t bytes) {
#ifdef COLL_MODEL
    (void)pid; /* its ranks share one process */
    move(to, from, bytes);
    return COLL_OK;
#else
    return coll_heap_read_private(pid, to, (uint64_t)(uintptr_t)from, bytes) ? COLL_ERR_READ : COLL_OK;
#endif
}

static inline area *own_area(const coll_node *n) {
    return n->peers[n->rank].area;
}

static inline size_t bytes_of(const coll_node_call *c) {
    return c->message.count * c->message.itemsize;
}

static inline size_t lines_of(size_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Whether a rank gets the result of a reduction that all ranks' slices make up. */
static inline int coll_node_wants(const coll_node_call *c, int q) {
    return c->message.kind == COLL_NODE_ALLREDUCE || q == c->message.root;
}

static inline line *own_line(const coll_node_call *c) {
    return &own_area(c->node)->lines[c->number % LINES];
}

/* Where p is in the own heap, or 0. */
static inline uint64_t offset_in_heap(const coll_node *n, const void *p) {
    const struct peer *self = &n->peers[n->rank];
    return coll_heap_has(self->base, self->limit, p) ? (uint64_t)((const char *)p - self->base) : 0;
}

/* node.c */

/* Whether rank q's line is that of this call: COLL_OK, COLL_PENDING or COLL_ERR_MESSAGE. */
int coll_node_arrived(const coll_node_call *c, int q);
/* Whether all ranks have arrived at this call; if so, they have ended the one before. */
static inline int coll_node_all_here(const coll_node_call *c) {
    coll_node *n = c->node;
    for (int i = n->size, q = n->rank; --i > 0;) {
        q = q + 1 < n->size ? q + 1 : 0;
        int error = coll_node_arrived(c, q);
        if (error)
            return error;
    }
    n->all_done = c->number - 1;
    return COLL_OK;
}
/* Whether all ranks have ended call `number` and all before it. */
int coll_node_all_ended(coll_node *n, uint64_t number);
/* Whether nobody reads [at, at + bytes) of the own staging ring, which are next in turn, for an earlier call; if so,
 * they are this call's. */
int coll_node_claim(coll_node_call *c, size_t at, size_t bytes);
/* The call's place begins at `at`, the next one's at `next`. */
void coll_node_advance(coll_node_call *c, size_t at, size_t next);
int coll_node_allocate(coll_node *n);
size_t coll_node_segment_bytes(const coll_node *n, size_t bytes);
/* The staging ring, and a table for each line, which is there as long as the line. */
size_t coll_node_work_bytes(const coll_node *n);
size_t coll_node_table_at(const coll_node *n, uint64_t number);

/* give_up.c */

/* Whether rank q has given up this call: what is in its arrays, of those it arrived with, is no longer of the call. */
static inline int coll_node_gave_up(const coll_node_call *c, int q) {
    uint64_t first = see(&c->node->peers[q].area->given_up.value);
    return first && not_before(c->number, first);
}
/* The same of any rank; what was read before is read by then. */
int coll_node_given_up(const coll_node_call *c);
/* Around writing to other ranks' arrays; COLL_ERR_GIVEN_UP where one of them has given up the call. */
int coll_node_enter(const coll_node_call *c);
int coll_node_leave(const coll_node_call *c);
/* What a line says once its call is given up: the same call's number, and another signature. */
static inline uint64_t coll_node_taken_back(uint64_t word) {
    return word ^ (~NUMBER_MASK & ~INLINE_FLAG);
}

/* check.c */

/* Whether what rank q has said, and peers[q].arrival has a copy of, can be: of a call whose data all ranks share, */
int coll_node_places_ok(const coll_node_call *c, int q);
/* and of one where ranks pull; then peers[q].first is known as well. */
int coll_node_lane_ok(const coll_node_call *c, int q);
/* Whether what rank q has for this rank is in its line. */
int coll_node_expects_inline(const coll_node_call *c, int q);

/* fold.c */

/* The first `sources` sources -> q targets, by kernel or user-defined op. */
int coll_node_fold(coll_node_call *c, int sources, int q, size_t elements, int stream);

/* The phases; each returns COLL_OK, COLL_PENDING or an error. */

/* inline.c: all-reduce of what fits in lines. */
void coll_node_inline_begin(coll_node_call *c);
int coll_node_inline(coll_node_call *c);
int coll_node_inline_waits_for(const coll_node_call *c, int q);
/* phases.c: all-reduce, and reduce of long vectors, after arrival. */
int coll_node_read(coll_node_call *c);
int coll_node_slices(coll_node_call *c);
int coll_node_slices_waits_for(const coll_node_call *c, int q);
/* Copies in what may be copied in before the others have arrived. */
void coll_node_stage(coll_node_call *c);
/* pull.c: all other collectives. */
int coll_node_pull_begin(coll_node_call *c);
int coll_node_pull(coll_node_call *c);

#endif
