/* The kernels of kernels.h: the types, ops and conversions of csrc/kernels, in the same order of operations. nvcc
 * compiles this file for devices, and a C++ compiler, with host.h, for tests without one. Both must leave products and
 * sums apart (--fmad=false, -ffp-contract=off): a fused multiply-add rounds differently. */
#include <stdint.h>
#include <string.h>
#ifndef __CUDACC__
#include "host.h"
#endif
#define COLL_SCALAR static __device__ __forceinline__
#include "kernels.h"
#include "kernels/half.h"
#include "kernels/ops.h"
#include "kernels/types.h"

enum { VECTOR = 16 };

struct alignas(VECTOR) words {
    uint32_t word[VECTOR / sizeof(uint32_t)];
};

/* The elements of a vector, and one element by itself. */
template <class Element> struct many {
    static const int lanes = VECTOR / sizeof(Element);
    Element lane[lanes];
    __device__ void load(const void *array, size_t i) {
        words all = *(const words *)((const Element *)array + i);
        memcpy(lane, &all, sizeof all);
    }
    __device__ void store(void *array, size_t i) const {
        words all;
        memcpy(&all, lane, sizeof all);
        *(words *)((Element *)array + i) = all;
    }
};

template <class Element> struct one {
    static const int lanes = 1;
    Element lane[lanes];
    __device__ void load(const void *array, size_t i) { lane[0] = ((const Element *)array)[i]; }
    __device__ void store(void *array, size_t i) const { ((Element *)array)[i] = lane[0]; }
};

/* dst[i] = the fold of the sources, from element i on. All loads come before the store, since dst may be a source. */
template <class Op, class Elements> __device__ __forceinline__ void fold(const coll_cuda_args &args, size_t i) {
    Elements elements;
    typename Op::accumulator x[Elements::lanes];
    elements.load(args.src[0], i);
#pragma unroll
    for (int l = 0; l < Elements::lanes; l++)
        x[l] = Op::get(elements.lane[l]);
    for (int k = 1; k < args.p; k++) {
        elements.load(args.src[k], i);
#pragma unroll
        for (int l = 0; l < Elements::lanes; l++)
            x[l] = Op::apply(x[l], Op::get(elements.lane[l]));
    }
#pragma unroll
    for (int l = 0; l < Elements::lanes; l++)
        elements.lane[l] = Op::set(Op::finish(x[l], args.divisor));
    elements.store(args.dst, i);
}

/* The elements that fill vectors, then those before and after them. */
template <class Op> __device__ __forceinline__ void reduce(const coll_cuda_args &args) {
    typedef typename Op::element element;
    const size_t each = many<element>::lanes, within = args.vectors * each;
    const size_t first = blockIdx.x * (size_t)blockDim.x + threadIdx.x, step = gridDim.x * (size_t)blockDim.x;
    for (size_t v = first; v < args.vectors; v += step)
        fold<Op, many<element>>(args, args.head + v * each);
    for (size_t i = first; i < args.n - within; i += step)
        fold<Op, one<element>>(args, i < args.head ? i : i + within);
}

#define GET_PLAIN(T, x) (x)
#define SET_PLAIN(T, x) (x)
#define GET_HALF(T, x)  widen_##T(x)
#define SET_HALF(T, x)  (element) narrow_##T(x)

#define TYPE(T, element_, accumulator_, access, class_, twin)                                                          \
    struct type_##T {                                                                                                  \
        typedef element_ element;                                                                                      \
        typedef accumulator_ accumulator;                                                                              \
        static __device__ accumulator get(element x) { return GET_##access(T, x); }                                    \
        static __device__ element set(accumulator x) { return SET_##access(T, x); }                                    \
        static __device__ accumulator finish(accumulator x, int) { return x; }                                         \
    };
COLL_DEVICE_TYPES(TYPE)

struct copy : type_uint8 {
    static __device__ accumulator apply(accumulator x, accumulator) { return x; }
};

#define KERNEL(name, Op)                                                                                               \
    extern "C" __global__ void __launch_bounds__(COLL_CUDA_BLOCK) name(const __grid_constant__ coll_cuda_args args) {  \
        reduce<Op>(args);                                                                                              \
    }
KERNEL(coll_copy, copy)

#define LOOP(T, loop)                                                                                                  \
    struct loop##_##T : type_##T {                                                                                     \
        static __device__ accumulator apply(accumulator x, accumulator y) {                                            \
            return COLL_EVAL_##loop(accumulator, x, y);                                                                \
        }                                                                                                              \
    };                                                                                                                 \
    KERNEL(coll_##loop##_##T, loop##_##T)
#define LOOPS(T, element, accumulator, access, class, twin) COLL_LOOPS_##class(LOOP, T)
COLL_DEVICE_TYPES(LOOPS)

#define MEAN(T, loop)                                                                                                  \
    struct mean_##T : loop##_##T {                                                                                     \
        static __device__ accumulator finish(accumulator x, int p) { return COLL_DIVIDE_##loop(accumulator, x, p); }   \
    };                                                                                                                 \
    KERNEL(coll_mean_##T, mean_##T)
#define MEANS(T, element, accumulator, access, class, twin) COLL_AVG_##class(MEAN, T)
COLL_DEVICE_TYPES(MEANS)
