/* The kernels compiled for the processor (host.h). */
#include "kernels.cu"

#define FIND(kernel)                                                                                                   \
    if (!strcmp(name, #kernel))                                                                                        \
        return kernel;
#define FIND_LOOP(T, loop)                                        FIND(coll_##loop##_##T)
#define FIND_LOOPS(T, element, accumulator, access, class_, twin) COLL_LOOPS_##class_(FIND_LOOP, T)
#define FIND_MEAN(T, loop)                                        FIND(coll_mean_##T)
#define FIND_MEANS(T, element, accumulator, access, class_, twin) COLL_AVG_##class_(FIND_MEAN, T)

coll_cuda_host_fn coll_cuda_host_find(const char *name) {
    FIND(coll_copy)
    COLL_DEVICE_TYPES(FIND_LOOPS)
    COLL_DEVICE_TYPES(FIND_MEANS)
    return NULL;
}

void coll_cuda_host_run(coll_cuda_host_fn kernel, unsigned grid, unsigned block, const coll_cuda_args *args) {
    gridDim.x = grid;
    blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < block; threadIdx.x++)
            kernel(*args);
}
