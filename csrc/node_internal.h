/* What the files of the node-local engine share: the layout of the flags, and the group. */
#ifndef COLL_NODE_INTERNAL_H
#define COLL_NODE_INTERNAL_H

#include "node.h"

#include <stdatomic.h>
#include <string.h>

enum {
    LINE = 128, /* apart enough for prefetchers that fetch lines in pairs */
    NUMBER_BITS = 40,
};

/* What a rank says when it arrives at a call: its data, or where they are. Offsets are in its heap; 0 is nowhere. */
typedef struct {
    uint64_t input, output, staging, results;
} arrival;

typedef struct {
    _Alignas(LINE) _Atomic uint64_t word; /* call's number, and a signature of its arguments above it */
    union {
        unsigned char payload[COLL_NODE_INLINE];
        arrival arrival;
    };
} line;

typedef struct {
    _Alignas(LINE) _Atomic uint64_t value;
} counter;

/* One rank's flags; it alone writes them. A line is written again two calls later: by then every rank has completed the
 * call between, and so the one before it. */
typedef struct {
    line lines[2];
    counter staged;  /* segments copied in: call's number << 24 | segments */
    counter reduced; /* segments of the own slice folded */
    counter copied;  /* segments copied out */
    counter done;    /* calls in which it reads nobody's memory any more */
} area;

/* Places to stage in are taken in turn from a ring that is longer than a second-level cache: what another core has read
 * a moment ago is slow to write. Bytes of the ring, a power of two and several times as long as what a call may stage
 * before the others have arrived, for they may still read what it staged in the call before. */
#ifdef COLL_MODEL
enum { STAGING = 16 << 10 };
#else
enum { STAGING = 2 << 20 };
#endif
enum {
    LEAST = 4 << 10,
    SHORTEST = 16 << 10,
    RESULT_SLACK = 256
}; /* of segments: ever, and by choice; and of results */

struct coll_node {
    int size, rank;
    coll_heap *heap;
    coll_node_limits limits;
    _Atomic uint64_t issued, finished; /* calls */
    char *work;                        /* staging ring, result ring; allocated when they are first needed */
    size_t at;                         /* next place of the staging ring */
    const void **sources;              /* per rank, for one fold */
    void **targets;                    /* per rank, and one more */
    struct peer {
        char *base;
        size_t limit;
        area *area;
        arrival arrival; /* of the call under way */
    } peers[];
};

static inline uint64_t progress_of(const coll_node_call *c, int segments) {
    return c->number << 24 | (uint64_t)segments;
}

/* The model checker (tests/csrc/node_model.c) switches ranks at these points, the others are compiled away. */
#ifdef COLL_MODEL
void coll_model_point(void);
#else
static inline void coll_model_point(void) {}
#endif

static inline uint64_t see(const _Atomic uint64_t *flag) {
    coll_model_point();
    return atomic_load_explicit(flag, memory_order_acquire);
}

static inline void publish(_Atomic uint64_t *flag, uint64_t value) {
    coll_model_point();
    atomic_store_explicit(flag, value, memory_order_release);
    coll_model_point();
}

/* Copies between private and shared memory. */
static inline void move(void *to, const void *from, size_t bytes) {
#ifdef COLL_MODEL
    for (; bytes > 64; bytes -= 64, to = (char *)to + 64, from = (const char *)from + 64) {
        coll_model_point();
        memcpy(to, from, 64);
    }
    coll_model_point();
#endif
    memcpy(to, from, bytes);
}

static inline area *own_area(const coll_node *n) {
    return n->peers[n->rank].area;
}

/* sources -> q targets, by kernel or user-defined op. */
int coll_node_fold(coll_node_call *c, int q, size_t elements, int stream);
/* The phases after arrival; each returns COLL_OK, COLL_PENDING or an error. */
int coll_node_read(coll_node_call *c);
int coll_node_slices(coll_node_call *c);
/* Copies in what may be copied in before the others have arrived. */
void coll_node_stage(coll_node_call *c);

#endif
