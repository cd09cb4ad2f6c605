/* Accumulators of exact sums, limb by limb, and sums of many terms into one accumulator. */
#include <string.h>
#include "exact.h"
#include "internal.h"

enum { EXPONENTS = 2047, DIGITS_float32 = 24, DIGITS_float64 = 53, TINY_float32 = -149, TINY_float64 = -1074 };

static inline uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double power(uint64_t field) {
    double x;
    field <<= 52;
    memcpy(&x, &field, sizeof x);
    return x;
}

/* The magnitude of x, in units of 2^tiny, as two limbs *low and *high; returns the limb at which they begin. */
static inline uint64_t place(double x, int tiny, uint64_t *low, uint64_t *high) {
    uint64_t bits = bits_of(x), field = bits >> 52 & EXPONENTS, digits = bits & (((uint64_t)1 << 52) - 1);
    digits |= (uint64_t)(field != 0) << 52;
    int64_t at = (int64_t)(field + (field == 0)) - 1075 - tiny;
    if (at < 0) { /* in sums of float32 there are no bits below the unit */
        digits >>= -at;
        at = 0;
    }
    *low = digits << at % 64;
    *high = digits >> 1 >> (63 - at % 64);
    return (uint64_t)at / 64;
}

static inline void add_finite(coll_limb *limb, int limbs, double x, int tiny) {
    uint64_t low, high, i = place(x, tiny, &low, &high);
    coll_limb *to = limb + i, *end = limb + limbs;
    int carry;
    if (bits_of(x) >> 63) {
        carry = __builtin_sub_overflow(to[0], low, &to[0]);
        high += (uint64_t)carry;
        carry = __builtin_sub_overflow(to[1], high, &to[1]);
        for (to += 2; carry && to < end; to++)
            carry = __builtin_sub_overflow(*to, 1, to);
    } else {
        carry = __builtin_add_overflow(to[0], low, &to[0]);
        high += (uint64_t)carry;
        carry = __builtin_add_overflow(to[1], high, &to[1]);
        for (to += 2; carry && to < end; to++)
            carry = __builtin_add_overflow(*to, 1, to);
    }
}

/* Add x to an accumulator; limb[limbs] has the COLL_SEEN flags. */
static inline void add_any(coll_limb *limb, int limbs, double x, int tiny) {
    uint64_t bits = bits_of(x), field = bits >> 52 & EXPONENTS;
    if (field == EXPONENTS)
        limb[limbs] |= x != x ? COLL_SEEN_NAN : bits >> 63 ? COLL_SEEN_MINUS_INF : COLL_SEEN_INF;
    else if (bits << 1)
        add_finite(limb, limbs, x, tiny);
    limb[limbs] |= bits == (uint64_t)1 << 63 ? COLL_SEEN_MINUS_ZERO : COLL_SEEN_OTHER;
}

/* Sigma is 2^ROOM times the largest term, so that no sum of parts reaches sigma: these sums are numbers of at most 53
 * bits, whose last bit is that of sigma. */
enum { ROOM = 11, PARTS = 3, HUGE_FIELD = 2000 };

/* Add a tile of whole vectors by the sums of its parts, and the rest; 0 if it must be added term by term instead. */
static int add_tile(coll_limb *limb, int limbs, const coll_elem_float64 *x, size_t n, int tiny) {
    const struct coll_isa *isa = coll_current_isa();
    uint64_t field = bits_of(isa->exact_largest(x, n)) >> 52;
    double sums[PARTS], rest[COLL_TILE];
    int left = 1, parts = 0;
    if (field == 0 || field > HUGE_FIELD)
        return 0;
    for (field += ROOM + 1; left && parts < PARTS; parts++) {
        sums[parts] = isa->exact_extract(rest, parts ? rest : x, n, power(field), &left);
        if (sums[parts] != sums[parts]) /* a NaN among the terms, which the first sum shows */
            return 0;
        field = field > 53 - ROOM ? field - (53 - ROOM) : 1;
    }
    for (int k = 0; k < parts; k++)
        add_finite(limb, limbs, sums[k], tiny);
    for (size_t i = 0; left && i < n; i++)
        if (rest[i] != 0)
            add_finite(limb, limbs, rest[i], tiny);
    limb[limbs] |= COLL_SEEN_OTHER;
    return 1;
}

