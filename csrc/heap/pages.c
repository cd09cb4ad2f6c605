/* Runs of pages of the heap: which are free, and which have memory.
 *
 * Free runs have one of two states: with memory (KEPT, for reuse) or without (HOLE). Adjacent free runs of one state
 * are joined. They are in bins by length, eight for each power of two. Pages from `top` on are unused and have no
 * memory. */
#include "internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

static const size_t KEPT_MOST = (size_t)256 << 20; /* the most bytes of free runs that keep their memory */
static const size_t PIECE = (size_t)64 << 20;      /* the most bytes that are reserved without a look at what is left */
enum { FEW = 8 };                                  /* runs of a bin that are inspected */

/* Make entries up to `to` writable. The table grows with the heap: as a whole it would count against memory limits. */
static int know(coll_heap *h, uint32_t to) {
    if (to <= h->known)
        return 1;
    size_t most = round_up(h->count * sizeof *h->pages, PAGE), bytes = round_up(to * sizeof *h->pages, 256 << 10);
    bytes = bytes < most ? bytes : most;
    if (mprotect(h->pages, bytes, PROT_READ | PROT_WRITE))
        return 0;
    size_t reach = bytes / sizeof *h->pages;
    h->known = reach < h->count ? (uint32_t)reach : h->count;
    return 1;
}

void coll_heap_label(coll_heap *h, uint32_t first, page p) {
    h->pages[first] = h->pages[first + p.pages - 1] = p;
}

static void link_run(coll_heap *h, uint32_t first, uint32_t n, page_state state) {
    unsigned bin = coll_heap_step(n);
    uint32_t next = h->bins[state][bin];
    coll_heap_label(h, first, (page){.state = state, .pages = n, .next = next});
    if (next)
        h->pages[next].previous = first;
    h->bins[state][bin] = first;
    h->filled[state][bin / 64] |= (uint64_t)1 << bin % 64;
}

static void unlink_run(coll_heap *h, uint32_t first) {
    page p = h->pages[first];
    unsigned bin = coll_heap_step(p.pages);
    if (p.next)
        h->pages[p.next].previous = p.previous;
    if (p.previous)
        h->pages[p.previous].next = p.next;
    else if (!(h->bins[p.state][bin] = p.next))
        h->filled[p.state][bin / 64] &= ~((uint64_t)1 << bin % 64);
}

/* Make a run free, joined with its free neighbours of the same state. */
static void put(coll_heap *h, uint32_t first, uint32_t n, page_state state) {
    const page *before = &h->pages[first - 1]; /* page 0 is never free */
    if (before->state == state) {
        first -= before->pages;
        n += before->pages;
        unlink_run(h, first);
    }
    if (first + n < h->top && h->pages[first + n].state == state) {
        uint32_t after = first + n;
        n += h->pages[after].pages;
        unlink_run(h, after);
    }
    if (state == HOLE && first + n == h->top)
        h->top = first;
    else
        link_run(h, first, n, state);
}

/* The shortest run with at least n pages among the first `most` runs of a list; 0 if there is none. */
static uint32_t shortest(const coll_heap *h, uint32_t at, uint32_t n, size_t most) {
    uint32_t best = 0;
    for (; at && most > 0; at = h->pages[at].next, most--)
        if (h->pages[at].pages >= n && (!best || h->pages[at].pages < h->pages[best].pages))
            best = at;
    return best;
}

/* A free run of at least n pages, from the bin of n or from the next bin that is not empty; 0 if there is none. */
static uint32_t find(const coll_heap *h, page_state state, uint32_t n, size_t most) {
    unsigned bin = coll_heap_step(n), next = bin + 1, i = next / 64;
    uint32_t found = shortest(h, h->bins[state][bin], n, most);
    uint64_t word = h->filled[state][i] & ~(uint64_t)0 << next % 64;
    while (!word && ++i < WORDS)
        word = h->filled[state][i];
    if (found || !word)
        return found;
    return shortest(h, h->bins[state][64 * i + (unsigned)__builtin_ctzll(word)], n, FEW);
}

/* Take the first n pages of a free run out of the bins. */
static void cut(coll_heap *h, uint32_t first, uint32_t n) {
    page p = h->pages[first];
    unlink_run(h, first);
    if (p.pages > n)
        link_run(h, first + n, p.pages - n, p.state);
}

