#include "heap.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

enum {
    LINE = 64,
    PAGE = 4096,
    HUGE = 2 << 20,
    STEPS = 4, /* size classes from one power of two to the next */
    CLASSES = 64 * STEPS,
    SMALL = 64 << 10, /* shorter blocks share pages and stay reserved */
};
static const size_t KEPT = (size_t)256 << 20; /* bytes of freed long blocks that stay reserved for reuse */

typedef struct block block;
struct block { /* the line before each allocation */
    size_t usable, class;
    size_t reserved; /* whether it has pages: they are given back when too many are kept */
    block *next;     /* in the list of its class, while free */
};

struct coll_heap {
    char *base;
    size_t size, used; /* [0, used) has been handed out at some time */
    size_t reserved_to, reserved, kept;
    uint64_t nonce;
    int fd;
    coll_heap_kind kind;
    char name[40];
    pid_t owner;
    pthread_mutex_t lock;
    block *free[CLASSES];
    coll_heap *next; /* in the list of this process's heaps */
};

static pthread_mutex_t heaps_lock = PTHREAD_MUTEX_INITIALIZER;
static coll_heap *heaps;

static size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* Size classes: powers of two, each cut into STEPS, in whole lines. Returns the class of the least size that holds n.
 */
static size_t class_of(size_t n, size_t *size) {
    size_t power = LINE, class = 0;
    while (power * 2 < n) {
        power *= 2;
        class += STEPS;
    }
    size_t step = power / STEPS, k = n > power ? (n - power + step - 1) / step : 0;
    *size = round_up(power + k * step, LINE);
    return class + k;
}

/* Huge pages for what of [from, to) they can hold, where the system gives any: walking 4 KiB pages costs a third of the
 * bandwidth of long vectors. The kernel makes a huge page from one that is there in part, whatever is configured for
 * shared memory in general. */
static void reserve_huge(coll_heap *h, size_t from, size_t to) {
    size_t first = round_up(from, HUGE), end = to / HUGE * HUGE;
    for (size_t at = first; at < end; at += HUGE)
        if (posix_fallocate(h->fd, (off_t)at, PAGE))
            return;
    if (first < end)
        madvise(h->base + first, end - first, MADV_COLLAPSE);
}

/* Whether the file system (with a size: /dev/shm) has room for more bytes; asked first, lest it be filled in vain. */
static int has_room(const coll_heap *h, size_t bytes) {
    struct statvfs s;
    return fstatvfs(h->fd, &s) || !s.f_blocks || bytes / s.f_bsize <= s.f_bavail;
}

/* Pages for [from, to); fails where memory does, instead of a signal at the first touch. */
static int reserve(coll_heap *h, size_t from, size_t to) {
    int error = has_room(h, to - from) ? EINTR : ENOSPC;
    if (error == EINTR)
        reserve_huge(h, from, to);
    while (error == EINTR)
        error = posix_fallocate(h->fd, (off_t)from, (off_t)(to - from));
    if (error)
        errno = error;
    else
        h->reserved += to - from;
    return error;
}

/* Takes the pages of a long block away; its header stays. Whether that was possible. */
static int give_back(coll_heap *h, block *b) {
    off_t from = (char *)b + LINE - h->base;
    if (fallocate(h->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, (off_t)b->usable))
        return 0;
    h->reserved -= b->usable;
    b->reserved = 0;
    return 1;
}

static block *take_new(coll_heap *h, size_t usable, size_t class) {
    int small = usable < SMALL;
    size_t at = small ? h->used : round_up(h->used + LINE, PAGE) - LINE; /* long blocks begin on a page */
    size_t end = at + LINE + usable;
    if (end > h->size) {
        errno = ENOMEM;
        return NULL;
    }
    size_t to = round_up(end, small ? SMALL : PAGE);
    if (to > h->size)
        to = h->size;
    if (to > h->reserved_to) {
        if (reserve(h, h->reserved_to, to))
            return NULL;
        h->reserved_to = to;
    }
    block *b = (block *)(h->base + at);
    *b = (block){.usable = usable, .class = class, .reserved = 1};
    h->used = end;
    return b;
}

static block *take_free(coll_heap *h, size_t class) {
    block *b = h->free[class];
    if (!b->reserved) {
        size_t from = (size_t)((char *)b + LINE - h->base);
        if (reserve(h, from, from + b->usable))
            return NULL;
        b->reserved = 1;
    } else if (b->usable >= SMALL) {
        h->kept -= b->usable;
    }
    h->free[class] = b->next;
    return b;
}

void *coll_heap_alloc(coll_heap *h, size_t nbytes) {
    if (nbytes > h->size) {
        errno = ENOMEM;
        return NULL;
    }
    size_t usable, class = class_of(nbytes ? nbytes : 1, &usable);
    pthread_mutex_lock(&h->lock);
    block *b = h->free[class] ? take_free(h, class) : take_new(h, usable, class);
    pthread_mutex_unlock(&h->lock);
    return b ? (char *)b + LINE : NULL;
}

