/* float16 and bfloat16 to float and back, rounded to nearest even. Every NaN becomes the one positive quiet NaN, since
 * the payload that an addition keeps depends on the processor and on the compiler's order of operands. */

/* Kernels for CUDA devices (csrc/cuda) define this to begin a function of the device. */
#ifndef COLL_SCALAR
#define COLL_SCALAR static inline
#endif

COLL_SCALAR float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

COLL_SCALAR uint32_t as_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

COLL_SCALAR float widen_bfloat16(uint32_t h) {
    return as_float(h << 16);
}

COLL_SCALAR uint32_t narrow_bfloat16(float x) {
    uint32_t bits = as_bits(x);
    return (x != x ? 0x7fc00000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

#ifdef __CUDA_ARCH__

/* The device's own conversions, which are exact and rounded to nearest even, subnormals too. */
COLL_SCALAR float widen_float16(uint32_t h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((uint16_t)h));
    return x;
}

COLL_SCALAR uint32_t narrow_float16(float x) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return x != x ? 0x7e00 : half;
}

#else

/* Uses a mask, since a conditional expression would become a branch, and the loop would not be vectorised. */
COLL_SCALAR uint32_t choose(int condition, uint32_t yes, uint32_t no) {
    uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

COLL_SCALAR float widen_float16(uint32_t h) {
    int32_t magnitude = (int32_t)(h & 0x7fff) << 13;      /* exponent and fraction at their places in a float */
    uint32_t normal = (uint32_t)magnitude + (112u << 23); /* the biases of the exponents differ by 112 */
    uint32_t tiny = as_bits(as_float((uint32_t)magnitude + (113u << 23)) - 0x1p-14f);
    uint32_t bits = choose(magnitude < 1 << 23, tiny, normal);
    bits += choose(magnitude >= 31 << 23, 112u << 23, 0); /* infinite or NaN */
    return as_float(bits | (h & 0x8000) << 16);
}

COLL_SCALAR uint32_t narrow_float16(float x) {
    uint32_t bits = as_bits(x), sign = bits >> 16 & 0x8000;
    int32_t magnitude = (int32_t)(bits & 0x7fffffff);
    uint32_t normal = ((uint32_t)magnitude - (112u << 23) + 0xfff + ((uint32_t)magnitude >> 13 & 1)) >> 13;
    /* Adding 1/2 puts the fraction of a subnormal, rounded, into the lowest bits. */
    uint32_t tiny = as_bits(as_float((uint32_t)magnitude) + 0.5f) - (126u << 23);
    uint32_t half = choose(magnitude < 113 << 23, tiny, normal);
    half = sign | choose(magnitude >= 143 << 23, 0x7c00, half); /* infinite, or too large */
    return choose(magnitude > 255 << 23, 0x7e00, half);
}

#endif
