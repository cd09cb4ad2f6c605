/* The heap: the shared memory of one process, mapped by the other ranks of its node.
 *
 * One sparse memfd, reached by peers through /proc/PID/fd: it has no name, so nothing is left when its processes end,
 * however they end. Pages are reserved when they are allocated, so that a lack of memory is an error then, and never a
 * signal later. */
#ifndef COLL_HEAP_H
#define COLL_HEAP_H

#include <stddef.h>
#include <stdint.h>

typedef struct coll_heap coll_heap;

/* What a peer needs to map a heap; plain bytes, to be sent. */
typedef struct {
    int64_t pid, fd;
    uint64_t size, nonce, base; /* base: for peers in the same process */
} coll_heap_id;

/* A heap of `size` bytes of address space. NULL with errno set. */
coll_heap *coll_heap_new(size_t size);
void coll_heap_free(coll_heap *);
coll_heap_id coll_heap_identify(const coll_heap *);
char *coll_heap_base(const coll_heap *);
size_t coll_heap_size(const coll_heap *);

/* Zeroed or not, aligned to 64 bytes; NULL with errno set (ENOMEM, ENOSPC; EPERM in a forked child). Any thread of the
 * owner may call. */
void *coll_heap_alloc(coll_heap *, size_t nbytes);
/* Gives memory back; does nothing in a forked child. What is no block, or was written past its end, is reported on
 * standard error. */
void coll_heap_release(coll_heap *, void *);
/* Whether the block holds nbytes from now on, where it is; not in a forked child. */
int coll_heap_resize(coll_heap *, void *block, size_t nbytes);
/* Whether this is a forked child, which the heap of its parent gives nothing; it reads it, and writes to its own copy.
 */
int coll_heap_is_inherited(const coll_heap *);
/* Has a piece of the heap appear at another address of this process, too, in place of what is mapped there; whole
 * pages; in a forked child, as a copy of its own. 0, or -1 with errno set. Unmapping it is the caller's. */
int coll_heap_alias(coll_heap *, const void *piece, size_t nbytes, void *at);
/* Bytes that a block can hold; in a forked child, too. */
size_t coll_heap_usable(const coll_heap *, const void *block);
/* Bytes reserved at present, those kept for reuse included. */
size_t coll_heap_reserved(coll_heap *);
static inline int coll_heap_has(const char *base, size_t size, const void *p) {
    return (size_t)((const char *)p - base) < size;
}

/* Maps a peer's heap and proves by its nonce that it is the one meant. Its base, or NULL with errno set. */
char *coll_heap_attach(const coll_heap_id *);
void coll_heap_detach(const coll_heap_id *, char *base);

/* Copies from the private memory of process `pid`; 0, or -1 with errno set where the system does not let us. */
int coll_heap_read_private(int64_t pid, void *to, uint64_t from, size_t bytes);
/* Has the system's Yama, where it asks for it, let a process and its descendants read the private memory of this one;
 * no other than these. 0, or -1 where there is no Yama. */
int coll_heap_let_read(int64_t pid);
/* Proves, by the nonce, that the private memory of a heap's process can be read so. */
int coll_heap_private_is_readable(const coll_heap_id *);

#endif
