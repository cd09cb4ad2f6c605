/* The reductions of csrc/kernels on CUDA devices: same types, same ops, same bits. Nothing here needs CUDA's headers.
 *
 * `make cuda` compiles kernels.cu to collectives/cuda/kernels.fatbin. Load it with cuModuleLoadData, and find a kernel
 * by its name, coll_<loop>_<type>, with cuModuleGetFunction. A caller fills a struct coll_cuda_launch by one of the
 * three functions below, and launches:
 *
 *     void *params[] = {&launch.args};
 *     if (launch.grid) // 0: there is nothing to do
 *         cuLaunchKernel(functions[launch.kernel], launch.grid, 1, 1, launch.block, 1, 1, 0, stream, params, NULL);
 *
 * launch.kernel is a number below coll_cuda_kernels(); coll_cuda_kernel_name gives its name, so that each kernel is
 * looked up once. A kernel neither waits for another block nor allocates. */
#ifndef COLL_CUDA_KERNELS_H
#define COLL_CUDA_KERNELS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The most sources of one launch, and the threads of a block. */
enum { COLL_CUDA_SOURCES = 128, COLL_CUDA_BLOCK = 256 };

/* What a kernel is given, by value. Elements head to head + vectors * (16 / size) are read and written 16 bytes at a
 * time, the others one by one. */
struct coll_cuda_args {
    void *dst;
    size_t n, head, vectors;
    int p, divisor; /* number of sources; what means are divided by */
    const void *src[COLL_CUDA_SOURCES];
};

struct coll_cuda_launch {
    int kernel;
    unsigned grid, block;
    struct coll_cuda_args args;
};

/* Why a launch is refused. Nothing is filled in then. */
enum {
    COLL_CUDA_FITS,
    COLL_CUDA_NO_TYPE,     /* long double, and accumulators of exact sums */
    COLL_CUDA_NO_OP,       /* not an op of this type, or reproducible_sum */
    COLL_CUDA_BAD_SOURCES, /* fewer than 1, or more than COLL_CUDA_SOURCES */
    COLL_CUDA_UNALIGNED    /* an address is no multiple of what the type needs */
};

/* The sentence that tells a user why; NULL for COLL_CUDA_FITS and for numbers that are no reason. */
const char *coll_cuda_reason(int refusal);

/* As coll_reducep in kernels.h: dst[i] = src[0][i] op ... op src[p-1][i], folded from the left, rounded once; avg
 * divides by p. dst may be exactly one of the sources. With p = 1 the bytes are copied. */
int coll_cuda_reducep(struct coll_cuda_launch *launch, int type, int op, void *dst, const void *const *src, int p,
                      size_t n);

/* As coll_reduce2: dst[i] = left[i] op right[i]; avg is the plain sum. */
int coll_cuda_reduce2(struct coll_cuda_launch *launch, int type, int op, void *dst, const void *left, const void *right,
                      size_t n);

/* As coll_scale: dst[i] = src[i] / divisor. */
int coll_cuda_scale(struct coll_cuda_launch *launch, int type, void *dst, const void *src, int divisor, size_t n);

/* The number of kernels, and their names in the fatbin; NULL outside the range. */
int coll_cuda_kernels(void);
const char *coll_cuda_kernel_name(int kernel);

/* Whether there is a kernel for an op on a type: COLL_CUDA_FITS, COLL_CUDA_NO_TYPE or COLL_CUDA_NO_OP. */
int coll_cuda_able(int type, int op);

#ifdef __cplusplus
}
#endif

#endif
