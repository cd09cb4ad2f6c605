/* Error codes of all C functions; 0 is success, all errors are negative. */
#ifndef COLL_ERROR_H
#define COLL_ERROR_H

enum {
    COLL_OK = 0,
    COLL_PENDING = 1,        /* not complete; call again */
    COLL_ERR_MEMORY = -1,    /* allocation failed */
    COLL_ERR_SCHEDULE = -2,  /* malformed step: kind, buffer, block or peer out of range */
    COLL_ERR_MESSAGE = -3,   /* a message of the wrong length arrived: the ranks' calls differ */
    COLL_ERR_MPI = -4,       /* an MPI function failed; coll_endpoint.mpi_error has its code */
    COLL_ERR_ARGUMENT = -5,  /* argument out of range */
    COLL_ERR_OP = -6,        /* a user-defined op failed */
    COLL_ERR_READ = -7,      /* another process's memory could not be read */
    COLL_ERR_GIVEN_UP = -8,  /* a rank has given up this call; what it arrived with is no longer there */
    COLL_ERR_WITHIN = -9,    /* code that a task runs waits for another task, which cannot be moved meanwhile */
    COLL_ERR_CALLBACK = -10, /* a function that a task calls at its end failed */
};

#endif
