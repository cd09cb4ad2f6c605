/* The loops of exact sums, with the compiler's vector types; included by loops.h, once for each instruction set. */

#if defined(__AVX512F__)
enum { VEC_BYTES = 64 };
#elif defined(COLL_F16C)
enum { VEC_BYTES = 32 };
#else
enum { VEC_BYTES = 16 };
#endif
enum { VEC = VEC_BYTES / 8, VECS = COLL_TILE_LEAST / VEC }; /* elements of a vector; vectors processed together */

typedef double coll_vec __attribute__((vector_size(VEC_BYTES)));
typedef float coll_short_vec __attribute__((vector_size(VEC_BYTES / 2)));
typedef int64_t coll_mask __attribute__((vector_size(VEC_BYTES)));

/* s = s + y, e = the rounding error (Knuth's TwoSum). If s overflows, e is NaN. */
#define COLL_TWO_SUM(s, e, y)                                                                                          \
    do {                                                                                                               \
        coll_vec z_ = s + y, b_ = z_ - s;                                                                              \
        e = (s - (z_ - b_)) + (y - b_);                                                                                \
        s = z_;                                                                                                        \
    } while (0)

COLL_INLINE void load_float64(coll_vec *v, const coll_elem_float64 *x, int width) {
    *v = (coll_vec){0};
    memcpy(v, x, (size_t)width * sizeof *x);
}

COLL_INLINE void load_float32(coll_vec *v, const coll_elem_float32 *x, int width) {
    coll_short_vec narrow = {0};
    memcpy(&narrow, x, (size_t)width * sizeof *x);
    *v = __builtin_convertvector(narrow, coll_vec);
}

/* The sums of the elements of one vector, and a mask of those that may be wrong. A sum of two terms is rounded only
 * once in any case (float32 too: first to double, then to float32, since 53 digits are more than 2 * 24 + 1). For more
 * terms t sums the errors of s: if t itself has no error, s + t is exact before its one rounding. */
COLL_INLINE void sum_float64(coll_vec *sum, coll_mask *wrong, const void *const *src, int p, size_t i, int width) {
    coll_vec s, y, e, f, t = {0};
    load_float64(&s, (const coll_elem_float64 *)src[0] + i, width);
    if (p == 2) {
        load_float64(&y, (const coll_elem_float64 *)src[1] + i, width);
        *sum = s + y;
        *wrong = *sum != *sum;
        return;
    }
    *wrong = s != s;
    for (int k = 1; k < p; k++) {
        load_float64(&y, (const coll_elem_float64 *)src[k] + i, width);
        COLL_TWO_SUM(s, e, y);
        COLL_TWO_SUM(t, f, e);
        *wrong |= f != 0;
    }
    coll_mask exact = t == 0; /* where t is 0, s + t would lose the sign of -0 */
    coll_vec both = s + t;
    *sum = (coll_vec)((exact & (coll_mask)s) | (~exact & (coll_mask)both));
}

/* Like sum_float64; double holds most sums of float32 exactly, and these are rounded once. */
COLL_INLINE void sum_float32(coll_vec *sum, coll_mask *wrong, const void *const *src, int p, size_t i, int width) {
    coll_vec s, y, e;
    load_float32(&s, (const coll_elem_float32 *)src[0] + i, width);
    if (p == 2) {
        load_float32(&y, (const coll_elem_float32 *)src[1] + i, width);
        *sum = s + y;
        *wrong = *sum != *sum;
        return;
    }
    *wrong = s != s;
    for (int k = 1; k < p; k++) {
        load_float32(&y, (const coll_elem_float32 *)src[k] + i, width);
        COLL_TWO_SUM(s, e, y);
        *wrong |= e != 0;
    }
    *sum = s;
}

COLL_INLINE void store_float64(coll_elem_float64 *x, const coll_vec *v) {
    memcpy(x, v, sizeof *v);
}

COLL_INLINE void store_float32(coll_elem_float32 *x, const coll_vec *v) {
    coll_short_vec narrow = __builtin_convertvector(*v, coll_short_vec);
    memcpy(x, &narrow, sizeof narrow);
}

static int exact_any(const coll_mask *wrong) {
    int64_t any = 0;
    for (int l = 0; l < VEC; l++)
        any |= (*wrong)[l];
    return any != 0;
}

/* dst[j][i] = the exact sum of the p sources, rounded; a target may be a source. The mask of wrong sums is tested once
 * for each block. */
