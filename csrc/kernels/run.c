/* Folds over many sources and targets, tile by tile: shared by all types, ops and instruction sets. */
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#include "internal.h"

enum {
    LINE = 64,
    /* Accumulators stay in the cache, and a source is read long enough to make up for the first access to its page. */
    TILE = 16384,
    /* With several targets the result is read again: it and the sources must stay in the first-level cache. */
    SHARED_TILE = 4096,
    /* Reading, and storing past the cache, alternate; with larger tiles memory serves both more slowly. With many
     * sources the tiles are too short for reading, and the stores too few to matter. */
    STREAM_TILE = 256,
    STREAM_MIN = 64 * STREAM_TILE,
    STREAM_SOURCES = 8
};

struct job {
    const struct coll_fold *fold;
    void *const *dst;
    const void *const *src;
    int q, p;
    coll_scale_fn divide;
};

static void *target(const struct job *job, int j, size_t i) {
    return (char *)job->dst[j] + i * job->fold->size;
}

/* Fold n elements of all sources, from element i on, into `out`. */
static void fold_tile(const struct job *job, void *out, size_t i, size_t n) {
    const struct coll_fold *f = job->fold;
    _Alignas(LINE) char acc[TILE];
    const void *first = (const char *)job->src[0] + i * f->size;
    for (int k = 1, m; k < job->p; k += m) {
        const void *s[COLL_FAN];
        m = job->p - k < COLL_FAN ? job->p - k : COLL_FAN;
        for (int j = 0; j < m; j++)
            s[j] = (const char *)job->src[k + j] + i * f->size;
        if (k + m == job->p && !job->divide)
            (k == 1 ? f->fold : f->finish)(out, first, s, m, n);
        else
            (k == 1 ? f->begin : f->extend)(acc, first, s, m, n);
        first = acc;
    }
    if (job->divide)
        job->divide(out, acc, job->p, n);
}

static void run_cached(const struct job *job, size_t from, size_t to) {
    size_t size = job->fold->size, tile = (job->q > 1 ? SHARED_TILE : TILE) / job->fold->acc_size;
    if (job->p == 2 && job->q == 2 && !job->divide) {
        const char *left = (const char *)job->src[0] + from * size, *right = (const char *)job->src[1] + from * size;
        job->fold->twin(target(job, 0, from), target(job, 1, from), left, right, to - from);
        return;
    }
    /* One pass without accumulators and copies: nothing must stay in the cache, so one tile is enough. */
    if (job->p <= 1 + COLL_FAN && job->q == 1 && !job->divide)
        tile = to - from;
    for (size_t i = from, n; i < to; i += n) {
        n = to - i < tile ? to - i : tile;
        fold_tile(job, target(job, 0, i), i, n);
        for (int j = 1; j < job->q; j++)
            coll_copy(target(job, j, i), target(job, 0, i), n * size);
    }
}

static void end_streaming(void) {
#ifdef __x86_64__
    _mm_sfence();
#endif
}

static void run_streamed(const struct job *job, size_t from, size_t to) {
    _Alignas(LINE) char out[STREAM_TILE];
    size_t tile = STREAM_TILE / job->fold->size;
    for (size_t i = from; i < to; i += tile) {
        fold_tile(job, out, i, tile);
        for (int j = 0; j < job->q; j++)
            job->fold->stream(target(job, j, i), out, STREAM_TILE);
    }
    end_streaming();
}

/* Whether stores can bypass the cache: all targets must have the same offset in a cache line, a multiple of the element
 * size, and no target may be a source, which is in the cache anyway. */
static int can_stream(const struct job *job, size_t n) {
    size_t size = job->fold->size, place = (uintptr_t)job->dst[0] % LINE;
    if (!job->fold->stream || job->p > STREAM_SOURCES || n * size < STREAM_MIN || place % size || LINE % size)
        return 0;
    for (int j = 0; j < job->q; j++) {
        if ((uintptr_t)job->dst[j] % LINE != place)
            return 0;
        for (int k = 0; k < job->p; k++)
            if (job->dst[j] == job->src[k])
                return 0;
    }
    return 1;
}

void coll_run_copy(coll_stream_fn stream, void *dst, const void *src, size_t nbytes) {
    size_t head = (LINE - (uintptr_t)dst % LINE) % LINE, lines = nbytes < head ? 0 : (nbytes - head) / LINE * LINE;
    if (!stream || !lines) {
        coll_copy(dst, src, nbytes);
        return;
    }
    memcpy(dst, src, head);
    stream((char *)dst + head, (const char *)src + head, lines);
    end_streaming();
    memcpy((char *)dst + head + lines, (const char *)src + head + lines, nbytes - head - lines);
}

static void copy_all(const struct job *job, size_t n, int stream) {
    for (int j = 0; j < job->q; j++)
        if (n && job->dst[j] != job->src[0])
            coll_run_copy(stream ? job->fold->stream : NULL, job->dst[j], job->src[0], n * job->fold->size);
}

void coll_run(const struct coll_fold *f, void *const *dst, int q, const void *const *src, int p, size_t n,
              coll_scale_fn divide, int stream) {
    struct job job = {f, dst, src, q, p, divide};
    if (p == 1) {
        copy_all(&job, n, stream);
    } else if (stream && can_stream(&job, n)) {
        size_t head = (LINE - (uintptr_t)dst[0] % LINE) % LINE / f->size, tile = STREAM_TILE / f->size;
        size_t tail = head + (n - head) / tile * tile;
        run_cached(&job, 0, head);
        run_streamed(&job, head, tail);
        run_cached(&job, tail, n);
    } else {
        run_cached(&job, 0, n);
    }
}
