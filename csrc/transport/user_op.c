#include "user_op.h"
#include "base/error.h"

#include <string.h>

/* MPI_Reduce_local writes to its right operand, which must not change if it is an input. */
int coll_mpi_op_apply(void *context, void *dst, const void *left, const void *right, void *spare, size_t n) {
    const coll_mpi_op *o = context;
    void *inout = dst == left ? spare : dst;
    if (inout != right)
        memcpy(inout, right, n * o->itemsize);
    int error = o->mpi->reduce_local(o->op, o->datatype, left, inout, n);
    if (error == COLL_OK && inout != dst)
        memcpy(dst, inout, n * o->itemsize);
    return error;
}
