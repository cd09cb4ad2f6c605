/* Which kernel serves a reduction, and how it is launched. */
#include <stdint.h>
#include "kernels.h"
#include "kernels/ops.h"
#include "kernels/types.h"

enum {
    VECTOR = 16, /* bytes: the widest load of a thread */
    /* Up to this many blocks each thread has one vector. Of longer arrays it has several, to share the costs of a
     * block, but few, so that the last blocks end at nearly the same time. */
    SPREAD = 2048,
    EACH = 4,
    MOST = 1 << 20
};

/* The numbers of the kernels. Number 0 is the copy, so that 0 in the table of ops means none. */
#define NUMBER(T, loop)                                       KERNEL_##loop##_##T,
#define NUMBERS(T, element, accumulator, access, class, twin) COLL_LOOPS_##class(NUMBER, T)
#define MEAN(T, loop)                                         KERNEL_mean_##T,
#define MEANS(T, element, accumulator, access, class, twin)   COLL_AVG_##class(MEAN, T)
enum { KERNEL_copy, COLL_DEVICE_TYPES(NUMBERS) COLL_DEVICE_TYPES(MEANS) KERNELS };

static const char *const names[] = {
#define NAME(T, loop)                                            "coll_" #loop "_" #T,
#define NAMES(T, element, accumulator, access, class, twin)      COLL_LOOPS_##class(NAME, T)
#define MEAN_NAME(T, loop)                                       "coll_mean_" #T,
#define MEAN_NAMES(T, element, accumulator, access, class, twin) COLL_AVG_##class(MEAN_NAME, T)
    "coll_copy", COLL_DEVICE_TYPES(NAMES) COLL_DEVICE_TYPES(MEAN_NAMES)};

#define ENTRY(op, T, loop) [COLL_OP_##op] = KERNEL_##loop##_##T,
#define AVG_ENTRY(T, loop) [COLL_OP_avg] = KERNEL_mean_##T,
#define ROW(T, element, accumulator, access, class, twin)                                                              \
    [COLL_TYPE_##T] = {                                                                                                \
        sizeof(element), _Alignof(element), {COLL_ROW_##class(ENTRY, T, twin) COLL_AVG_##class(AVG_ENTRY, T)}},
static const struct {
    size_t size, alignment;
    unsigned char kernel[COLL_NOPS];
} rows[COLL_NTYPES] = {COLL_DEVICE_TYPES(ROW)};

_Static_assert(KERNELS <= UINT8_MAX + 1, "numbers of kernels are bytes");

const char *coll_cuda_reason(int refusal) {
    static const char *const reasons[] = {
        NULL,
        "CUDA devices have no such type",
        "there is no CUDA kernel for this op on this type",
        "the number of sources must be from 1 to 128",
        "the address of a device array is not a multiple of its type's alignment",
    };
    _Static_assert(COLL_CUDA_SOURCES == 128, "the sentence has the number");
    return refusal >= 0 && refusal <= COLL_CUDA_UNALIGNED ? reasons[refusal] : NULL;
}

int coll_cuda_kernels(void) {
    return KERNELS;
}

const char *coll_cuda_kernel_name(int kernel) {
    return kernel >= 0 && kernel < KERNELS ? names[kernel] : NULL;
}

int coll_cuda_able(int type, int op) {
    if (type < 0 || type >= COLL_NTYPES || !rows[type].size)
        return COLL_CUDA_NO_TYPE;
    return op >= 0 && op < COLL_NOPS && rows[type].kernel[op] ? COLL_CUDA_FITS : COLL_CUDA_NO_OP;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Threads for so many vectors, or single elements, of which each thread takes one at a time. */
static void spread(struct coll_cuda_launch *launch, size_t count) {
    size_t one = count / COLL_CUDA_BLOCK + (count % COLL_CUDA_BLOCK != 0), several = count / (COLL_CUDA_BLOCK * EACH);
    size_t grid = one <= SPREAD ? one : several > SPREAD ? several : SPREAD;
    launch->grid = (unsigned)least(grid, MOST);
    launch->block = COLL_CUDA_BLOCK;
}

/* Fill in what depends on addresses. All arrays must lie alike to be read as vectors. */
static int fill(struct coll_cuda_launch *launch, int kernel, size_t size, size_t alignment, void *dst,
                const void *const *src, int p, int divisor, size_t n) {
    size_t place = (uintptr_t)dst % VECTOR, head = (VECTOR - place) % VECTOR / size, each = VECTOR / size;
    int alike = place % size == 0;
    if (p < 1 || p > COLL_CUDA_SOURCES)
        return COLL_CUDA_BAD_SOURCES;
    if ((uintptr_t)dst % alignment)
        return COLL_CUDA_UNALIGNED;
    for (int k = 0; k < p; k++) {
        if ((uintptr_t)src[k] % alignment)
            return COLL_CUDA_UNALIGNED;
        alike &= (uintptr_t)src[k] % VECTOR == place;
    }
    launch->kernel = kernel;
    launch->args.dst = dst;
    for (int k = 0; k < p; k++)
        launch->args.src[k] = src[k];
    launch->args.p = p;
    launch->args.divisor = divisor;
    launch->args.n = n;
    launch->args.head = alike ? least(head, n) : 0;
    launch->args.vectors = alike ? (n - launch->args.head) / each : 0;
    spread(launch, launch->args.vectors ? launch->args.vectors : n);
    return COLL_CUDA_FITS;
}

int coll_cuda_reducep(struct coll_cuda_launch *launch, int type, int op, void *dst, const void *const *src, int p,
                      size_t n) {
    int able = coll_cuda_able(type, op);
    if (able != COLL_CUDA_FITS)
        return able;
    size_t size = rows[type].size, alignment = rows[type].alignment;
    if (p == 1)
        return fill(launch, KERNEL_copy, 1, 1, dst, src, p, 1, n * size);
    return fill(launch, rows[type].kernel[op], size, alignment, dst, src, p, p, n);
}

int coll_cuda_reduce2(struct coll_cuda_launch *launch, int type, int op, void *dst, const void *left, const void *right,
                      size_t n) {
    const void *src[] = {left, right};
    return coll_cuda_reducep(launch, type, op == COLL_OP_avg ? COLL_OP_sum : op, dst, src, 2, n);
}

int coll_cuda_scale(struct coll_cuda_launch *launch, int type, void *dst, const void *src, int divisor, size_t n) {
    int able = coll_cuda_able(type, COLL_OP_avg);
    if (able != COLL_CUDA_FITS)
        return able;
    return fill(launch, rows[type].kernel[COLL_OP_avg], rows[type].size, rows[type].alignment, dst, &src, 1, divisor,
                n);
}
