/* The one plain loop, compiled for every type and op, and the table of the resulting functions. Each instruction set
 * has a file that includes this one. That file defines COLL_ISA, its name; COLL_F16C if it converts float16; and
 * COLL_NEXT if it leaves out entries. It also switches the compiler to the instruction set. */
#include "half.h"
#include "half_blocks.h"
#include "copies.h"

#define COLL_INLINE static inline __attribute__((always_inline))

/* A target may be exactly a source, so iterations are independent, and the compiler may assume so. */
#ifdef __clang__
#define COLL_FOREACH  _Pragma("clang loop vectorize(assume_safety)")
#define COLL_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define COLL_FOREACH  _Pragma("GCC ivdep")
#define COLL_UNROLLED _Pragma("GCC unroll 32")
#endif

/* get and set copy elements to and from accumulators: one element, or as many as COLL_WIDTH of the type. If the
 * accumulator is the element, the loop takes one element at a time, and the compiler vectorises it. */
#define COLL_ACCESS_PLAIN(T)                                                                                           \
    enum { COLL_WIDTH_##T = 1 };                                                                                       \
    COLL_INLINE void get_##T(coll_acc_##T *x, const coll_elem_##T *p, int width) {                                     \
        (void)width, *x = *p;                                                                                          \
    }                                                                                                                  \
    COLL_INLINE void set_##T(coll_elem_##T *p, const coll_acc_##T *x, int width) {                                     \
        (void)width, *p = *x;                                                                                          \
    }
#define COLL_ACCESS_HALF(T)                                                                                            \
    enum { COLL_WIDTH_##T = 32 };                                                                                      \
    COLL_INLINE void get_##T(coll_acc_##T *x, const coll_elem_##T *p, int width) {                                     \
        if (width == 1)                                                                                                \
            *x = widen_##T(*p);                                                                                        \
        else                                                                                                           \
            widen32_##T(x, p);                                                                                         \
    }                                                                                                                  \
    COLL_INLINE void set_##T(coll_elem_##T *p, const coll_acc_##T *x, int width) {                                     \
        if (width == 1)                                                                                                \
            *p = (coll_elem_##T)narrow_##T(*x);                                                                        \
        else                                                                                                           \
            narrow32_##T(p, x);                                                                                        \
    }

#define COLL_ACCESS(T, element, accumulator, access, class, twin) COLL_ACCESS_##access(T)
COLL_TYPES(COLL_ACCESS)

/* COLL_GET and COLL_SET for elements and for accumulators. */
#define COLL_COPY(to, from, width)                                                                                     \
    COLL_UNROLLED                                                                                                      \
    for (int l = 0; l < width; l++)                                                                                    \
    (to)[l] = (from)[l]
#define COLL_GET_elem(T, x, p, width) get_##T(x, p, width)
#define COLL_SET_elem(T, p, x, width) set_##T(p, x, width)
#define COLL_GET_acc(T, x, p, width)  COLL_COPY(x, p, width)
#define COLL_SET_acc(T, p, x, width)  COLL_COPY(p, x, width)

#define COLL_APPLY(T, loop)                                                                                            \
    COLL_INLINE void apply_##T##_##loop(coll_acc_##T *x, const coll_elem_##T *p, int width) {                          \
        coll_acc_##T y[COLL_WIDTH_##T];                                                                                \
        get_##T(y, p, width);                                                                                          \
        for (int l = 0; l < width; l++)                                                                                \
            x[l] = COLL_EVAL_##loop(coll_acc_##T, x[l], y[l]);                                                         \
    }

/* A fold (internal.h) from F to D, each of them elem or acc. m is a constant in each copy of the loop, so that all
 * operands of an element stay in registers. */
