/* Shared by the files of the heap. All data about blocks are in private memory, where peers cannot write.
 *
 *   heap.c    the shared memory: creation, and mapping by peers
 *   pages.c   runs of pages: which are free, which have memory
 *   room.c    the memory that the system still has for this process
 *   blocks.c  blocks of any length, as runs of pages or as places in a slab
 *   forks.c   forked children, which may still read blocks that the parent frees */
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
    CHUNK = 4 << 20, /* unit that is included in core dumps or not */
    SLAB_PAGES = 16, /* pages of a slab, cut into places of one length */
    SMALL = 8 << 10, /* bytes of the longest place */
    CLASSES = 41,    /* of lengths of places: coll_heap_step(SMALL / LINE) + 1 */
    BINS = 240,      /* lists of free runs, by length */
    WORDS = (BINS + 63) / 64,
};

/* States of pages. KEPT and HOLE are free: KEPT with memory, HOLE without. */
typedef enum { KEPT, HOLE, RUN, SLAB } page_state;

typedef struct slab slab;
struct slab {              /* SLAB_PAGES pages, cut into places of one length */
    slab *next, *previous; /* in the list of slabs of its class with free places */
    uint32_t first, born, class, free;
    uint64_t places[SLAB_PAGES * PAGE / LINE / 64]; /* bit set: the place is free */
};

/* The entry of a page. Of a run only the entries of the first and last page are valid, of a slab all are. */
typedef struct {
    page_state state;
    uint32_t pages; /* length of the run */
    union {
        struct { /* for a free run: its neighbours in the bin; 0: none */
            uint32_t next, previous;
        };
        struct {                  /* for a block */
            uint32_t born, slack; /* number of forks before it; bytes after its end */
        };
        slab *slab;
    };
} page;

typedef struct { /* children of one fork and their children, which hold open the other end of the pipe `end` */
    uint32_t fork;
    int end;
} family;

typedef struct { /* a block that was freed, but that children may still read */
    char *block;
    uint32_t born, until; /* number of forks before it was allocated, and before it was freed */
} heirloom;

struct coll_heap {
    char *base;
    size_t size, reserved, kept; /* reserved: bytes with memory; kept: bytes of these in free runs */
    size_t granted;              /* bytes that may be reserved before the next look at what the system has left */
    uint64_t nonce;
    int fd, inherited; /* inherited: this is a forked child, and the heap is its parent's */
    pid_t owner;
    pthread_mutex_t lock;
    coll_heap *next; /* in the list of heaps of this process */

    page *pages;
    uint32_t count, top, known; /* all pages; pages up to the highest one used; entries that can be written */
    uint32_t bins[HOLE + 1][BINS];
    uint64_t filled[HOLE + 1][WORDS]; /* bit set: the bin has a run */
    uint32_t *backed;                 /* per chunk: number of pages with memory */
    unsigned char *huge;              /* per 2 MiB: whether a huge page has been requested */
    slab *slabs[CLASSES];

    uint32_t forks, young, forever; /* forks made; the last with living children; the last without a pipe */
    int ends[2];                    /* the pipe of the present fork */
    family *families;
    heirloom *heirlooms;
    size_t nfamilies, nheirlooms, room, due; /* due: number of heirlooms at which families are checked */
};

extern pthread_mutex_t coll_heaps_lock;
extern coll_heap *coll_heaps;

static inline size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

static inline uint32_t page_of(const coll_heap *h, const void *p) {
    return (uint32_t)((size_t)((const char *)p - h->base) / PAGE);
}

/* A number for each n below 8, then eight numbers for each power of two: the number of the step that contains n. */
static inline unsigned coll_heap_step(uint32_t n) {
    if (n < 8)
        return n;
    unsigned power = 31 - (unsigned)__builtin_clz(n);
    return 8 * (power - 3) + (n >> (power - 3));
}

/* Allocate the tables of a mapped heap that is empty. 0, or -1 with errno set. */
int coll_heap_make_tables(coll_heap *);
void coll_heap_free_tables(coll_heap *);
/* Take a run of n pages with memory; the caller labels it. 0 with errno set if there is none. */
uint32_t coll_heap_take_pages(coll_heap *, uint32_t n);
/* Free a run of pages, for reuse or to the system. */
void coll_heap_give_pages(coll_heap *, uint32_t first, uint32_t n);
/* Bytes that this process may still take from the machine and from its control groups. */
size_t coll_heap_room(void);
/* Write the entries at both ends of a run. */
void coll_heap_label(coll_heap *, uint32_t first, page);
/* Exclude chunks without memory from core dumps of this process. */
void coll_heap_hide_holes(const coll_heap *);

/* Whether forked children may read a block. Such a block is not reused until they no longer can. */
static inline int coll_heap_is_heirloom(const coll_heap *h, uint32_t born) {
    return born < h->young;
}
void coll_heap_set_aside(coll_heap *, char *block, uint32_t born);
/* Check which children have ended, and free the blocks that none of them can read; returns whether there were any. */
int coll_heap_settle(coll_heap *);
/* Free a block without regard to children. */
void coll_heap_give_block(coll_heap *, char *block);
/* Handle forks from now on. 0, or -1 with errno set. */
int coll_heap_watch_forks(void);
void coll_heap_forget_families(coll_heap *);

#endif
