/* Conversions of many elements at once, by the functions of half.h or by instructions of the processor. */

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