/* Count pages with memory, and exclude chunks without any from core dumps, which would fill them. Chunks are large,
 * since the system limits a process to some ten thousand mappings. */
static void count_backed(coll_heap *h, uint32_t first, uint32_t n, int more) {
    enum { EACH = CHUNK / PAGE };
    for (uint32_t at = first, end = first + n; at < end;) {
        size_t chunk = at / EACH, begin = chunk * CHUNK, rest = h->size - begin;
        uint32_t next = (uint32_t)(chunk + 1) * EACH, part = (next < end ? next : end) - at;
        int had = h->backed[chunk] > 0;
        h->backed[chunk] += more ? part : -part;
        if (had != (h->backed[chunk] > 0))
            madvise(h->base + begin, rest < CHUNK ? rest : CHUNK, more ? MADV_DODUMP : MADV_DONTDUMP);
        at += part;
    }
    h->reserved += more ? (size_t)n * PAGE : -(size_t)n * PAGE;
}

void coll_heap_hide_holes(const coll_heap *h) {
    size_t end = round_up((size_t)h->top * PAGE, CHUNK) / CHUNK;
    for (size_t chunk = 0, first; chunk < end; chunk++) {
        for (first = chunk; chunk < end && !h->backed[chunk]; chunk++)
            ;
        size_t to = chunk * CHUNK < h->size ? chunk * CHUNK : h->size;
        if (chunk > first)
            madvise(h->base + first * CHUNK, to - first * CHUNK, MADV_DONTDUMP);
    }
}

/* Request huge pages for the part of a run that they can cover: walking 4 KiB pages costs a third of the bandwidth of
 * long vectors. The kernel completes a huge page from a part that exists, whatever the system's setting for shared
 * memory is. A huge page is requested once, until its memory is given back. */
static void make_huge(coll_heap *h, uint32_t first, uint32_t n) {
    enum { EACH = HUGE / PAGE };
    size_t area = ((size_t)first + EACH - 1) / EACH, end = ((size_t)first + n) / EACH;
    for (size_t begin; area < end; area++) {
        for (begin = area; area < end && !h->huge[area]; area++) {
            if (posix_fallocate(h->fd, (off_t)(area * HUGE), PAGE))
                return;
            h->huge[area] = 1;
        }
        if (area > begin)
            madvise(h->base + begin * HUGE, (area - begin) * HUGE, MADV_COLLAPSE);
    }
}

/* Whether there is memory for the next `bytes` of a run, which are at most PIECE, and for the `rest` of it, which they
 * begin: otherwise reserving it would not fail, but the kernel would kill processes. Other processes take memory
 * meanwhile, so a long run asks before each piece, and short ones after so many bytes together. */
static int has_room(coll_heap *h, size_t bytes, size_t rest) {
    if (rest >= PIECE || bytes > h->granted) {
        size_t room = coll_heap_room();
        h->granted = room < PIECE ? room : PIECE;
        if (rest > room)
            return 0;
    }
    h->granted -= bytes;
    return 1;
}

static int punch(coll_heap *h, uint32_t first, uint32_t n) {
    off_t from = (off_t)first * PAGE, bytes = (off_t)n * PAGE;
    size_t area = (size_t)from / HUGE, areas = (size_t)(from + bytes - 1) / HUGE - area + 1;
    memset(h->huge + area, 0, areas);
    return fallocate(h->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, bytes) == 0;
}

/* Reserve memory for some bytes, in calls that a signal makes start again. 0 or an error. */
static int fill(const coll_heap *h, size_t from, size_t to) {
    size_t piece = PIECE;
    int error = 0;
    for (size_t at = from; at < to && !error;) {
        size_t bytes = to - at < piece ? to - at : piece;
        error = posix_fallocate(h->fd, (off_t)at, (off_t)bytes);
        if (error == EINTR) { /* the piece has been freed again: a timer's next signal must not find it as long */
            piece = bytes > PAGE ? (bytes / 2 + PAGE - 1) / PAGE * PAGE : PAGE;
            error = 0;
        } else if (!error) {
            at += bytes;
            piece = 2 * piece < PIECE ? 2 * piece : PIECE;
        }
    }
    return error;
}

