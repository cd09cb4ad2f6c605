/* Shared by the files of the node-local engine: the layout of the flags, and the group. */
#ifndef COLL_NODE_INTERNAL_H
#define COLL_NODE_INTERNAL_H

#include "base/error.h"
#include "node.h"

#include <limits.h>
#include <stdatomic.h>
#include <string.h>

enum { TURN, INLINE, ARRIVE, READ, SLICES, PULL, ENDED }; /* states of a call */
enum {
    LINE = 128, /* distance of flags: some prefetchers fetch cache lines in pairs */
    LINES = 8,  /* how many calls a rank that waits for nobody may be ahead of the others */
    GROUP = 16, /* the most ranks that read each other's lines in inline calls; more ranks form groups of this size */
};

/* Words and counters contain the low bits of the number of a call. An old value is never taken for a new one: in the
 * first LINES calls of every RENEWED all are rewritten, one line per call, long before the low bits repeat. */
#ifdef COLL_MODEL
enum { WORD_BITS = 6, SIGNATURE_AT = 40, SEGMENT_BITS = 58, RENEWED = 16 };
#else
enum { WORD_BITS = 40, SIGNATURE_AT = WORD_BITS, SEGMENT_BITS = 32, RENEWED = 1 << 24 };
#endif
static const uint64_t INLINE_FLAG = (uint64_t)1 << 63;              /* bit of a word: the data are in the line */
static const uint64_t NUMBER_MASK = ((uint64_t)1 << WORD_BITS) - 1; /* bits of a word: the number of the call */

typedef struct {
    size_t first, count; /* elements */
} range;

/* What a rank publishes when it arrives at a call: where its data are. Offsets are in its heap; 0 means not there. */
typedef struct {
    uint64_t input, output, staging;
    uint64_t private; /* address of an input that others read from the private memory of this process */
    uint64_t at;      /* start of the call's place in the staging ring */
    uint64_t part;    /* elements of a segment for one receiver; from bit 48 on, the slots of the ring */
    uint64_t table;   /* offset of a table of the receivers' blocks in the input, if receivers do not know them */
} arrival;

static inline uint64_t part_segment(const arrival *a) {
    return a->part << 16 >> 16;
}

static inline uint64_t part_slots(const arrival *a) {
    return a->part >> 48;
}

