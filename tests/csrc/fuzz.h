/* What the fuzzers' drivers share: an input as a stream of choices. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The entry that libFuzzer calls as well; fuzz_main.c is for compilers without it. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    const uint8_t *at;
    size_t left;
} choices;

/* The next bytes as a number; zeros at the end of the input. */
static inline uint64_t draw(choices *c, size_t bytes) {
    uint64_t value = 0;
    size_t n = bytes < c->left ? bytes : c->left;
    memcpy(&value, c->at, n);
    c->at += n;
    c->left -= n;
    return value;
}

static inline unsigned below(choices *c, unsigned n) {
    return (unsigned)draw(c, 1) % n;
}

/* One of n numbers from `first` on, and once in a while anything at all. */
static inline int32_t mostly(choices *c, int first, unsigned n) {
    unsigned x = (unsigned)draw(c, 1);
    return x < 250 ? first + (int32_t)(x % n) : (int32_t)draw(c, 4);
}

/* Sizes of every magnitude, many of them next to where products overflow. */
static inline size_t any_size(choices *c) {
    unsigned shift = below(c, 64);
    return ((size_t)1 << shift) + (size_t)(int8_t)draw(c, 1);
}

#endif