#define COLL_FOLD(name, T, loop, D, F)                                                                                 \
    COLL_INLINE void name##_step_##T##_##loop(coll_##D##_##T *d, const coll_##F##_##T *f,                              \
                                              const coll_elem_##T *const *s, int m, size_t i, int width) {             \
        coll_acc_##T x[COLL_WIDTH_##T];                                                                                \
        COLL_GET_##F(T, x, f + i, width);                                                                              \
        apply_##T##_##loop(x, s[0] + i, width);                                                                        \
        if (m > 1)                                                                                                     \
            apply_##T##_##loop(x, s[1] + i, width);                                                                    \
        if (m > 2)                                                                                                     \
            apply_##T##_##loop(x, s[2] + i, width);                                                                    \
        if (m > 3)                                                                                                     \
            apply_##T##_##loop(x, s[3] + i, width);                                                                    \
        COLL_SET_##D(T, d + i, x, width);                                                                              \
    }                                                                                                                  \
    COLL_INLINE void name##_loop_##T##_##loop(void *dst, const void *first, const void *const *src, int m, size_t n) { \
        const coll_elem_##T *s[COLL_FAN];                                                                              \
        for (int k = 0; k < m; k++)                                                                                    \
            s[k] = src[k];                                                                                             \
        size_t whole = n / COLL_WIDTH_##T * COLL_WIDTH_##T;                                                            \
        COLL_FOREACH                                                                                                   \
        for (size_t i = 0; i < whole; i += COLL_WIDTH_##T)                                                             \
            name##_step_##T##_##loop(dst, first, s, m, i, COLL_WIDTH_##T);                                             \
        for (size_t i = whole; COLL_WIDTH_##T > 1 && i < n; i++)                                                       \
            name##_step_##T##_##loop(dst, first, s, m, i, 1);                                                          \
    }                                                                                                                  \
    static void name##_##T##_##loop(void *dst, const void *first, const void *const *src, int m, size_t n) {           \
        switch (m) {                                                                                                   \
        case 1:                                                                                                        \
            name##_loop_##T##_##loop(dst, first, src, 1, n);                                                           \
            break;                                                                                                     \
        case 2:                                                                                                        \
            name##_loop_##T##_##loop(dst, first, src, 2, n);                                                           \
            break;                                                                                                     \
        case 3:                                                                                                        \
            name##_loop_##T##_##loop(dst, first, src, 3, n);                                                           \
            break;                                                                                                     \
        default:                                                                                                       \
            name##_loop_##T##_##loop(dst, first, src, COLL_FAN, n);                                                    \
        }                                                                                                              \
    }

