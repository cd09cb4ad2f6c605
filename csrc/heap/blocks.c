/* Blocks of the heap: short ones are places in slabs of one length, all others are runs of pages. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = sizeof(uint64_t) }; /* bytes after the end of a run's block, which no program may write */

static size_t bytes_of(unsigned class) {
    return LINE * (size_t)(class < 8 ? class : (8 + class % 8) << (class / 8 - 1));
}

static unsigned class_of(size_t nbytes) {
    return nbytes <= LINE ? 1 : coll_heap_step((uint32_t)((nbytes - 1) / LINE)) + 1;
}

static void complain(const char *what, const void *block) {
    fprintf(stderr, "collectives: %s: memory at %p, on the heap of shared memory\n", what, block);
}

static void link_slab(coll_heap *h, slab *s) {
    s->previous = NULL;
    s->next = h->slabs[s->class];
    if (s->next)
        s->next->previous = s;
    h->slabs[s->class] = s;
}

static void unlink_slab(coll_heap *h, slab *s) {
    if (s->next)
        s->next->previous = s->previous;
    if (s->previous)
        s->previous->next = s->next;
    else
        h->slabs[s->class] = s->next;
}

static slab *new_slab(coll_heap *h, unsigned class) {
    slab *s = malloc(sizeof *s);
    uint32_t first = s ? coll_heap_take_pages(h, SLAB_PAGES) : 0;
    if (!first) {
        free(s);
        return NULL;
    }
    *s =
        (slab){.first = first, .born = h->forks, .class = class, .free = SLAB_PAGES * PAGE / (uint32_t)bytes_of(class)};
    for (unsigned i = 0; i < s->free; i++)
        s->places[i / 64] |= (uint64_t)1 << i % 64;
    for (uint32_t i = 0; i < SLAB_PAGES; i++)
        h->pages[first + i] = (page){.state = SLAB, .pages = SLAB_PAGES, .slab = s};
    link_slab(h, s);
    return s;
}

static char *take_place(coll_heap *h, size_t nbytes) {
    unsigned class = class_of(nbytes), word = 0;
    slab *s = h->slabs[class];
    if ((!s || coll_heap_is_heirloom(h, s->born)) && !(s = new_slab(h, class)))
        return NULL;
    while (!s->places[word])
        word++;
    unsigned place = 64 * word + (unsigned)__builtin_ctzll(s->places[word]);
    s->places[word] &= s->places[word] - 1;
    if (!--s->free)
        unlink_slab(h, s);
    return h->base + (size_t)s->first * PAGE + place * bytes_of(class);
}

/* Whether `block` is a place of the slab that is in use; sets its number. */
static int is_taken(const coll_heap *h, const slab *s, const char *block, size_t *place) {
    size_t at = (size_t)(block - h->base) - (size_t)s->first * PAGE, bytes = bytes_of(s->class);
    *place = at / bytes;
    return at % bytes == 0 && *place < SLAB_PAGES * PAGE / bytes && !(s->places[*place / 64] >> *place % 64 & 1);
}

static void give_place(coll_heap *h, slab *s, size_t place) {
    s->places[place / 64] |= (uint64_t)1 << place % 64;
    if (s->free++ == 0)
        link_slab(h, s);
    int last = s->free == SLAB_PAGES * PAGE / bytes_of(s->class);
    if (last && (s->next || s->previous)) { /* one slab is kept, so that it is not made again and again */
        unlink_slab(h, s);
        coll_heap_give_pages(h, s->first, SLAB_PAGES);
        free(s);
    }
}

/* The value after the end of a block, if there is room for one; it differs from block to block. */
static uint64_t guard_of(const coll_heap *h, const char *block) {
    return h->nonce ^ (uint64_t)(block - h->base) * 0x9E3779B97F4A7C15u;
}

static void set_end(coll_heap *h, char *block, page run, size_t nbytes) {
    size_t bytes = (size_t)run.pages * PAGE;
    uint64_t guard = guard_of(h, block);
    run.slack = (uint32_t)(bytes - nbytes);
    if (run.slack >= GUARD)
        memcpy(block + nbytes, &guard, GUARD);
    coll_heap_label(h, page_of(h, block), run);
}

static uint32_t pages_for(size_t nbytes) {
    return (uint32_t)(nbytes / PAGE + (nbytes % PAGE > 0));
}

