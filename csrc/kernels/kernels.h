/* Elementwise reductions: one list of types, one list of ops, one plain loop, compiled once per instruction set.
 *
 * Every function works on buffers of n elements, at any addresses, and allocates nothing. All instruction sets give the
 * same bits; only where float32, float64 and complex operands are different NaN, either may survive. */
#ifndef COLL_KERNELS_H
#define COLL_KERNELS_H

#include <stddef.h>

/* The numbers are the ABI between C and Python; COLL_TYPES in types.h is the one list they come from. */
typedef int coll_dtype;
typedef int coll_op;

/* dst[i] = left[i] op right[i]. dst may be left or right (exactly); other overlap is undefined. */
typedef void (*coll_reduce2_fn)(void *dst, const void *left, const void *right, size_t n);

/* dst[j][i] = src[0][i] op ... op src[p-1][i], folded from the left in that order, for the q targets j; p, q >= 1.
 * float16 and bfloat16 accumulate in float32 and round once; reproducible_sum is exact and rounds once (exact.h). A
 * target may be one of the sources (exactly), and the targets are distinct. With p = 1 the bytes are copied. */
typedef void (*coll_reducep_fn)(void *const *dst, int q, const void *const *src, int p, size_t n);

/* dst[i] = src[i] / p: the second half of avg, for engines that fold by pairs. dst may be src. */
typedef void (*coll_scale_fn)(void *dst, const void *src, int p, size_t n);

/* float16 and bfloat16 to float32, and back, rounding to nearest even: what reducep does around its fold. NULL for
 * other types. */
typedef void (*coll_widen_fn)(float *dst, const void *src, size_t n);
typedef void (*coll_narrow_fn)(void *dst, const float *src, size_t n);
coll_widen_fn coll_widen(coll_dtype t);
coll_narrow_fn coll_narrow(coll_dtype t);

/* Number of types and ops, and their names ("float32", "sum"); NULL outside the range. */
int coll_ndtypes(void);
int coll_nops(void);
const char *coll_dtype_name(coll_dtype t);
const char *coll_op_name(coll_op op);
size_t coll_dtype_size(coll_dtype t);

/* NULL where the op does not apply to the type. For avg, reduce2 is the plain sum, and reducep divides by p before it
 * rounds; scale exists for the types that have avg, and is NULL for the others. */
coll_reduce2_fn coll_reduce2(coll_dtype t, coll_op op);
coll_reducep_fn coll_reducep(coll_dtype t, coll_op op);
coll_scale_fn coll_scale(coll_dtype t);

/* The same functions, always storing past the cache (where the targets' alignment allows it and no target is a source).
 * They are for pieces of results too large to be read from the cache later. The functions above do so by themselves in
 * calls that touch at least 16 MiB; coll_stream_bytes sets that threshold and returns the former one. */
coll_reduce2_fn coll_reduce2_stream(coll_dtype t, coll_op op);
coll_reducep_fn coll_reducep_stream(coll_dtype t, coll_op op);
size_t coll_stream_bytes(size_t nbytes);
/* memcpy, for at least COLL_COPY_FROM bytes as fast wherever in their pages the two begin: what the C library takes for
 * these lengths, rep movsb, may have a tenth of the speed where dst is a few bytes ahead of src there (AMD Zen 3 and 4:
 * glibc bug 30994). */
enum { COLL_COPY_FROM = 2048 };
void coll_copy(void *dst, const void *src, size_t nbytes);
/* memcpy with such stores, where the machine has them. */
void coll_copy_stream(void *dst, const void *src, size_t nbytes);

/* Instruction sets: "baseline", "avx2", "avx512". coll_isa_select(NULL) takes the best one that the processor has, or
 * what COLLECTIVES_ISA names; returns 0, or -1 when the name is unknown or the processor lacks it (the choice is then
 * unchanged). */
const char *coll_isa(void);
int coll_isa_supported(const char *name);
int coll_isa_select(const char *name);

#endif