/* Two operands to two targets at once, for pairs of ranks: the result need not be read again to be copied. */
#define COLL_TWIN(T, loop)                                                                                             \
    COLL_INLINE void twin_step_##T##_##loop(coll_elem_##T *d, coll_elem_##T *e, const coll_elem_##T *a,                \
                                            const coll_elem_##T *b, int width) {                                       \
        coll_acc_##T x[COLL_WIDTH_##T];                                                                                \
        get_##T(x, a, width);                                                                                          \
        apply_##T##_##loop(x, b, width);                                                                               \
        set_##T(d, x, width);                                                                                          \
        set_##T(e, x, width);                                                                                          \
    }                                                                                                                  \
    static void twin_##T##_##loop(void *dst0, void *dst1, const void *left, const void *right, size_t n) {             \
        coll_elem_##T *d = dst0, *e = dst1;                                                                            \
        const coll_elem_##T *a = left, *b = right;                                                                     \
        size_t whole = n / COLL_WIDTH_##T * COLL_WIDTH_##T;                                                            \
        COLL_FOREACH                                                                                                   \
        for (size_t i = 0; i < whole; i += COLL_WIDTH_##T)                                                             \
            twin_step_##T##_##loop(d + i, e + i, a + i, b + i, COLL_WIDTH_##T);                                        \
        for (size_t i = whole; COLL_WIDTH_##T > 1 && i < n; i++)                                                       \
            twin_step_##T##_##loop(d + i, e + i, a + i, b + i, 1);                                                     \
    }

/* The folds of one op on one type, and the functions of kernels.h that run them. */
#define COLL_ENTRIES(T, loop, begin_, extend_, finish_)                                                                \
    COLL_TWIN(T, loop)                                                                                                 \
    static const struct coll_fold folds_##T##_##loop = {                                                               \
        fold_##T##_##loop, begin_##_##T##_##loop, extend_##_##T##_##loop, finish_##_##T##_##loop,                      \
        twin_##T##_##loop, COLL_STREAM,           sizeof(coll_elem_##T),  sizeof(coll_acc_##T)};                       \
    static void reduce2_stream_##T##_##loop(void *dst, const void *left, const void *right, size_t n) {                \
        coll_run(&folds_##T##_##loop, &dst, 1, (const void *[]){left, right}, 2, n, NULL, 1);                          \
    }                                                                                                                  \
    static void reduce2_##T##_##loop(void *dst, const void *left, const void *right, size_t n) {                       \
        if (coll_streams(n, 3 * sizeof(coll_elem_##T)))                                                                \
            reduce2_stream_##T##_##loop(dst, left, right, n);                                                          \
        else                                                                                                           \
            fold_loop_##T##_##loop(dst, left, &right, 1, n);                                                           \
    }                                                                                                                  \
    COLL_MANY(reducep, T, loop, NULL)

#define COLL_MANY(name, T, loop, divide)                                                                               \
    static void name##_stream_##T##_##loop(void *const *dst, int q, const void *const *src, int p, size_t n) {         \
        coll_run(&folds_##T##_##loop, dst, q, src, p, n, divide, 1);                                                   \
    }                                                                                                                  \
    static void name##_##T##_##loop(void *const *dst, int q, const void *const *src, int p, size_t n) {                \
        int stream = coll_streams(n, ((size_t)p + (size_t)q) * sizeof(coll_elem_##T));                                 \
        coll_run(&folds_##T##_##loop, dst, q, src, p, n, divide, stream);                                              \
    }

#define COLL_DEFINE_PLAIN(T, loop)                                                                                     \
    COLL_APPLY(T, loop)                                                                                                \
    COLL_FOLD(fold, T, loop, elem, elem)                                                                               \
    COLL_ENTRIES(T, loop, fold, fold, fold)

#define COLL_DEFINE_HALF(T, loop)                                                                                      \
    COLL_APPLY(T, loop)                                                                                                \
    COLL_FOLD(fold, T, loop, elem, elem)                                                                               \
    COLL_FOLD(begin, T, loop, acc, elem)                                                                               \
    COLL_FOLD(extend, T, loop, acc, acc)                                                                               \
    COLL_FOLD(finish, T, loop, elem, acc)                                                                              \
    COLL_ENTRIES(T, loop, begin, extend, finish)

#define COLL_DEFINE(T, element, accumulator, access, class, twin) COLL_LOOPS_##class(COLL_DEFINE_##access, T)
COLL_TYPES(COLL_DEFINE)

/* dst[i] = src[i] / p, from elements (scale) and from accumulators (mean). */
#define COLL_SCALE(name, T, loop, F)                                                                                   \
    COLL_INLINE void name##_step_##T(coll_elem_##T *d, const coll_##F##_##T *s, int p, size_t i, int width) {          \
        coll_acc_##T x[COLL_WIDTH_##T];                                                                                \
        COLL_GET_##F(T, x, s + i, width);                                                                              \
        for (int l = 0; l < width; l++)                                                                                \
            x[l] = COLL_DIVIDE_##loop(coll_acc_##T, x[l], p);                                                          \
        COLL_SET_elem(T, d + i, x, width);                                                                             \
    }                                                                                                                  \
    static void name##_##T(void *dst, const void *src, int p, size_t n) {                                              \
        size_t whole = n / COLL_WIDTH_##T * COLL_WIDTH_##T;                                                            \
        COLL_FOREACH                                                                                                   \
        for (size_t i = 0; i < whole; i += COLL_WIDTH_##T)                                                             \
            name##_step_##T(dst, src, p, i, COLL_WIDTH_##T);                                                           \
        for (size_t i = whole; COLL_WIDTH_##T > 1 && i < n; i++)                                                       \
            name##_step_##T(dst, src, p, i, 1);                                                                        \
    }

#define COLL_AVG(T, loop)                                                                                              \
    COLL_SCALE(scale, T, loop, elem)                                                                                   \
    COLL_SCALE(mean, T, loop, acc)                                                                                     \
    COLL_MANY(avg, T, loop, mean_##T)

#define COLL_DEFINE_AVG(T, element, accumulator, access, class, twin) COLL_AVG_##class(COLL_AVG, T)
COLL_TYPES(COLL_DEFINE_AVG)

/* Conversions between elements and accumulators, for callers that fold elsewhere. */
#define COLL_CONVERT(T)                                                                                                \
    static void widen_all_##T(float *dst, const void *src, size_t n) {                                                 \
        const coll_half *s = src;                                                                                      \
        size_t whole = n / 32 * 32;                                                                                    \
        for (size_t i = 0; i < whole; i += 32)                                                                         \
            widen32_##T(dst + i, s + i);                                                                               \
        for (size_t i = whole; i < n; i++)                                                                             \
            dst[i] = widen_##T(s[i]);                                                                                  \
    }                                                                                                                  \
    static void narrow_all_##T(void *dst, const float *src, size_t n) {                                                \
        coll_half *d = dst;                                                                                            \
        size_t whole = n / 32 * 32;                                                                                    \
        for (size_t i = 0; i < whole; i += 32)                                                                         \
            narrow32_##T(d + i, src + i);                                                                              \
        for (size_t i = whole; i < n; i++)                                                                             \
            d[i] = (uint16_t)narrow_##T(src[i]);                                                                       \
    }
COLL_CONVERT(float16)
COLL_CONVERT(bfloat16)

/* The table of functions. */
#define COLL_ENTRY_OF(op, T, loop)                                                                                     \
    [COLL_OP_##op] = {reduce2_##T##_##loop, reduce2_stream_##T##_##loop, reducep_##T##_##loop,                         \
                      reducep_stream_##T##_##loop},
#define COLL_AVG_OF(T, loop)                                                                                           \
    [COLL_OP_avg] = {reduce2_##T##_##loop, reduce2_stream_##T##_##loop, avg_##T##_##loop, avg_stream_##T##_##loop},
#define COLL_ROW(T, element, accumulator, access, class, twin)                                                         \
    [COLL_TYPE_##T] = {COLL_ROW_##class(COLL_ENTRY_OF, T, twin) COLL_AVG_##class(COLL_AVG_OF, T)},
#define COLL_SCALE_OF(T, loop)                                       [COLL_TYPE_##T] = scale_##T,
#define COLL_SCALE_ROW(T, element, accumulator, access, class, twin) COLL_AVG_##class(COLL_SCALE_OF, T)

#include "exact_loops.h"

#ifndef COLL_NEXT
#define COLL_NEXT NULL
#endif

const struct coll_isa COLL_PASTE(coll_isa_, COLL_ISA) = {
    COLL_STRING(COLL_ISA),
    COLL_NEXT,
    {COLL_TYPES(COLL_ROW)},
    {COLL_TYPES(COLL_SCALE_ROW)},
    COLL_STREAM,
    copy_up,
    copy_down,
    {widen_all_float16, widen_all_bfloat16},
    {narrow_all_float16, narrow_all_bfloat16},
    {{NULL, NULL, exact_sum_float32, exact_sum_float32}, {NULL, NULL, exact_sum_float64, exact_sum_float64}},
    exact_widen,
    exact_largest,
    exact_extract};