static void add_run(coll_dtype t, coll_limb *limb, const void *terms, size_t n) {
    int single = t == COLL_TYPE_float32, tiny = single ? TINY_float32 : TINY_float64;
    int limbs = single ? COLL_LIMBS_float32 : COLL_LIMBS_float64;
    const coll_elem_float32 *narrow = terms;
    const coll_elem_float64 *x = terms;
    double wide[COLL_TILE];
    for (size_t i = 0, m; i < n; i += m) {
        m = n - i < COLL_TILE ? n - i : COLL_TILE;
        int vectors = m >= COLL_TILE_LEAST;
        m = vectors ? m / COLL_TILE_LEAST * COLL_TILE_LEAST : m;
        if (vectors && single)
            coll_current_isa()->exact_widen(wide, narrow + i, m);
        if (vectors && add_tile(limb, limbs, single ? wide : x + i, m, tiny))
            continue;
        for (size_t k = i; k < i + m; k++)
            add_any(limb, limbs, single ? (double)narrow[k] : x[k], tiny);
    }
}

void coll_exact_add(coll_dtype t, void *accumulators, const void *terms, size_t each, size_t n) {
    size_t words = (t == COLL_TYPE_float32 ? sizeof(coll_exact32_t) : sizeof(coll_exact64_t)) / sizeof(uint64_t);
    size_t size = coll_dtype_size(t);
    for (size_t i = 0; i < n; i++)
        add_run(t, (coll_limb *)accumulators + i * words, (const char *)terms + i * each * size, each);
}

/* The bits, without sign, of the nearest float with `digits` digits. The unit of the magnitude is that float's smallest
 * subnormal: a value below 2^digits is its own representation; each further bit adds one to the exponent. */
static inline uint64_t nearest(const uint64_t *magnitude, int limbs, int digits, uint64_t infinite) {
    int top = limbs - 1;
    while (top > 0 && !magnitude[top])
        top--;
    int length = magnitude[top] ? 64 * top + 64 - __builtin_clzll(magnitude[top]) : 0, shift = length - digits;
    if (shift <= 0)
        return magnitude[0];
    int i = shift / 64, s = shift % 64, half = (shift - 1) % 64, h = (shift - 1) / 64;
    uint64_t kept = magnitude[i] >> s;
    if (s && i + 1 < limbs)
        kept |= magnitude[i + 1] << 1 << (63 - s);
    uint64_t below = magnitude[h] & (((uint64_t)1 << half) - 1);
    for (int k = 0; k < h && !below; k++)
        below = magnitude[k];
    uint64_t bits = ((uint64_t)shift << (digits - 1)) + kept;
    bits += (magnitude[h] >> half & 1) && (below || kept & 1);
    return bits < infinite ? bits : infinite;
}

/* The bits of the rounded accumulator, as a float of `width` bits. */
static inline uint64_t rounded(const coll_limb *limb, int limbs, int digits, int width) {
    uint64_t seen = limb[limbs], magnitude[COLL_LIMBS_float64], negative = limb[limbs - 1] >> 63, any = 0;
    uint64_t infinite = (((uint64_t)1 << (width - digits)) - 1) << (digits - 1), sign = (uint64_t)1 << (width - 1);
    int infinities = seen & (COLL_SEEN_INF | COLL_SEEN_MINUS_INF);
    if (seen & COLL_SEEN_NAN || infinities == (COLL_SEEN_INF | COLL_SEEN_MINUS_INF))
        return infinite | (uint64_t)1 << (digits - 2);
    if (infinities)
        return infinite | (infinities == COLL_SEEN_MINUS_INF ? sign : 0);
    uint64_t carry = negative;
    for (int k = 0; k < limbs; k++) {
        magnitude[k] = (negative ? ~limb[k] : limb[k]) + carry;
        carry &= magnitude[k] == 0;
        any |= magnitude[k];
    }
    if (!any)
        return seen & COLL_SEEN_MINUS_ZERO && !(seen & COLL_SEEN_OTHER) ? sign : 0;
    return nearest(magnitude, limbs, digits, infinite) | (negative ? sign : 0);
}

