/* Stores past the cache, a line at a time: narrower ones are slower, because they fill a line in several steps. */

#ifdef __x86_64__

static void stream_lines(void *dst, const void *src, size_t nbytes) {
    char *d = dst;
    const char *s = src;
    for (size_t i = 0; i < nbytes; i += 64) {
#if defined(__AVX512F__)
        _mm512_stream_si512((__m512i *)(d + i), _mm512_loadu_si512(s + i));
#elif defined(__AVX2__)
        for (size_t k = i; k < i + 64; k += 32)
            _mm256_stream_si256((__m256i *)(d + k), _mm256_loadu_si256((const __m256i *)(s + k)));
#else
        for (size_t k = i; k < i + 64; k += 16)
            _mm_stream_si128((__m128i *)(d + k), _mm_loadu_si128((const __m128i *)(s + k)));
#endif
    }
}

#define COLL_STREAM stream_lines

#else

#define COLL_STREAM NULL

#endif