void coll_heap_release(coll_heap *h, void *p) {
    if (!p || getpid() != h->owner)
        return;
    block *b = (block *)((char *)p - LINE);
    pthread_mutex_lock(&h->lock);
    if (b->usable >= SMALL && (h->kept + b->usable <= KEPT || !give_back(h, b)))
        h->kept += b->usable;
    b->next = h->free[b->class];
    h->free[b->class] = b;
    pthread_mutex_unlock(&h->lock);
}

int coll_heap_alias(coll_heap *h, const void *piece, size_t nbytes, void *at) {
    off_t offset = (const char *)piece - h->base;
    return mmap(at, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, h->fd, offset) == at ? 0 : -1;
}

size_t coll_heap_usable(const void *p) {
    return ((const block *)((const char *)p - LINE))->usable;
}

size_t coll_heap_reserved(coll_heap *h) {
    pthread_mutex_lock(&h->lock);
    size_t n = h->reserved;
    pthread_mutex_unlock(&h->lock);
    return n;
}

/* Maps a heap where huge pages can be mapped as such. */
static char *map(int fd, size_t size) {
    char *room = mmap(NULL, size + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return MAP_FAILED;
    char *base = (char *)round_up((size_t)(uintptr_t)room, HUGE), *end = base + size;
    if (base > room)
        munmap(room, (size_t)(base - room));
    if (room + size + HUGE > end)
        munmap(end, (size_t)(room + size + HUGE - end));
    char *mapped = mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
    if (mapped == MAP_FAILED)
        munmap(base, size);
    return mapped;
}

static int open_shared(coll_heap *h) {
    if (h->kind == COLL_HEAP_MEMFD)
        return memfd_create("collectives", MFD_CLOEXEC);
    snprintf(h->name, sizeof h->name, "/collectives-%d-%08x", (int)getpid(), (unsigned)h->nonce);
    return shm_open(h->name, O_RDWR | O_CREAT | O_EXCL, 0600);
}

coll_heap *coll_heap_new(size_t size, coll_heap_kind kind) {
    coll_heap *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->size = round_up(size, PAGE);
    h->kind = kind;
    h->owner = getpid();
    if (getrandom(&h->nonce, sizeof h->nonce, 0) != sizeof h->nonce)
        h->nonce = (uint64_t)(uintptr_t)h ^ (uint64_t)h->owner << 32;
    h->fd = open_shared(h);
    if (h->fd < 0 || ftruncate(h->fd, (off_t)h->size))
        goto fail;
    h->base = map(h->fd, h->size);
    if (h->base == MAP_FAILED || reserve(h, 0, PAGE))
        goto fail;
    h->reserved_to = PAGE;
    h->used = LINE;
    *(uint64_t *)h->base = h->nonce; /* the first line proves to peers which heap this is */
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_lock(&heaps_lock);
    h->next = heaps;
    heaps = h;
    pthread_mutex_unlock(&heaps_lock);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* where Yama asks for it: peers may read private memory */
    return h;
fail:;
    int error = errno;
    if (h->base && h->base != MAP_FAILED)
        munmap(h->base, h->size);
    if (h->fd >= 0)
        close(h->fd);
    coll_heap_unlink(h);
    free(h);
    errno = error;
    return NULL;
}

void coll_heap_unlink(coll_heap *h) {
    if (h->name[0] && getpid() == h->owner)
        shm_unlink(h->name);
    h->name[0] = 0;
}

void coll_heap_free(coll_heap *h) {
    if (!h)
        return;
    pthread_mutex_lock(&heaps_lock);
    for (coll_heap **at = &heaps; *at; at = &(*at)->next)
        if (*at == h) {
            *at = h->next;
            break;
        }
    pthread_mutex_unlock(&heaps_lock);
    coll_heap_unlink(h);
    munmap(h->base, h->size);
    close(h->fd);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

coll_heap_id coll_heap_identify(const coll_heap *h) {
    coll_heap_id id = {h->owner, h->fd, h->kind, h->size, h->nonce, (uint64_t)(uintptr_t)h->base, ""};
    memcpy(id.name, h->name, sizeof id.name);
    return id;
}

char *coll_heap_base(const coll_heap *h) {
    return h->base;
}

size_t coll_heap_size(const coll_heap *h) {
    return h->size;
}

/* The base of a heap of this process, for ranks that are threads of it; NULL if it is another process's. */
static char *own_base(const coll_heap_id *id) {
    char *base = NULL;
    pthread_mutex_lock(&heaps_lock);
    for (const coll_heap *h = heaps; h; h = h->next)
        if (h->nonce == id->nonce && (uint64_t)(uintptr_t)h->base == id->base && h->size == id->size)
            base = h->base;
    pthread_mutex_unlock(&heaps_lock);
    return base;
}

char *coll_heap_attach(const coll_heap_id *id) {
    char *own = own_base(id);
    if (own)
        return own;
    if (id->kind != COLL_HEAP_MEMFD && !memchr(id->name, 0, sizeof id->name)) {
        errno = EINVAL;
        return NULL;
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)id->pid, (long long)id->fd);
    int fd = id->kind == COLL_HEAP_MEMFD ? open(path, O_RDWR | O_CLOEXEC) : shm_open(id->name, O_RDWR, 0);
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
    return base;
}

void coll_heap_detach(const coll_heap_id *id, char *base) {
    if (base && base != own_base(id))
        munmap(base, id->size);
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
