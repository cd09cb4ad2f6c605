/* The interface between the loops of each instruction set and the code that all instruction sets share. */
#ifndef COLL_KERNELS_INTERNAL_H
#define COLL_KERNELS_INTERNAL_H

#include <stdatomic.h>
#include "exact.h"
#include "kernels.h"
#include "ops.h"
#include "types.h"

/* Sources that one pass folds into the first operand; more would need too many registers and hardware prefetchers. */
#define COLL_FAN 4

/* dst[i] = first[i] op src[0][i] op ... op src[m-1][i], for 1 <= m <= COLL_FAN. */
typedef void (*coll_fold_fn)(void *dst, const void *first, const void *const *src, int m, size_t n);

/* dst0[i] = dst1[i] = left[i] op right[i]; each target may be one of the operands, exactly. */
typedef void (*coll_twin_fn)(void *dst0, void *dst1, const void *left, const void *right, size_t n);

/* Copy whole 64-byte lines past the cache; dst must be aligned to 64 bytes. */
typedef void (*coll_stream_fn)(void *dst, const void *src, size_t nbytes);

typedef void (*coll_copy_fn)(void *dst, const void *src, size_t nbytes);

/* One op on one type. The four folds differ only if the accumulator is wider than the element. */
struct coll_fold {
    coll_fold_fn fold;   /* elements to elements */
    coll_fold_fn begin;  /* elements to accumulators */
    coll_fold_fn extend; /* accumulators and elements to accumulators */
    coll_fold_fn finish; /* accumulators and elements to elements */
    coll_twin_fn twin;
    coll_stream_fn stream; /* NULL if the machine has no such stores */
    size_t size, acc_size;
};

#define COLL_PASTE_(a, b) a##b
#define COLL_PASTE(a, b)  COLL_PASTE_(a, b)
#define COLL_STRING_(a)   #a
#define COLL_STRING(a)    COLL_STRING_(a)

struct coll_entry {
    coll_reduce2_fn reduce2, reduce2_stream;
    coll_reducep_fn reducep, reducep_stream;
};

struct coll_isa {
    const char *name;
    const struct coll_isa *next; /* has the entries that this instruction set lacks; may be NULL */
    struct coll_entry entry[COLL_NTYPES][COLL_NOPS];
    coll_scale_fn scale[COLL_NTYPES];
    coll_stream_fn stream;           /* NULL if the machine has no such stores */
    coll_copy_fn copy_up, copy_down; /* for at least COLL_COPY_FROM bytes */
    coll_widen_fn widen[2];          /* float16, bfloat16 */
    coll_narrow_fn narrow[2];
    /* Exact sums: of p sources, and of a tile of terms in whole vectors (exact_loops.h). */
    struct coll_entry exact_sum[2];
    void (*exact_widen)(double *dst, const coll_elem_float32 *src, size_t n);
    double (*exact_largest)(const coll_elem_float64 *x, size_t n);
    double (*exact_extract)(double *rest, const coll_elem_float64 *x, size_t n, double sigma, int *left);
};

enum { COLL_TILE = 1024, COLL_TILE_LEAST = 16 };

/* The exact sum of element i of the p sources, rounded; slow, and seldom needed. */
float coll_exact_one_float32(const void *const *src, int p, size_t i);
double coll_exact_one_float64(const void *const *src, int p, size_t i);

/* The functions of reproducible_sum for a type; NULL for types without it. */
const struct coll_entry *coll_exact_entry(coll_dtype t);
const struct coll_isa *coll_current_isa(void);

extern const struct coll_isa coll_isa_baseline;
#ifdef __x86_64__
extern const struct coll_isa coll_isa_avx2, coll_isa_avx512;
#endif

/* Calls that touch at least this many bytes store past the cache. */
extern _Atomic size_t coll_stream_from;

static inline int coll_streams(size_t n, size_t nbytes_each) {
    return n >= atomic_load_explicit(&coll_stream_from, memory_order_relaxed) / nbytes_each;
}

/* Run a fold over q targets and p sources, tile by tile. `divide`, if not NULL, makes the mean: accumulators / p to
 * elements. `stream` asks for stores past the cache, which are used if the targets' addresses allow it. */
void coll_run(const struct coll_fold *f, void *const *dst, int q, const void *const *src, int p, size_t n,
              coll_scale_fn divide, int stream);

/* Copy with stores past the cache; `stream` may be NULL. */
void coll_run_copy(coll_stream_fn stream, void *dst, const void *src, size_t nbytes);

#endif
