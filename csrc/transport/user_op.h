/* Ops without a kernel: local reductions by MPI, with user-defined ops among them. */
#ifndef COLL_USER_OP_H
#define COLL_USER_OP_H

#include "mpi_transport.h"

typedef struct {
    const coll_mpi_api *mpi;
    intptr_t op, datatype;
    size_t itemsize;
} coll_mpi_op;

/* A coll_user_op (schedule/executor.h) whose context is a coll_mpi_op. */
int coll_mpi_op_apply(void *context, void *dst, const void *left, const void *right, void *spare, size_t n);

#endif
