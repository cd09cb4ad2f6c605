/* The kernels of kernels.cu on a processor, for tests without a CUDA device: a launch is a loop over blocks and
 * threads. host.cpp compiles them; its library is no part of the package. */
#ifndef COLL_CUDA_HOST_H
#define COLL_CUDA_HOST_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*coll_cuda_host_fn)(const struct coll_cuda_args);

/* The kernel of a name of coll_cuda_kernel_name; NULL if there is none. */
coll_cuda_host_fn coll_cuda_host_find(const char *name);

/* Run a kernel to its end. Calls from several threads do not disturb each other. */
void coll_cuda_host_run(coll_cuda_host_fn kernel, unsigned grid, unsigned block, const struct coll_cuda_args *args);

#ifdef __cplusplus
}

#define __global__
#define __device__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(threads)

struct coll_cuda_place {
    unsigned x;
};
static thread_local coll_cuda_place threadIdx, blockIdx, blockDim, gridDim;

#endif
#endif
