/* Runs every kernel on buffers of exactly their size, so that the address sanitizer sees each step outside, and
 * compares the forms of a reduction with each other. What the values should be is test_kernels.py's business. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../csrc/kernels/kernels.h"

enum { SOURCES = 12, TARGETS = 3 };

static const size_t lengths[] = {0, 1, 2, 7, 15, 16, 17, 31, 33, 65, 1000, 4099, 20011};

static unsigned state = 1;

/* Any bytes are valid elements of every type but long double, where small ones are numbers. */
static void fill(unsigned char *bytes, size_t n, int any) {
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        bytes[i] = any ? (unsigned char)(state >> 24) : 0;
    }
}

static int differ(const char *what, coll_dtype t, coll_op op, size_t n) {
    fprintf(stderr, "%s: %s %s %s, n = %zu\n", coll_isa(), what, coll_dtype_name(t), coll_op_name(op), n);
    return 1;
}

/* Buffers begin on whole lines, or a multiple of `skew` bytes after one: elements lie at any address. */
static int check(coll_dtype t, coll_op op, size_t n, int skew) {
    size_t nbytes = n * coll_dtype_size(t);
    int any = strcmp(coll_dtype_name(t), "long_double_int") != 0, bad = 0;
    unsigned char *src[SOURCES], *dst[TARGETS];
    const void *sources[SOURCES];
    void *targets[TARGETS];
    for (int k = 0; k < SOURCES; k++) {
        src[k] = (unsigned char *)malloc(nbytes + (size_t)(skew * k)) + skew * k;
        fill(src[k], nbytes, any);
        sources[k] = src[k];
    }
    for (int j = 0; j < TARGETS; j++) {
        dst[j] = (unsigned char *)malloc(nbytes + (size_t)(skew * (j + 3))) + skew * (j + 3);
        fill(dst[j], nbytes, 0);
        targets[j] = dst[j];
    }
    for (int p = 1; p <= SOURCES; p++) {
        coll_reducep(t, op)(targets, TARGETS, sources, p, n);
        for (int j = 1; j < TARGETS && n; j++)
            if (memcmp(dst[0], dst[j], nbytes))
                bad = differ("targets differ", t, op, n);
        coll_reducep_stream(t, op)(targets + 1, 1, sources, p, n);
        if (n && memcmp(dst[0], dst[1], nbytes))
            bad = differ("reducep_stream differs", t, op, n);
    }
    coll_reduce2(t, op)(dst[0], src[0], src[1], n);
    coll_reduce2_stream(t, op)(dst[1], src[0], src[1], n);
    if (n && memcmp(dst[0], dst[1], nbytes))
        bad = differ("reduce2_stream differs", t, op, n);
    coll_reduce2(t, op)(src[0], src[0], src[1], n);
    if (n && memcmp(dst[0], src[0], nbytes))
        bad = differ("in place differs", t, op, n);
    if (coll_scale(t))
        coll_scale(t)(dst[0], src[0], 3, n);
    for (int k = 0; k < SOURCES; k++)
        free(src[k] - skew * k);
    for (int j = 0; j < TARGETS; j++)
        free(dst[j] - skew * (j + 3));
    return bad;
}

int main(void) {
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    int bad = 0;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (coll_isa_select(isas[i]))
            continue;
        for (coll_dtype t = 0; t < coll_ndtypes(); t++)
            for (coll_op op = 0; op < coll_nops(); op++)
                for (size_t l = 0; coll_reduce2(t, op) && l < sizeof lengths / sizeof *lengths; l++)
                    bad |= check(t, op, lengths[l], 0) | check(t, op, lengths[l], 1);
    }
    return bad;
}
