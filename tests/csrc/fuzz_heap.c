/* Fuzzes the heap: sizes of every magnitude, blocks that grow and shrink, what is written to a block stays until it is
 * given back and no block lies over another, forked children see what they were given, and identities that have changed
 * on their way. */
#include "fuzz.h"
#include "heap/heap.h"

#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 32, CHILDREN = 2 };

typedef struct {
    unsigned char *at;
    size_t size;
    unsigned char mark;
} held;

static int shorts, only_long, forks; /* in this input: short blocks were there; there shall be none; forks shall be */

typedef struct { /* a child that looks at all blocks once more when it is told to */
    pid_t pid;
    int go;
} child;

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

static void all_ends(const held *blocks) {
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at)
            ends(&blocks[i], 0);
}

/* A block that overlaps another would have its marks, or what lies between them. */
static void is_apart(const held *blocks, const held *b) {
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at && &blocks[i] != b)
            check(blocks[i].at + blocks[i].size <= b->at || b->at + b->size <= blocks[i].at);
}

static void take(coll_heap *h, held *blocks, held *b, choices *c) {
    size_t size = below(c, 4) ? draw(c, 3) : any_size(c);
    size += only_long && size < SIZE_MAX - (9 << 10) ? (8 << 10) + 1 : 0;
    unsigned char *at = coll_heap_alloc(h, size);
    if (!at)
        return;
    *b = (held){at, size, (unsigned char)draw(c, 1)};
    shorts |= size <= 8 << 10;
    check((uintptr_t)at % 64 == 0 && coll_heap_usable(h, at) >= size && size <= coll_heap_size(h));
    check(coll_heap_has(coll_heap_base(h), coll_heap_size(h), at + size - (size > 0)));
    is_apart(blocks, b);
    ends(b, 1);
}

static void resize(coll_heap *h, held *blocks, held *b, choices *c) {
    size_t size = below(c, 2) ? draw(c, 3) : b->size / (1 + below(c, 8));
    ends(b, 0);
    if (!coll_heap_resize(h, b->at, size))
        return;
    b->size = size;
    check(coll_heap_usable(h, b->at) >= size);
    is_apart(blocks, b);
    ends(b, 1);
}

/* A child checks what it sees, writes to it, gets nothing, and looks at what was the parent's when that is gone. */
static child fork_one(coll_heap *h, const held *blocks) {
    int go[2];
    char word;
    check(pipe(go) == 0);
    child one = {fork(), go[1]};
    check(one.pid >= 0);
    if (one.pid == 0) {
        close(go[1]);
        all_ends(blocks);
        check(!coll_heap_alloc(h, 100) && coll_heap_is_inherited(h));
        check(read(go[0], &word, 1) == 1);
        all_ends(blocks);
        for (int i = 0; i < BLOCKS; i++)
            if (blocks[i].at) {
                check(coll_heap_usable(h, blocks[i].at) >= blocks[i].size && !coll_heap_resize(h, blocks[i].at, 1));
                memset(blocks[i].at, ~blocks[i].mark, blocks[i].size);
                coll_heap_release(h, blocks[i].at);
            }
        _exit(0);
    }
    close(go[0]);
    return one;
}

static void await(child *one) {
    int status;
    check(write(one->go, "", 1) == 1);
    close(one->go);
    check(waitpid(one->pid, &status, 0) == one->pid && status == 0);
    one->pid = 0;
}

static void change_identity(const coll_heap *h, choices *c) {
    coll_heap_id id = coll_heap_identify(h);
    uint64_t *fields[] = {(uint64_t *)&id.fd, &id.size, &id.nonce, &id.base};
    unsigned n = 1 + below(c, 3);
    for (unsigned i = 0; i < n; i++)
        *fields[below(c, 4)] = below(c, 2) ? any_size(c) : draw(c, 1);
    char *base = coll_heap_attach(&id);
    if (base) {
        check(id.nonce == coll_heap_identify(h).nonce && id.size == coll_heap_size(h));
        (void)*(volatile char *)(base + id.size - 1); /* there to be read */
        coll_heap_detach(&id, base);
    }
}

static void act(coll_heap *h, held *blocks, child *children, choices *c) {
    held *b = &blocks[below(c, BLOCKS)];
    unsigned what = below(c, 64);
    child *one = &children[what / 2 % CHILDREN];
    if (what < 2 * CHILDREN && forks) {
        if (one->pid)
            await(one);
        else if (what % 2)
            *one = fork_one(h, blocks);
    } else if (b->at && what < 16 && !children[0].pid && !children[1].pid) { /* they would see the new marks */
        resize(h, blocks, b, c);
    } else if (b->at) {
        ends(b, 0);
        coll_heap_release(h, b->at);
        b->at = NULL;
    } else if (what < 60) {
        take(h, blocks, b, c);
    } else {
        change_identity(h, c);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t left) {
    choices c = {data, left};
    held blocks[BLOCKS] = {0};
    child children[CHILDREN] = {0};
    shorts = 0;
    only_long = (int)below(&c, 2);
    forks = below(&c, 16) == 0;
    coll_heap *h = coll_heap_new(below(&c, 4) ? 1 << 22 : 1 << 16);
    check(h != NULL);
    while (c.left)
        act(h, blocks, children, &c);
    for (int i = 0; i < CHILDREN; i++)
        if (children[i].pid)
            await(&children[i]);
    all_ends(blocks);
    for (int i = 0; i < BLOCKS; i++)
        coll_heap_release(h, blocks[i].at);
    if (!shorts) { /* all is in one piece again; of short blocks the heap keeps a slab of each length */
        void *whole = coll_heap_alloc(h, coll_heap_size(h) - 4096);
        check(whole != NULL);
        coll_heap_release(h, whole);
    }
    coll_heap_free(h);
    return 0;
}