/* Reserve memory for a run; fails if there is none, so that no signal follows at the first access. */
static int reserve(coll_heap *h, uint32_t first, uint32_t n) {
    size_t from = (size_t)first * PAGE, to = from + (size_t)n * PAGE;
    int error = 0;
    for (size_t at = from, end; at < to && !error; at = end) { /* pieces meet where huge pages do */
        end = round_up(at + 1, PIECE) < to ? round_up(at + 1, PIECE) : to;
        error = has_room(h, end - at, to - at) ? 0 : ENOMEM;
        if (!error) {
            make_huge(h, (uint32_t)(at / PAGE), (uint32_t)((end - at) / PAGE));
            error = fill(h, at, end);
        }
    }
    if (error) {
        punch(h, first, n);
        errno = error;
        return 0;
    }
    count_backed(h, first, n, 1);
    return 1;
}

/* Take a run without memory, and reserve memory for it; 0 with errno set if that fails. */
static uint32_t take_hole(coll_heap *h, uint32_t n) {
    uint32_t at = find(h, HOLE, n, FEW);
    if (!at && h->count - h->top < n)
        at = find(h, HOLE, n, SIZE_MAX);
    if (at) {
        cut(h, at, n);
    } else if (h->count - h->top >= n && know(h, h->top + n)) {
        at = h->top;
        h->top += n;
    } else {
        errno = ENOMEM;
        return 0;
    }
    coll_heap_label(h, at, (page){.state = RUN, .pages = n});
    if (reserve(h, at, n))
        return at;
    put(h, at, n, HOLE);
    return 0;
}

/* Give the memory of all free runs back to the system, and join them; returns whether there was any. */
static int purge(coll_heap *h) {
    int found = 0;
    for (unsigned bin = 0; bin < BINS; bin++)
        for (uint32_t at; (at = h->bins[KEPT][bin]); found = 1) {
            uint32_t n = h->pages[at].pages;
            if (!punch(h, at, n))
                return found;
            unlink_run(h, at);
            h->kept -= (size_t)n * PAGE;
            count_backed(h, at, n, 0);
            put(h, at, n, HOLE);
        }
    return found;
}

uint32_t coll_heap_take_pages(coll_heap *h, uint32_t n) {
    uint32_t at = find(h, KEPT, n, FEW), most = n < SLAB_PAGES ? SLAB_PAGES : n;
    if (!at && coll_heap_settle(h))
        at = find(h, KEPT, n, FEW);
    if (at) {
        cut(h, at, n);
        make_huge(h, at, n);
        h->kept -= (size_t)n * PAGE;
        return at;
    }
    if ((at = take_hole(h, most)) && most > n) { /* at least SLAB_PAGES are requested from the system */
        coll_heap_label(h, at, (page){.state = RUN, .pages = n});
        put(h, at + n, most - n, KEPT);
        h->kept += (size_t)(most - n) * PAGE;
    }
    if (!at && most > n)
        at = take_hole(h, n);
    return at || !purge(h) ? at : take_hole(h, n);
}

void coll_heap_give_pages(coll_heap *h, uint32_t first, uint32_t n) {
    size_t bytes = (size_t)n * PAGE;
    if (h->kept + bytes > KEPT_MOST && punch(h, first, n)) {
        count_backed(h, first, n, 0);
        put(h, first, n, HOLE);
    } else {
        h->kept += bytes;
        put(h, first, n, KEPT);
    }
}

int coll_heap_make_tables(coll_heap *h) {
    size_t chunks = round_up(h->size, CHUNK) / CHUNK;
    h->count = (uint32_t)(h->size / PAGE);
    h->granted = PIECE; /* a heap with little in it need not look */
    h->backed = calloc(chunks, sizeof *h->backed);
    h->huge = calloc(h->size / HUGE + 1, sizeof *h->huge);
    h->pages = mmap(NULL, h->count * sizeof *h->pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (h->pages == MAP_FAILED)
        h->pages = NULL;
    if (!h->backed || !h->huge || !h->pages) {
        errno = ENOMEM;
        return -1;
    }
    madvise(h->base, h->size, MADV_DONTDUMP);
    if (!know(h, 1) || !reserve(h, 0, 1))
        return -1;
    coll_heap_label(h, 0, (page){.state = RUN, .pages = h->top = 1});
    return 0;
}

void coll_heap_free_tables(coll_heap *h) {
    for (uint32_t at = 0; at < h->top; at += h->pages[at].pages)
        if (h->pages[at].state == SLAB)
            free(h->pages[at].slab);
    if (h->pages)
        munmap(h->pages, h->count * sizeof *h->pages);
    free(h->backed);
    free(h->huge);
}
