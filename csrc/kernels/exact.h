/* Exact sums of float32 and float64: rounded once, to nearest even, so that they depend neither on the order of the
 * terms nor on how these are grouped.
 *
 * An accumulator is a fixed-point number in two's complement whose unit is the smallest subnormal, wide enough for
 * every sum of 2^63 terms (Kulisch 1971). Adding two of them is adding integers: associative and commutative to the
 * bit, so that every algorithm that reduces gives the same accumulator. Long runs of terms are split in parts of few
 * bits, which double adds without error (Rump, Ogita, Oishi 2008: ExtractVector), and the sums of parts go to the
 * accumulator. */
#ifndef COLL_KERNELS_EXACT_H
#define COLL_KERNELS_EXACT_H

#include <stdint.h>
#include "kernels.h"
#include "types.h"

/* 2^-149 to 2^128 and 2^-1074 to 2^1024, 63 bits for carries, and the sign. */
enum { COLL_LIMBS_float32 = 6, COLL_LIMBS_float64 = 34 };

/* What was added besides finite numbers; in the word after the limbs, joined by OR. */
enum { COLL_SEEN_INF = 1, COLL_SEEN_MINUS_INF = 2, COLL_SEEN_NAN = 4, COLL_SEEN_MINUS_ZERO = 8, COLL_SEEN_OTHER = 16 };

typedef uint64_t COLL_ANYWHERE coll_limb;
typedef struct {
    coll_limb limb[COLL_LIMBS_float32], seen;
} coll_exact32_t;
typedef struct {
    coll_limb limb[COLL_LIMBS_float64], seen;
} coll_exact64_t;

/* The accumulators' type for float32 or float64, or -1. Their one op is reproducible_sum, which coll_reduce2 has for
 * them. For float32 and float64 themselves coll_reducep alone has it: there all terms meet, and are rounded once. */
coll_dtype coll_exact_of(coll_dtype t);

/* accumulators[i] += the `each` terms from i * each on, for i < n. A new accumulator is zero bytes. t: float32,
 * float64. */
void coll_exact_add(coll_dtype t, void *accumulators, const void *terms, size_t each, size_t n);

/* dst[i] = accumulators[i], rounded. Too large is infinite; infinities of both signs and NaN give the one positive
 * quiet NaN; a zero sum is -0 where all terms were -0 (of which there was one), else +0. */
void coll_exact_round(coll_dtype t, void *dst, const void *accumulators, size_t n);

#endif
