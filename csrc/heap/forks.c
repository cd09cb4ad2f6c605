/* Forked children. A child maps the parent's heap as a private copy and allocates nothing from it. But a child may
 * still read blocks that the parent frees: such a block is not reused until the children that can see it, and their
 * children, have ended or executed another program. All of these hold open one end of a pipe that was made for their
 * fork. */
#include "internal.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_mutex_t coll_heaps_lock = PTHREAD_MUTEX_INITIALIZER;
coll_heap *coll_heaps;

static int has_ended(const family *f) {
    struct pollfd end = {.fd = f->end};
    return poll(&end, 1, 0) == 1;
}

/* Remove the families that have ended; returns whether there were any. */
static int look_at_families(coll_heap *h) {
    size_t living = 0, before = h->nfamilies;
    h->young = h->forever;
    for (size_t i = 0; i < before; i++) {
        family f = h->families[i];
        if (has_ended(&f)) {
            close(f.end);
            continue;
        }
        h->families[living++] = f;
        h->young = f.fork > h->young ? f.fork : h->young;
    }
    h->nfamilies = living;
    return living < before;
}

static int is_seen(const coll_heap *h, const heirloom *one) {
    int seen = one->born < h->forever;
    for (size_t i = 0; i < h->nfamilies && !seen; i++)
        seen = one->born < h->families[i].fork && h->families[i].fork <= one->until;
    return seen;
}

int coll_heap_settle(coll_heap *h) {
    if (!h->nfamilies || !look_at_families(h))
        return 0;
    size_t kept = 0, before = h->nheirlooms;
    for (size_t i = 0; i < before; i++)
        if (is_seen(h, &h->heirlooms[i]))
            h->heirlooms[kept++] = h->heirlooms[i];
        else
            coll_heap_give_block(h, h->heirlooms[i].block);
    h->nheirlooms = kept;
    return kept < before;
}

void coll_heap_set_aside(coll_heap *h, char *block, uint32_t born) {
    if (h->nheirlooms == h->room) {
        size_t room = h->room ? 2 * h->room : 256;
        heirloom *more = realloc(h->heirlooms, room * sizeof *more);
        if (!more)
            return; /* without memory for the note, the block is never reused */
        h->heirlooms = more;
        h->room = room;
    }
    h->heirlooms[h->nheirlooms++] = (heirloom){block, born, h->forks};
    if (h->nheirlooms >= h->due) {
        coll_heap_settle(h);
        h->due = 2 * h->nheirlooms > 64 ? 2 * h->nheirlooms : 64;
    }
}

/* Record the children of a fork with their pipe; without a pipe they count as alive for ever. */
static void note_family(coll_heap *h) {
    family *more = realloc(h->families, (h->nfamilies + 1) * sizeof *more);
    h->families = more ? more : h->families;
    h->young = ++h->forks;
    if (more && h->ends[0] >= 0) {
        h->families[h->nfamilies++] = (family){h->forks, h->ends[0]};
        return;
    }
    if (h->ends[0] >= 0)
        close(h->ends[0]);
    h->forever = h->forks;
}

static void before_fork(void) {
    pthread_mutex_lock(&coll_heaps_lock);
    for (coll_heap *h = coll_heaps; h; h = h->next) {
        pthread_mutex_lock(&h->lock);
        if (h->inherited)
            continue;
        coll_heap_settle(h);
        if (pipe2(h->ends, O_CLOEXEC))
            h->ends[0] = h->ends[1] = -1;
    }
}

static void after_fork_in_parent(void) {
    for (coll_heap *h = coll_heaps; h; h = h->next) {
        if (!h->inherited) {
            note_family(h);
            if (h->ends[1] >= 0)
                close(h->ends[1]);
        }
        pthread_mutex_unlock(&h->lock);
    }
    pthread_mutex_unlock(&coll_heaps_lock);
}

void coll_heap_forget_families(coll_heap *h) {
    for (size_t i = 0; i < h->nfamilies; i++)
        close(h->families[i].end);
    h->nfamilies = h->nheirlooms = h->room = 0;
    free(h->families);
    free(h->heirlooms);
    h->families = NULL;
    h->heirlooms = NULL;
}

/* What the child writes shall not reach the parent, nor its ranks: a mapping in which written pages are its own. Where
 * a limit of its memory forbids that (RLIMIT_DATA, vm.overcommit_memory=2), it cannot write at all. */
static void inherit(coll_heap *h) {
    h->inherited = 1;
    if (h->ends[0] >= 0)
        close(h->ends[0]);
    coll_heap_forget_families(h);
    int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    if (mmap(h->base, (size_t)h->top * PAGE, PROT_READ | PROT_WRITE, flags, h->fd, 0) != MAP_FAILED)
        coll_heap_hide_holes(h);
    else
        mprotect(h->base, (size_t)h->top * PAGE, PROT_READ);
}

static int in_child;
static void after_fork_in_child(void) {
    in_child = 1;
    for (coll_heap *h = coll_heaps; h; h = h->next) {
        if (!h->inherited)
            inherit(h);
        pthread_mutex_unlock(&h->lock);
    }
    pthread_mutex_unlock(&coll_heaps_lock);
}

int coll_heap_in_child(void) {
    return in_child;
}

static int watched;
static void watch(void) {
    watched = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
}

int coll_heap_watch_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (pthread_once(&once, watch) || !watched) {
        errno = ENOMEM;
        return -1;
    }
    return 0;
}