/* Arrays whose lengths are powers of two would begin at the same place of every cache: one more page prevents this. */
static char *take_run(coll_heap *h, size_t nbytes) {
    uint32_t n = pages_for(nbytes), more = n % 16 == 0, first = coll_heap_take_pages(h, n + more);
    if (!first && more)
        first = coll_heap_take_pages(h, n);
    else
        n += more;
    if (!first)
        return NULL;
    char *block = h->base + (size_t)first * PAGE;
    set_end(h, block, (page){.state = RUN, .pages = n, .born = h->forks}, nbytes);
    return block;
}

void *coll_heap_alloc(coll_heap *h, size_t nbytes) {
    if (h->inherited || nbytes > h->size) {
        errno = h->inherited ? EPERM : ENOMEM;
        return NULL;
    }
    nbytes += nbytes == 0;
    pthread_mutex_lock(&h->lock);
    char *block = nbytes <= SMALL ? take_place(h, nbytes) : NULL;
    block = block ? block : take_run(h, nbytes);
    pthread_mutex_unlock(&h->lock);
    return block;
}

/* Whether a run begins at `block`: both ends of a run have equal entries. */
static int is_run(const coll_heap *h, const char *block, const page *p) {
    uint32_t first = page_of(h, block);
    return p->state == RUN && first && (block - h->base) % PAGE == 0 && p->pages <= h->top - first &&
           !memcmp(p, &h->pages[first + p->pages - 1], sizeof *p);
}

void coll_heap_give_block(coll_heap *h, char *block) {
    page p = h->pages[page_of(h, block)];
    size_t place;
    if (p.state == SLAB && is_taken(h, p.slab, block, &place))
        give_place(h, p.slab, place);
    else if (p.state == RUN)
        coll_heap_give_pages(h, page_of(h, block), p.pages);
}

static const char *release(coll_heap *h, char *block) {
    uint32_t first = page_of(h, block);
    page *p = first < h->top ? &h->pages[first] : &h->pages[0];
    size_t place;
    if (p->state == SLAB ? !is_taken(h, p->slab, block, &place) : !is_run(h, block, p))
        return "given back twice, or no block of it";
    int spoilt = 0;
    if (p->state == RUN) {
        size_t end = (size_t)p->pages * PAGE - p->slack;
        uint64_t guard = guard_of(h, block);
        spoilt = p->slack >= GUARD && memcmp(block + end, &guard, GUARD);
        p->slack = 0;
    }
    uint32_t born = p->state == SLAB ? p->slab->born : p->born;
    if (coll_heap_is_heirloom(h, born))
        coll_heap_set_aside(h, block, born);
    else
        coll_heap_give_block(h, block);
    return spoilt ? "somebody wrote past the end of an array" : NULL;
}

void coll_heap_release(coll_heap *h, void *p) {
    if (!p || h->inherited)
        return;
    pthread_mutex_lock(&h->lock);
    const char *wrong = release(h, p);
    pthread_mutex_unlock(&h->lock);
    if (wrong)
        complain(wrong, p);
}

/* While a block is in use, only its owner changes its entries, so they can be read without the lock, and in a child. */
size_t coll_heap_usable(const coll_heap *h, const void *block) {
    page p = h->pages[page_of(h, block)];
    return p.state == SLAB ? bytes_of(p.slab->class) : (size_t)p.pages * PAGE - p.slack;
}

/* A block that children may read is not changed. */
int coll_heap_resize(coll_heap *h, void *block, size_t nbytes) {
    if (h->inherited)
        return 0;
    page p = h->pages[page_of(h, block)];
    uint32_t n = pages_for(nbytes), rest = p.pages - n;
    if (p.state == SLAB || !nbytes || n > p.pages || nbytes > h->size)
        return nbytes <= coll_heap_usable(h, block);
    pthread_mutex_lock(&h->lock);
    int held = coll_heap_is_heirloom(h, p.born);
    if (!held) {
        p.pages = n;
        set_end(h, block, p, nbytes);
        if (rest)
            coll_heap_give_pages(h, page_of(h, block) + n, rest);
    }
    pthread_mutex_unlock(&h->lock);
    return !held || nbytes <= coll_heap_usable(h, block);
}

size_t coll_heap_reserved(coll_heap *h) {
    if (h->inherited)
        return 0;
    pthread_mutex_lock(&h->lock);
    coll_heap_settle(h);
    size_t n = h->reserved;
    pthread_mutex_unlock(&h->lock);
    return n;
}