static inline void round32(void *dst, const coll_exact32_t *a) {
    uint32_t bits = (uint32_t)rounded(a->limb, COLL_LIMBS_float32, DIGITS_float32, 32);
    memcpy(dst, &bits, sizeof bits);
}

static inline void round64(void *dst, const coll_exact64_t *a) {
    uint64_t bits = rounded(a->limb, COLL_LIMBS_float64, DIGITS_float64, 64);
    memcpy(dst, &bits, sizeof bits);
}

void coll_exact_round(coll_dtype t, void *dst, const void *accumulators, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (t == COLL_TYPE_float32)
            round32((coll_elem_float32 *)dst + i, (const coll_exact32_t *)accumulators + i);
        else
            round64((coll_elem_float64 *)dst + i, (const coll_exact64_t *)accumulators + i);
}

float coll_exact_one_float32(const void *const *src, int p, size_t i) {
    coll_exact32_t sum = {{0}, 0};
    float made;
    for (int k = 0; k < p; k++)
        add_any(sum.limb, COLL_LIMBS_float32, ((const coll_elem_float32 *)src[k])[i], TINY_float32);
    round32(&made, &sum);
    return made;
}

double coll_exact_one_float64(const void *const *src, int p, size_t i) {
    coll_exact64_t sum = {{0}, 0};
    double made;
    for (int k = 0; k < p; k++)
        add_any(sum.limb, COLL_LIMBS_float64, ((const coll_elem_float64 *)src[k])[i], TINY_float64);
    round64(&made, &sum);
    return made;
}

/* dst = a + b, for accumulators. */
static inline void add_limbs(coll_limb *dst, const coll_limb *a, const coll_limb *b, int limbs) {
    uint64_t carry = 0;
    for (int k = 0; k < limbs; k++) {
        uint64_t sum, one = (uint64_t)__builtin_add_overflow(a[k], b[k], &sum);
        carry = one + (uint64_t)__builtin_add_overflow(sum, carry, &dst[k]);
    }
    dst[limbs] = a[limbs] | b[limbs];
}

#define EXACT_FOLDS(bits, limbs)                                                                                       \
    static void add_exact##bits(void *dst, const void *left, const void *right, size_t n) {                            \
        coll_exact##bits##_t *d = dst;                                                                                 \
        const coll_exact##bits##_t *a = left, *b = right;                                                              \
        for (size_t i = 0; i < n; i++)                                                                                 \
            add_limbs(d[i].limb, a[i].limb, b[i].limb, limbs);                                                         \
    }                                                                                                                  \
    static void fold_exact##bits(void *const *dst, int q, const void *const *src, int p, size_t n) {                   \
        for (size_t i = 0; i < n; i++) {                                                                               \
            coll_exact##bits##_t sum = ((const coll_exact##bits##_t *)src[0])[i];                                      \
            for (int k = 1; k < p; k++)                                                                                \
                add_limbs(sum.limb, sum.limb, ((const coll_exact##bits##_t *)src[k])[i].limb, limbs);                  \
            for (int j = 0; j < q; j++)                                                                                \
                ((coll_exact##bits##_t *)dst[j])[i] = sum;                                                             \
        }                                                                                                              \
    }
EXACT_FOLDS(32, COLL_LIMBS_float32)
EXACT_FOLDS(64, COLL_LIMBS_float64)

coll_dtype coll_exact_of(coll_dtype t) {
    return t == COLL_TYPE_float32 ? COLL_TYPE_exact32 : t == COLL_TYPE_float64 ? COLL_TYPE_exact64 : -1;
}

const struct coll_entry *coll_exact_entry(coll_dtype t) {
    static const struct coll_entry exact32 = {add_exact32, add_exact32, fold_exact32, fold_exact32};
    static const struct coll_entry exact64 = {add_exact64, add_exact64, fold_exact64, fold_exact64};
    const struct coll_isa *isa = coll_current_isa();
    return t == COLL_TYPE_exact32   ? &exact32
           : t == COLL_TYPE_exact64 ? &exact64
           : t == COLL_TYPE_float32 ? &isa->exact_sum[0]
           : t == COLL_TYPE_float64 ? &isa->exact_sum[1]
                                    : NULL;
}
