/* Fuzzes the heap: sizes of every magnitude, what is written to a block stays until it is given back, and identities
 * that have changed on their way. */
#include "fuzz.h"
#include "heap.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/types.h>

/* In place of the C library's, in which the sanitizers do not see a name read past its end. */
int shm_open(const char *name, int flags, mode_t mode) {
    for (const volatile char *p = name; *p;)
        p++;
    return ((int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, "shm_open"))(name, flags, mode);
}

enum { BLOCKS = 32 };

typedef struct {
    unsigned char *at;
    size_t size;
    unsigned char mark;
} held;

static void check(int condition) {
    if (!condition)
        abort();
}

/* Writes both ends of a block, or looks whether they are as written. */
static void ends(const held *b, int write) {
    for (size_t i = 0; i < 16 && i < b->size; i++) {
        unsigned char *places[] = {b->at + i, b->at + b->size - 1 - i};
        for (int k = 0; k < 2; k++)
            if (write)
                *places[k] = b->mark;
            else
                check(*places[k] == b->mark);
    }
}

static void take(coll_heap *h, held *b, choices *c) {
    size_t size = below(c, 4) ? draw(c, 3) : any_size(c);
    unsigned char *at = coll_heap_alloc(h, size);
    if (!at)
        return;
    *b = (held){at, size, (unsigned char)draw(c, 1)};
    check((uintptr_t)at % 64 == 0 && coll_heap_usable(at) >= size && size <= coll_heap_size(h));
    check(coll_heap_has(coll_heap_base(h), coll_heap_size(h), at + size - (size > 0)));
    ends(b, 1);
}

static void change_identity(const coll_heap *h, choices *c) {
    coll_heap_id id = coll_heap_identify(h);
    uint64_t *fields[] = {(uint64_t *)&id.fd, (uint64_t *)&id.kind, &id.size, &id.nonce, &id.base};
    unsigned n = 1 + below(c, 3);
    for (unsigned i = 0; i < n; i++)
        *fields[below(c, 5)] = below(c, 2) ? any_size(c) : draw(c, 1);
    for (size_t i = 0; i < sizeof id.name; i++)
        id.name[i] = (char)(1 + below(c, 127)); /* without an end */
    char *base = coll_heap_attach(&id);
    if (base) {
        check(id.nonce == coll_heap_identify(h).nonce && id.size == coll_heap_size(h));
        (void)*(volatile char *)(base + id.size - 1); /* there to be read */
        coll_heap_detach(&id, base);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t left) {
    choices c = {data, left};
    held blocks[BLOCKS] = {0};
    coll_heap *h = coll_heap_new(below(&c, 4) ? 1 << 22 : 1 << 16, below(&c, 8) ? COLL_HEAP_MEMFD : COLL_HEAP_POSIX);
    check(h != NULL);
    while (c.left) {
        held *b = &blocks[below(&c, BLOCKS)];
        if (b->at) {
            ends(b, 0);
            coll_heap_release(h, b->at);
            b->at = NULL;
        } else if (below(&c, 16)) {
            take(h, b, &c);
        } else {
            change_identity(h, &c);
        }
    }
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at)
            ends(&blocks[i], 0);
    coll_heap_free(h);
    return 0;
}