enum { EXACT_BLOCK = 64 };
#define VEC_OR_REST(whole) ((whole) || n - k > VEC ? VEC : n - k) /* a constant if all vectors are whole */
#define COLL_EXACT_SUM(T)                                                                                              \
    static void exact_mend_##T(coll_elem_##T *made, const void *const *src, int p, size_t i, int n) {                  \
        for (int k = 0; k < n; k += VEC) {                                                                             \
            coll_vec sum;                                                                                              \
            coll_mask wrong;                                                                                           \
            sum_##T(&sum, &wrong, src, p, i + (size_t)k, VEC_OR_REST(0));                                              \
            for (int l = 0; l < VEC_OR_REST(0); l++)                                                                   \
                if (wrong[l])                                                                                          \
                    made[k + l] = coll_exact_one_##T(src, p, i + (size_t)(k + l));                                     \
        }                                                                                                              \
    }                                                                                                                  \
    COLL_INLINE void exact_block_##T(void *const *dst, int q, const void *const *src, int p, size_t i, int n,          \
                                     int whole) {                                                                      \
        coll_elem_##T made[EXACT_BLOCK];                                                                               \
        coll_vec sum;                                                                                                  \
        coll_mask wrong, any = {0};                                                                                    \
        for (int k = 0; k < n; k += VEC) {                                                                             \
            sum_##T(&sum, &wrong, src, p, i + (size_t)k, VEC_OR_REST(whole));                                          \
            store_##T(made + k, &sum);                                                                                 \
            any |= wrong;                                                                                              \
        }                                                                                                              \
        if (exact_any(&any))                                                                                           \
            exact_mend_##T(made, src, p, i, n);                                                                        \
        for (int j = 0; j < q; j++)                                                                                    \
            memcpy((coll_elem_##T *)dst[j] + i, made, (size_t)n * sizeof *made);                                       \
    }                                                                                                                  \
    static void exact_sum_##T(void *const *dst, int q, const void *const *src, int p, size_t n) {                      \
        size_t whole = n / EXACT_BLOCK * EXACT_BLOCK;                                                                  \
        for (size_t i = 0; i < whole; i += EXACT_BLOCK)                                                                \
            exact_block_##T(dst, q, src, p, i, EXACT_BLOCK, 1);                                                        \
        if (n > whole)                                                                                                 \
            exact_block_##T(dst, q, src, p, whole, (int)(n - whole), 0);                                               \
    }
COLL_EXACT_SUM(float32)
COLL_EXACT_SUM(float64)

static void exact_widen(double *dst, const coll_elem_float32 *src, size_t n) {
    for (size_t i = 0; i < n; i += VEC) {
        coll_vec v;
        load_float32(&v, src + i, VEC);
        memcpy(dst + i, &v, sizeof v);
    }
}

static double exact_largest(const coll_elem_float64 *x, size_t n) {
    coll_vec most[VECS] = {{0}};
    for (size_t i = 0; i < n; i += COLL_TILE_LEAST) {
        COLL_UNROLLED
        for (int k = 0; k < VECS; k++) {
            coll_vec v;
            load_float64(&v, x + i + k * VEC, VEC);
            v = (coll_vec)((coll_mask)v & INT64_MAX);
            coll_mask more = v > most[k];
            most[k] = (coll_vec)((more & (coll_mask)v) | (~more & (coll_mask)most[k]));
        }
    }
    double found = 0;
    for (int l = 0; l < COLL_TILE_LEAST; l++)
        found = most[l / VEC][l % VEC] > found ? most[l / VEC][l % VEC] : found;
    return found;
}

/* Split every term at the last bit of sigma: returns the exact sum of the upper parts. rest = the lower parts, *left =
 * whether any of these is not 0. */
static double exact_extract(double *rest, const coll_elem_float64 *x, size_t n, double sigma, int *left) {
    coll_vec sums[VECS] = {{0}};
    coll_mask remains = {0};
    for (size_t i = 0; i < n; i += COLL_TILE_LEAST) {
        COLL_UNROLLED
        for (int k = 0; k < VECS; k++) {
            coll_vec v, part;
            load_float64(&v, x + i + k * VEC, VEC);
            part = (v + sigma) - sigma;
            sums[k] += part;
            v -= part;
            remains |= v != 0;
            memcpy(rest + i + k * VEC, &v, sizeof v);
        }
    }
    double sum = 0;
    *left = 0;
    for (int l = 0; l < COLL_TILE_LEAST; l++) {
        sum += sums[l / VEC][l % VEC];
        *left |= remains[l % VEC] != 0;
    }
    return sum;
}
