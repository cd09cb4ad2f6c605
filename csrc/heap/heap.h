/* The heap: shared memory of one process, which the other ranks of its node map.
 *
 * It is one sparse memfd, which peers reach through /proc/PID/fd. It has no name, so that nothing remains when its
 * processes end in any way. Pages are reserved when they are allocated, so that a lack of memory is an error at that
 * time and not a signal later. */
#ifndef COLL_HEAP_H
#define COLL_HEAP_H

#include <stddef.h>
#include <stdint.h>

typedef struct coll_heap coll_heap;

/* What a peer needs to map a heap: plain bytes that can be sent. */
typedef struct {
    int64_t pid, fd;
    uint64_t size, nonce, base; /* base is for peers in the same process */
} coll_heap_id;

/* A heap of `size` bytes of address space. NULL with errno set. */
coll_heap *coll_heap_new(size_t size);
void coll_heap_free(coll_heap *);
coll_heap_id coll_heap_identify(const coll_heap *);
char *coll_heap_base(const coll_heap *);
size_t coll_heap_size(const coll_heap *);

/* Allocate a block, aligned to 64 bytes, zeroed or not. NULL with errno set (ENOMEM, ENOSPC; EPERM in a forked child).
 * May be called by any thread of the owner. */
void *coll_heap_alloc(coll_heap *, size_t nbytes);
/* Free a block; does nothing in a forked child. A wrong address, or a write past the end of the block, is reported on
 * standard error. */
void coll_heap_release(coll_heap *, void *);
/* Resize a block in place; returns whether it can hold nbytes now. Always 0 in a forked child. */
int coll_heap_resize(coll_heap *, void *block, size_t nbytes);
/* Whether this is a forked child. The heap of its parent gives it no memory; it can read it, and writes to a copy. */
int coll_heap_is_inherited(const coll_heap *);
/* Map a piece of the heap, whole pages, at another address of this process too, replacing what is mapped there; in a
 * forked child as a private copy. 0, or -1 with errno set. The caller unmaps it. */
int coll_heap_alias(coll_heap *, const void *piece, size_t nbytes, void *at);
/* Bytes that a block can hold; also in a forked child. */
size_t coll_heap_usable(const coll_heap *, const void *block);
/* Bytes reserved at present, with those kept for reuse. */
size_t coll_heap_reserved(coll_heap *);
static inline int coll_heap_has(const char *base, size_t size, const void *p) {
    return (size_t)((const char *)p - base) < size;
}

/* Map a peer's heap, and check by its nonce that it is the right one. Its base, or NULL with errno set. */
char *coll_heap_attach(const coll_heap_id *);
void coll_heap_detach(const coll_heap_id *, char *base);

/* Whether this is a child, by fork, of a process that had a heap. */
int coll_heap_in_child(void);
/* Copies from the private memory of process `pid`; 0, or -1 with errno set where the system does not let us. */
int coll_heap_read_private(int64_t pid, void *to, uint64_t from, size_t bytes);
/* Let process `pid` and its descendants, and no others, read the private memory of this process, where the Yama module
 * of Linux restricts this. 0, or -1 without Yama. */
int coll_heap_let_read(int64_t pid);
/* Check, by the nonce, that the private memory of a heap's process can be read. */
int coll_heap_private_is_readable(const coll_heap_id *);

#endif
