/* float16 and bfloat16 to float and back, rounded to nearest even. Every NaN becomes the one positive quiet NaN, since
 * the payload that an addition keeps depends on the processor and on the compiler's order of operands. */

static inline float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t as_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float widen_bfloat16(uint32_t h) {
    return as_float(h << 16);
}

static inline uint32_t narrow_bfloat16(float x) {
    uint32_t bits = as_bits(x);
    return (x != x ? 0x7fc00000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* Uses a mask, since a conditional expression would become a branch, and the loop would not be vectorised. */
static inline uint32_t choose(int condition, uint32_t yes, uint32_t no) {
    uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline float widen_float16(uint32_t h) {
    int32_t magnitude = (int32_t)(h & 0x7fff) << 13;      /* exponent and fraction at their places in a float */
    uint32_t normal = (uint32_t)magnitude + (112u << 23); /* the biases of the exponents differ by 112 */
    uint32_t tiny = as_bits(as_float((uint32_t)magnitude + (113u << 23)) - 0x1p-14f);
    uint32_t bits = choose(magnitude < 1 << 23, tiny, normal);
    bits += choose(magnitude >= 31 << 23, 112u << 23, 0); /* infinite or NaN */
    return as_float(bits | (h & 0x8000) << 16);
}

static inline uint32_t narrow_float16(float x) {
    uint32_t bits = as_bits(x), sign = bits >> 16 & 0x8000;
    int32_t magnitude = (int32_t)(bits & 0x7fffffff);
    uint32_t normal = ((uint32_t)magnitude - (112u << 23) + 0xfff + ((uint32_t)magnitude >> 13 & 1)) >> 13;
    /* Adding 1/2 puts the fraction of a subnormal, rounded, into the lowest bits. */
    uint32_t tiny = as_bits(as_float((uint32_t)magnitude) + 0.5f) - (126u << 23);
    uint32_t half = choose(magnitude < 113 << 23, tiny, normal);
    half = sign | choose(magnitude >= 143 << 23, 0x7c00, half); /* infinite, or too large */
    return choose(magnitude > 255 << 23, 0x7e00, half);
}

/* Loops take 32 elements at a time, as the halves of 16 words. Shifts and masks separate the two halves in place, while
 * conversions between 16 and 32 bits would move elements across the vector register. */
typedef uint32_t __attribute__((aligned(1), may_alias)) coll_word;
typedef uint16_t COLL_ANYWHERE coll_half;

#define COLL_HALF_BLOCKS(T)                                                                                            \
    static inline void widen32_##T(float *x, const coll_half *p) {                                                     \
        const coll_word *words = (const coll_word *)p;                                                                 \
        for (int k = 0; k < 16; k++) {                                                                                 \
            x[k] = widen_##T(words[k] & 0xffff);                                                                       \
            x[16 + k] = widen_##T(words[k] >> 16);                                                                     \
        }                                                                                                              \
    }                                                                                                                  \
    static inline void narrow32_##T(coll_half *p, const float *x) {                                                    \
        coll_word *words = (coll_word *)p;                                                                             \
        for (int k = 0; k < 16; k++)                                                                                   \
            words[k] = narrow_##T(x[k]) | narrow_##T(x[16 + k]) << 16;                                                 \
    }

COLL_HALF_BLOCKS(bfloat16)

#if defined(COLL_F16C) && defined(__AVX512F__)

static inline void widen32_float16(float *x, const coll_half *p) {
    for (int k = 0; k < 32; k += 16)
        _mm512_storeu_ps(x + k, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p + k))));
}

static inline void narrow32_float16(coll_half *p, const float *x) {
    for (int k = 0; k < 32; k += 16) {
        __m512 v = _mm512_loadu_ps(x + k);
        __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        __m256i h = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
        _mm256_storeu_si256((__m256i *)(p + k), _mm256_mask_blend_epi16(nan, h, _mm256_set1_epi16(0x7e00)));
    }
}

#elif defined(COLL_F16C)

static inline void widen32_float16(float *x, const coll_half *p) {
    for (int k = 0; k < 32; k += 8)
        _mm256_storeu_ps(x + k, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + k))));
}

static inline void narrow32_float16(coll_half *p, const float *x) {
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    for (int k = 0; k < 32; k += 8) {
        __m256 v = _mm256_loadu_ps(x + k);
        v = _mm256_blendv_ps(v, quiet, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        _mm_storeu_si128((__m128i *)(p + k), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
}

#else

COLL_HALF_BLOCKS(float16)

#endif
