/* Exact sums of float32 and float64, rounded once to nearest even: they do not depend on the order or the grouping of
 * the terms.
 *
 * An accumulator is a fixed-point number in two's complement, whose unit is the smallest subnormal, wide enough for
 * every sum of 2^63 terms (Kulisch 1971). Adding accumulators is integer addition, associative and commutative to the
 * bit, so that every reduction algorithm gives the same accumulator. Long runs of terms are split into parts of few
 * bits, which double adds without error (Rump, Ogita, Oishi 2008: ExtractVector); the sums of the parts are added to
 * the accumulator. */
#ifndef COLL_KERNELS_EXACT_H
#define COLL_KERNELS_EXACT_H

#include <stdint.h>
#include "kernels.h"
#include "types.h"

/* Limbs for 2^-149 to 2^128 and 2^-1074 to 2^1024, 63 bits for carries, and the sign. */
enum { COLL_LIMBS_float32 = 6, COLL_LIMBS_float64 = 34 };

/* Flags for terms other than finite numbers, in the word after the limbs. */
enum { COLL_SEEN_INF = 1, COLL_SEEN_MINUS_INF = 2, COLL_SEEN_NAN = 4, COLL_SEEN_MINUS_ZERO = 8, COLL_SEEN_OTHER = 16 };

typedef uint64_t COLL_ANYWHERE coll_limb;
typedef struct {
    coll_limb limb[COLL_LIMBS_float32], seen;
} coll_exact32_t;
typedef struct {
    coll_limb limb[COLL_LIMBS_float64], seen;
} coll_exact64_t;

/* The type of the accumulators for float32 or float64, or -1. Their only op is reproducible_sum, by coll_reduce2. For
 * float32 and float64 themselves only coll_reducep has that op: it sees all terms and rounds once. */
coll_dtype coll_exact_of(coll_dtype t);

/* accumulators[i] += terms[i * each] + ... + terms[i * each + each - 1], for i < n. A new accumulator is all zero
 * bytes. t: float32 or float64. */
void coll_exact_add(coll_dtype t, void *accumulators, const void *terms, size_t each, size_t n);

/* dst[i] = accumulators[i], rounded. Values too large become infinite. Infinities of both signs, and NaN, give the one
 * positive quiet NaN. A zero sum is -0 if all terms were -0 and there was at least one, else +0. */
void coll_exact_round(coll_dtype t, void *dst, const void *accumulators, size_t n);

#endif
