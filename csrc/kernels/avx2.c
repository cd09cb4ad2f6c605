/* The loops for AVX2 with F16C. FMA stays off, since a fused multiply-add rounds differently. */
#ifdef __x86_64__

#include <string.h>
#include <immintrin.h>
#include "internal.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#define COLL_F16C
#define COLL_ISA avx2
#include "loops.h"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
