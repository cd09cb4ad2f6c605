/* Generalized requests, for mpi_transport.c; see coll_mpi_api. */
#ifndef COLL_MPI_REQUESTS_H
#define COLL_MPI_REQUESTS_H

#include <stdatomic.h>
#include <stdint.h>

int coll_mpi_request_start(intptr_t *request, int **status);
int coll_mpi_request_complete(intptr_t request, int *status);
int64_t coll_mpi_request_waited(const int *status, int64_t main_since);
void coll_mpi_on_release(void (*function)(void));
void coll_mpi_on_wait(void (*test)(void), void (*wait)(const atomic_int *ended));

#endif
