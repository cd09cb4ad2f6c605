/* The loops for the AVX-512 of 2017 (F, BW, DQ, VL). AVX512-FP16 stays off: it does not accumulate in float32. */
#ifdef __x86_64__

#include <string.h>
#include <immintrin.h>
#include "internal.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c")
#endif

/* GCC 12 makes fused multiply-adds of complex products here in spite of -ffp-contract, so AVX2's loops are used. */
#undef COLL_LOOPS_COMPLEX
#undef COLL_ROW_COMPLEX
#define COLL_LOOPS_COMPLEX(X, T)  X(T, cadd)
#define COLL_ROW_COMPLEX(X, T, U) X(sum, T, cadd)
#define COLL_NEXT                 &coll_isa_avx2

#define COLL_F16C
#define COLL_ISA avx512
#include "loops.h"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
