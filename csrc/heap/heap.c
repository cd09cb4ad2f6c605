#include "internal.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U /* Linux 6.3 */
#endif

static const int SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL; /* no peer can cut off memory that others use */

int coll_heap_alias(coll_heap *h, const void *piece, size_t nbytes, void *at) {
    off_t offset = (const char *)piece - h->base;
    int flags = MAP_FIXED | (h->inherited ? MAP_PRIVATE : MAP_SHARED);
    return mmap(at, nbytes, PROT_READ | PROT_WRITE, flags, h->fd, offset) == at ? 0 : -1;
}

/* Heaps that are mapped one after the other get addresses that differ in the seven bits above a huge page: AMD's
 * first-level cache holds only one of two lines whose addresses are alike in a hash, in which each of bits 21 to 27 is
 * combined with one of bits 12 to 20 (Lipp et al., Take A Way, 2020, section 3). Arrays tend to lie at the same place
 * in all heaps, and behind each other at a power of two, which changes one of the lower bits: a rank that reads one
 * array and writes another one would wait for each store. So any two of these differ in three bits at least, as the
 * words of Hamming's code do. */
static const unsigned char COLOURS[] = {0x00, 0x31, 0x52, 0x63, 0x64, 0x55, 0x36, 0x07,
                                        0x78, 0x49, 0x2a, 0x1b, 0x1c, 0x2d, 0x4e, 0x7f};
enum { NUMBER_OF_COLOURS = sizeof COLOURS, SPAN = 128 };