typedef struct {
    _Alignas(LINE) _Atomic uint64_t word; /* number of the call, and above it a signature of its arguments */
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

/* The flags of one rank, which only this rank writes. A line is reused LINES calls later, when all ranks have ended the
 * call that used it. */
typedef struct {
    line lines[LINES];
    line results[LINES];   /* of leaders: the result of an inline call, for their members */
    bundle bundles[LINES]; /* of leaders: their members' lines side by side */
    counter staged;        /* segments copied in: number of the call << SEGMENT_BITS | segments */
    counter reduced;       /* segments folded, or taken from all ranks */
    counter copied;        /* segments copied out */
    counter done;          /* number of the last call in which it no longer reads other ranks' memory */
    counter given_up;      /* the first call that it will not end, nor any later one; 0: none */
    counter writing;       /* number of the call in which it writes to other ranks' arrays at present, or 0 */
} area;

/* Staging memory is taken in turn from a ring that is larger than a second-level cache: memory that another core has
 * just read is slow to write. The size of the ring is a power of two, several times what a call may stage before the
 * others have arrived, since these may still read what the call before has staged. */
#ifdef COLL_MODEL
enum { STAGING = 16 << 10, AT_ONCE = 1 << 10 };
#else
enum { STAGING = 2 << 20, AT_ONCE = 32 << 20 };
#endif
/* AT_ONCE is about how many bytes a rank copies, or reads to fold them, before it returns from a long call, though more
 * could be done: whoever waits looks at signals and the clock then, and the arrays of a rank that gives up are free
 * soon. It takes some milliseconds. A return costs up to 40 us with Open MPI: with 4 MiB, long calls took 4 % longer.
 */
enum { LEAST = 4 << 10 };               /* the least bytes of a segment */
enum { COLL_NODE_ALL_TAKEN = INT_MAX }; /* stands for all segments; more than any call has */
enum { SECTORS = 16 };                  /* parts of the ring for each of which the last user is recorded */

/* How copies into memory that others read are made; see hand.c. */
struct handing {
    int far;      /* whether copies bypass the cache */
    int slow;     /* consecutive timed copies that were slow */
    int rest;     /* copies until the next one is timed */
    int patience; /* copies after that one until the next, if it is slow */
};

struct coll_node {
    int size, rank;
    coll_heap *heap;
    coll_node_limits limits;
    int reads_private;                 /* whether ranks may read each other's private memory */
    _Atomic uint64_t issued, finished; /* numbers of the last call begun and of the last one ended */
    char *work;                        /* staging ring and tables; allocated at the first use */
    size_t at;                         /* next free place of the staging ring */
    int sector;                        /* the sector of the last claim, or -1 */
    uint64_t users[SECTORS];           /* per sector: the last call that staged data in it */
    uint64_t all_done;                 /* all ranks are known to have ended this call and earlier ones */
    uint64_t history;                  /* hash of the calls so far, the same on all ranks */
    struct handing handing;            /* copies into this rank's ring, */
    struct handing storing;            /* results into other ranks' arrays */
    const void **sources;              /* one per rank, for one fold */
    void **targets;                    /* one per rank, and one more */
    struct peer {
        char *base;
        size_t limit;
        int64_t pid;
        area *area;
        arrival arrival;     /* of the present call, */
        const char *inlined; /* or the data in its line */
        size_t first;        /* where this rank's block begins in the peer's input */
        int here, taken;     /* 1: arrival is known, 2: inlined is; number of segments taken from the peer */
    } peers[];
};

static inline uint64_t progress_of(const coll_node_call *c, int segments) {
    return c->number << SEGMENT_BITS | (uint64_t)segments;
}

/* At these points the model checker (tests/csrc/node_model.c) switches ranks, and tests/csrc/node_lines.c counts loads
 * and stores. In ordinary builds they are empty. */
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

/* Read a flag of any rank. */
static inline uint64_t see(const _Atomic uint64_t *flag) {
    coll_model_point();
    coll_model_load(flag, sizeof *flag);
    return atomic_load_explicit(flag, memory_order_acquire);
}

/* Whether `number` is not before `other`; numbers wrap around. */
static inline int not_before(uint64_t number, uint64_t other) {
    return (int64_t)(number - other) >= 0;
}

/* Whether a counter has reached `value`. */
static inline int reached(const counter *counter, uint64_t value) {
    return not_before(see(&counter->value), value);
}

/* Write a flag of this rank. */
static inline void publish(_Atomic uint64_t *flag, uint64_t value) {
    coll_model_point();
    coll_model_store(flag, sizeof *flag);
    atomic_store_explicit(flag, value, memory_order_release);
    coll_model_point();
}

/* Copy between private and shared memory. */
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
/* Fold into the first of two targets, and copy the result past the cache to the second. */
int coll_node_fold_and_hand(coll_node_call *, int sources, size_t elements);
/* Fold into results on heaps, all but one of which are other ranks': past the cache if the results would not stay in it
 * anyway, or if stores through it have been found slow. */
int coll_node_fold_to_outputs(coll_node_call *, int sources, int targets, size_t elements);

/* Copy into memory that other ranks read. */
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

/* Copy from the private memory of process `pid`. COLL_OK or COLL_ERR_READ. */
static inline int read_private(int64_t pid, void *to, const void *from, size_t bytes) {
#ifdef COLL_MODEL
    (void)pid; /* in the model all ranks are in one process */
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

/* Elements that make up AT_ONCE bytes, or one. */
static inline size_t elements_at_once(const coll_node_call *c) {
    return c->message.itemsize < AT_ONCE ? AT_ONCE / c->message.itemsize : 1;
}

static inline size_t lines_of(size_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Whether rank q needs the whole result of an all-reduce or reduce that is folded in slices. */
static inline int coll_node_wants(const coll_node_call *c, int q) {
    return c->message.kind == COLL_NODE_ALLREDUCE || q == c->message.root;
}

static inline line *own_line(const coll_node_call *c) {
    return &own_area(c->node)->lines[c->number % LINES];
}

/* The offset of p in this rank's heap, or 0 if it is not there. */
static inline uint64_t offset_in_heap(const coll_node *n, const void *p) {
    const struct peer *self = &n->peers[n->rank];
    return coll_heap_has(self->base, self->limit, p) ? (uint64_t)((const char *)p - self->base) : 0;
}

/* node.c */

/* Whether rank q has arrived at this call: COLL_OK, COLL_PENDING, COLL_ERR_MESSAGE, or COLL_ERR_GIVEN_UP. */
int coll_node_arrived(const coll_node_call *c, int q);
/* Whether all ranks have arrived at this call (and so have ended the one before); status as of coll_node_arrived. */
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
/* Whether all ranks have ended call `number` and all earlier ones. */
int coll_node_all_ended(coll_node *n, uint64_t number);
/* Claim [at, at + bytes) of this rank's staging ring, which must be next in turn, for this call. Returns 0 if other
 * ranks may still read it for an earlier call. */
int coll_node_claim(coll_node_call *c, size_t at, size_t bytes);
/* Set the start of this call's place in the ring to `at`, and of the next call's to `next`. */
void coll_node_advance(coll_node_call *c, size_t at, size_t next);
int coll_node_allocate(coll_node *n);
size_t coll_node_segment_bytes(const coll_node *n, size_t bytes);
/* Bytes of the staging ring and of the tables: one for each line, in use as long as the line. */
size_t coll_node_work_bytes(const coll_node *n);
size_t coll_node_table_at(const coll_node *n, uint64_t number);

/* give_up.c */

/* Whether rank q has given up this call: the arrays with which it arrived may no longer hold the call's data. */
static inline int coll_node_gave_up(const coll_node_call *c, int q) {
    uint64_t first = see(&c->node->peers[q].area->given_up.value);
    return first && not_before(c->number, first);
}
/* COLL_ERR_GIVEN_UP if any rank has given up this call, else COLL_OK; reads made before are complete by then. */
int coll_node_given_up(const coll_node_call *c);
/* Called before and after writes to other ranks' arrays; COLL_ERR_GIVEN_UP if a rank has given up the call. */
int coll_node_enter(const coll_node_call *c);
int coll_node_leave(const coll_node_call *c);
/* The word of a line whose call was given up: the same number, and another signature. */
static inline uint64_t coll_node_taken_back(uint64_t word) {
    return word ^ (~NUMBER_MASK & ~INLINE_FLAG);
}

/* check.c */

/* Whether the arrival in peers[q].arrival is valid, for calls in which all ranks share all data. */
int coll_node_places_ok(const coll_node_call *c, int q);
/* Whether it is valid for calls in which ranks pull; sets peers[q].first. */
int coll_node_part_ok(const coll_node_call *c, int q);
/* Whether the data that rank q has for this rank must be in its line. */
int coll_node_expects_inline(const coll_node_call *c, int q);

/* fold.c */

/* Fold the first `sources` of n->sources into q targets, by a kernel or a user-defined op. COLL_OK or an error. */
int coll_node_fold(coll_node_call *c, int sources, int q, size_t elements, int stream);

/* The phases; each returns COLL_OK, COLL_PENDING or an error. */

/* inline.c: all-reduce of vectors that fit in a line. */
void coll_node_inline_begin(coll_node_call *c);
int coll_node_inline(coll_node_call *c);
int coll_node_inline_waits_for(const coll_node_call *c, int q);
/* phases.c: all-reduce and reduce of long vectors, after all have arrived. */
int coll_node_read(coll_node_call *c);
int coll_node_slices(coll_node_call *c);
int coll_node_slices_waits_for(const coll_node_call *c, int q);
/* Copy in the segments that may be copied before other ranks have arrived. */
void coll_node_stage(coll_node_call *c);
/* publish.c: publish this rank's data in all other collectives. */
int coll_node_publish_input(coll_node_call *c);
/* pull.c: all other collectives. */
int coll_node_pull_begin(coll_node_call *c);
int coll_node_pull(coll_node_call *c);

#endif
