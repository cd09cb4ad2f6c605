/* Elementwise reductions: one list of types, one list of ops, one plain loop, compiled once per instruction set.
 *
 * Every function works on buffers of n elements, at any addresses, and allocates nothing. All instruction sets give the
 * same bits, with one exception: of different NaN operands of float32, float64 or complex types, either may survive. */
#ifndef COLL_KERNELS_H
#define COLL_KERNELS_H

#include <stddef.h>

/* These numbers are the ABI between C and Python; they come from the list COLL_TYPES in types.h. */
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

/* float16 and bfloat16 to float32 and back, rounded to nearest even, as reducep does it before and after folding. NULL
 * for other types. */
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

/* NULL if the op does not apply to the type. For avg, reduce2 is the plain sum, and reducep divides by p before it
 * rounds. scale exists for the types that have avg, and is NULL for others. */
coll_reduce2_fn coll_reduce2(coll_dtype t, coll_op op);
coll_reducep_fn coll_reducep(coll_dtype t, coll_op op);
coll_scale_fn coll_scale(coll_dtype t);

/* The same functions with stores that always bypass the cache (if the targets' alignment allows it and no target is a
 * source), for results too large to be read from the cache later. The functions above do so in calls that touch at
 * least 16 MiB; coll_stream_bytes sets that threshold and returns the previous one. */
coll_reduce2_fn coll_reduce2_stream(coll_dtype t, coll_op op);
coll_reducep_fn coll_reducep_stream(coll_dtype t, coll_op op);
size_t coll_stream_bytes(size_t nbytes);
/* memcpy for at least COLL_COPY_FROM bytes, equally fast for all positions of the buffers in their pages. The C library
 * uses rep movsb for these lengths, which may be ten times as slow if dst is a few bytes after src in the page (AMD Zen
 * 3 and 4: glibc bug 30994). */
enum { COLL_COPY_FROM = 2048 };
void coll_copy(void *dst, const void *src, size_t nbytes);
/* memcpy with stores past the cache, if the machine has them. */
void coll_copy_stream(void *dst, const void *src, size_t nbytes);

/* Instruction sets: "baseline", "avx2", "avx512". coll_isa_select(NULL) selects the one that COLLECTIVES_ISA names,
 * else the best one that the processor has. Returns 0, or -1, without any change, if the name is unknown or the
 * processor lacks it. */
const char *coll_isa(void);
int coll_isa_supported(const char *name);
int coll_isa_select(const char *name);

#endif