/* Map a heap at an address that is a multiple of the size of huge pages. */
static char *map(int fd, size_t size) {
    static _Atomic unsigned mapped_before;
    size_t span = SPAN * (size_t)HUGE, room_size = size + span;
    char *room = mmap(NULL, room_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return MAP_FAILED;
    size_t colour = COLOURS[atomic_fetch_add(&mapped_before, 1) % NUMBER_OF_COLOURS] * (size_t)HUGE;
    size_t first = round_up((size_t)(uintptr_t)room, HUGE);
    char *base = (char *)(first + (colour + span - first % span) % span), *end = base + size;
    if (base > room)
        munmap(room, (size_t)(base - room));
    if (room + room_size > end)
        munmap(end, (size_t)(room + room_size - end));
    char *mapped = mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
    if (mapped == MAP_FAILED)
        munmap(base, size);
    return mapped;
}

static int open_shared(void) {
    int fd = memfd_create("collectives", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    return fd < 0 && errno == EINVAL ? memfd_create("collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

/* Create and map the shared memory, whose length is then fixed. 0, or -1 with errno set. */
static int make_memory(coll_heap *h) {
    h->fd = open_shared();
    if (h->fd < 0 || ftruncate(h->fd, (off_t)h->size) || fcntl(h->fd, F_ADD_SEALS, SEALS))
        return -1;
    h->base = map(h->fd, h->size);
    return h->base == MAP_FAILED ? -1 : 0;
}

coll_heap *coll_heap_new(size_t size) {
    if (!size || size / PAGE > UINT32_MAX / 2) {
        errno = EINVAL;
        return NULL;
    }
    coll_heap *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->size = round_up(size, PAGE);
    h->fd = -1;
    h->owner = getpid();
    if (getrandom(&h->nonce, sizeof h->nonce, 0) != sizeof h->nonce)
        h->nonce = (uint64_t)(uintptr_t)h ^ (uint64_t)h->owner << 32;
    pthread_mutex_init(&h->lock, NULL);
    if (make_memory(h) || coll_heap_make_tables(h) || coll_heap_watch_forks()) {
        int error = errno;
        coll_heap_free(h);
        errno = error;
        return NULL;
    }
    *(uint64_t *)h->base = h->nonce; /* the first word proves to peers which heap this is */
    pthread_mutex_lock(&coll_heaps_lock);
    h->next = coll_heaps;
    coll_heaps = h;
    pthread_mutex_unlock(&coll_heaps_lock);
    return h;
}

void coll_heap_free(coll_heap *h) {
    if (!h)
        return;
    pthread_mutex_lock(&coll_heaps_lock);
    for (coll_heap **at = &coll_heaps; *at; at = &(*at)->next)
        if (*at == h) {
            *at = h->next;
            break;
        }
    pthread_mutex_unlock(&coll_heaps_lock);
    coll_heap_forget_families(h);
    coll_heap_free_tables(h);
    if (h->base && h->base != MAP_FAILED)
        munmap(h->base, h->size);
    if (h->fd >= 0)
        close(h->fd);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

int coll_heap_is_inherited(const coll_heap *h) {
    return h->inherited;
}

coll_heap_id coll_heap_identify(const coll_heap *h) {
    return (coll_heap_id){h->owner, h->fd, h->size, h->nonce, (uint64_t)(uintptr_t)h->base};
}

char *coll_heap_base(const coll_heap *h) {
    return h->base;
}

size_t coll_heap_size(const coll_heap *h) {
    return h->size;
}

/* The base of a heap of this process, for ranks that are threads; NULL if the heap is another process's. */
static char *own_base(const coll_heap_id *id) {
    char *base = NULL;
    pthread_mutex_lock(&coll_heaps_lock);
    for (const coll_heap *h = coll_heaps; h; h = h->next)
        if (h->nonce == id->nonce && (uint64_t)(uintptr_t)h->base == id->base && h->size == id->size)
            base = h->base;
    pthread_mutex_unlock(&coll_heaps_lock);
    return base;
}

/* Open the file that a peer names, but only if it is a sealed memfd: the peer's number may name another file by now. */
static int open_peers(const coll_heap_id *id) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)id->pid, (long long)id->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), seals = fd < 0 ? 0 : fcntl(fd, F_GET_SEALS);
    if (fd >= 0 && (seals < 0 || (seals & SEALS) != SEALS)) {
        close(fd);
        errno = ESTALE;
        return -1;
    }
    return fd;
}

char *coll_heap_attach(const coll_heap_id *id) {
    char *own = own_base(id);
    if (own)
        return own;
    int fd = open_peers(id);
    if (fd < 0)
        return NULL;
    errno = ESTALE;
    char *base = id->size && lseek(fd, 0, SEEK_END) == (off_t)id->size ? map(fd, id->size) : MAP_FAILED;
    int error = errno;
    close(fd);
    if (base == MAP_FAILED) {
        errno = error;
        return NULL;
    }
    if (*(const uint64_t *)base != id->nonce) {
        munmap(base, id->size);
        errno = ESTALE;
        return NULL;
    }
    madvise(base, id->size, MADV_DONTDUMP); /* the peer dumps its own heap; a dump would fill its holes */
    madvise(base, id->size, MADV_DONTFORK); /* children do not use it, and must not keep it from being freed */
    return base;
}

void coll_heap_detach(const coll_heap_id *id, char *base) {
    if (base && !coll_heap_in_child() && base != own_base(id))
        munmap(base, id->size);
}

int coll_heap_let_read(int64_t pid) {
    return prctl(PR_SET_PTRACER, (unsigned long)pid, 0, 0, 0);
}

int coll_heap_read_private(int64_t pid, void *to, uint64_t from, size_t bytes) {
    while (bytes) {
        struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)from, bytes};
        ssize_t n = process_vm_readv((pid_t)pid, &here, 1, &there, 1, 0);
        if (n <= 0) {
            errno = n ? errno : EFAULT;
            return -1;
        }
        to = (char *)to + n;
        from += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

int coll_heap_private_is_readable(const coll_heap_id *id) {
    uint64_t nonce = 0;
    return !coll_heap_read_private(id->pid, &nonce, id->base, sizeof nonce) && nonce == id->nonce;
}
