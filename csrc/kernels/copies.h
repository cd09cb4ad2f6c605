/* Copies through the cache, upwards or downwards in memory, and copies that bypass the cache. */

typedef char copied __attribute__((vector_size(32), aligned(1), may_alias));
enum { STRIDE = 4 * sizeof(copied) };

/* All loads come before the first store: a load waits for an earlier store whose address has the same low 12 bits. */
static inline void copy_stride(char *to, const char *from) {
    const copied *s = (const copied *)from;
    copied a = s[0], b = s[1], c = s[2], e = s[3], *d = (copied *)to;
    d[0] = a;
    d[1] = b;
    d[2] = c;
    d[3] = e;
}

static void copy_up(void *dst, const void *src, size_t nbytes) {
    char *d = dst;
    const char *s = src;
    size_t i = -(uintptr_t)d % sizeof(copied);
    memcpy(d, s, i);
    for (; i + STRIDE <= nbytes; i += STRIDE)
        copy_stride(d + i, s + i);
    memcpy(d + i, s + i, nbytes - i);
}

static void copy_down(void *dst, const void *src, size_t nbytes) {
    char *d = dst;
    const char *s = src;
    size_t i = nbytes - (uintptr_t)(d + nbytes) % sizeof(copied);
    memcpy(d + i, s + i, nbytes - i);
    for (; i >= STRIDE; i -= STRIDE)
        copy_stride(d + i - STRIDE, s + i - STRIDE);
    memcpy(d, s, i);
}

/* Stores that bypass the cache. Each fills a line in as few steps as possible: more and narrower stores are slower. */
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
