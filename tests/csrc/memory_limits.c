/* What the memory can do, for benchmarks: the C library's copy, a copy past the cache, and a sum past the cache.
 * Buffers are aligned to 64 bytes, and nbytes is a multiple of 64. */
#include <stddef.h>
#include <string.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

void coll_limit_copy(void *dst, const void *left, const void *right, size_t nbytes);
void coll_limit_stream(void *dst, const void *left, const void *right, size_t nbytes);
void coll_limit_triad(void *dst, const void *left, const void *right, size_t nbytes);

void coll_limit_copy(void *dst, const void *left, const void *right, size_t nbytes) {
    (void)right;
    memcpy(dst, left, nbytes);
}

#ifdef __x86_64__

void coll_limit_stream(void *dst, const void *left, const void *right, size_t nbytes) {
    (void)right;
    for (size_t i = 0; i < nbytes / 16; i += 4)
        for (size_t k = i; k < i + 4; k++)
            _mm_stream_si128((__m128i *)dst + k, _mm_load_si128((const __m128i *)left + k));
    _mm_sfence();
}

void coll_limit_triad(void *dst, const void *left, const void *right, size_t nbytes) {
    for (size_t i = 0; i < nbytes / 16; i += 4)
        for (size_t k = i; k < i + 4; k++)
            _mm_stream_ps((float *)dst + 4 * k, _mm_add_ps(_mm_load_ps((const float *)left + 4 * k),
                                                           _mm_load_ps((const float *)right + 4 * k)));
    _mm_sfence();
}

#else

void coll_limit_stream(void *dst, const void *left, const void *right, size_t nbytes) {
    coll_limit_copy(dst, left, right, nbytes);
}

void coll_limit_triad(void *dst, const void *left, const void *right, size_t nbytes) {
    for (size_t i = 0; i < nbytes / sizeof(float); i++)
        ((float *)dst)[i] = ((const float *)left)[i] + ((const float *)right)[i];
}

#endif
