/* What the parts of the heap share: all that is known of its blocks lies in private memory, out of the peers' reach.
 *
 *   heap.c         the shared memory: its making, its mapping by peers
 *   pages.c   runs of pages: which are free, which have memory behind them
 *   blocks.c  blocks of any length, as runs of pages or places in a slab
 *   forks.c   forked children, who go on reading what the parent gives back */
#ifndef COLL_HEAP_INTERNAL_H
#define COLL_HEAP_INTERNAL_H

#include "heap.h"

#include <errno.h>
#include <pthread.h>
#include <sys/types.h>

enum {
    LINE = 64,
    PAGE = 4096,
    HUGE = 2 << 20,
    CHUNK = 4 << 20, /* in a core dump as a whole, or not at all */
    SLAB_PAGES = 16, /* cut into places of one length */
    SMALL = 8 << 10, /* the longest place */
    CLASSES = 41,    /* lengths of places, in lines: coll_heap_step(SMALL / LINE) + 1 */
    BINS = 240,      /* of free runs, by length */
    WORDS = (BINS + 63) / 64,
};

/* KEPT and HOLE are free: with memory behind them, and without. */
typedef enum { KEPT, HOLE, RUN, SLAB } page_state;

typedef struct slab slab;
struct slab {              /* SLAB_PAGES pages cut into places of one length */
    slab *next, *previous; /* of its class, with free places */
    uint32_t first, born, class, free;
    uint64_t places[SLAB_PAGES * PAGE / LINE / 64]; /* bits: free */
};

/* What is known of a page. Of a run, the first and the last entry hold; of a slab all do. */
typedef struct {
    page_state state;
    uint32_t pages; /* of the run */
    union {
        struct { /* of a free run: its neighbours in the bin; 0: none */
            uint32_t next, previous;
        };
        struct {                  /* of a block */
            uint32_t born, slack; /* forks before it; bytes after its end */
        };
        slab *slab;
    };
} page;

typedef struct { /* children of one fork, and theirs; `end` is a pipe's, which they hold open at its other end */
    uint32_t fork;
    int end;
} family;

typedef struct { /* a block that was given back and that children may read still */
    char *block;
    uint32_t born, until; /* forks before its begin and its end */
} heirloom;

struct coll_heap {
    char *base;
    size_t size, reserved, kept; /* reserved: has memory; kept: of that, in free runs */
    uint64_t nonce;
    int fd, inherited; /* inherited: this is a forked child, and the heap its parent's */
    pid_t owner;
    pthread_mutex_t lock;
    coll_heap *next; /* in the list of this process's heaps */

    page *pages;
    uint32_t count, top, known; /* pages in all; handed out at some time; entries that can be written */
    uint32_t bins[HOLE + 1][BINS];
    uint64_t filled[HOLE + 1][WORDS]; /* bits: bins that have a run */
    uint32_t *backed;                 /* of each chunk, pages with memory */
    unsigned char *huge;              /* whether each 2 MiB have been asked for as a huge page */
    slab *slabs[CLASSES];

    uint32_t forks, young, forever; /* made; the last that has children alive, or may have for ever */
    int ends[2];                    /* of the pipe of the fork under way */
    family *families;
    heirloom *heirlooms;
    size_t nfamilies, nheirlooms, room, due; /* due: so many heirlooms, and the families are looked at */
};

extern pthread_mutex_t coll_heaps_lock;
extern coll_heap *coll_heaps;

static inline size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

static inline uint32_t page_of(const coll_heap *h, const void *p) {
    return (uint32_t)((size_t)((const char *)p - h->base) / PAGE);
}

/* Each number below 8, then eight steps from one power of two to the next: the step that n has reached. */
static inline unsigned coll_heap_step(uint32_t n) {
    if (n < 8)
        return n;
    unsigned power = 31 - (unsigned)__builtin_clz(n);
    return 8 * (power - 3) + (n >> (power - 3));
}

/* The tables of an empty heap that is mapped, and their end. 0, or -1 with errno set. */
int coll_heap_make_tables(coll_heap *);
void coll_heap_free_tables(coll_heap *);
/* A run of n pages that have memory behind them, to be labelled; 0 with errno set where there is none. */
uint32_t coll_heap_take_pages(coll_heap *, uint32_t n);
/* Gives a run of pages back, to be reused or to the system. */
void coll_heap_give_pages(coll_heap *, uint32_t first, uint32_t n);
/* Labels the ends of a run. */
void coll_heap_label(coll_heap *, uint32_t first, page);
/* Takes chunks without memory out of core dumps of this process. */
void coll_heap_hide_holes(const coll_heap *);

/* Whether forked children may read a block; a block that was given back is remembered until they cannot any more. */
static inline int coll_heap_is_heirloom(const coll_heap *h, uint32_t born) {
    return born < h->young;
}
void coll_heap_set_aside(coll_heap *, char *block, uint32_t born);
/* Looks which children have ended, and gives back what none of them reads any more; whether there was any. */
int coll_heap_settle(coll_heap *);
/* Gives a block back whatever children there are. */
void coll_heap_give_block(coll_heap *, char *block);
/* Has forks be noticed from now on. 0, or -1 with errno set. */
int coll_heap_watch_forks(void);
/* Whether this is a child of a process that had a heap. */
int coll_heap_in_child(void);
void coll_heap_forget_families(coll_heap *);

#endif
