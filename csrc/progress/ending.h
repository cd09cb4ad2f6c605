/* The end of MPI in this process: MPI_Finalize, or a fork, whose child does not use MPI. */
#ifndef COLL_ENDING_H
#define COLL_ENDING_H

#include "transport/mpi_transport.h"

/* A failed run may have messages under way, and other ranks may wait for its next ones, so MPI_Finalize could hang.
 * After coll_progress_broken, or with requests outstanding, MPI_Finalize therefore becomes MPI_Abort. Callers of these
 * functions hold the interpreter's lock, which guards what they write. */
void coll_progress_broken(const char *why);
/* Take one coll_progress_broken back: another attempt has completed the call. */
void coll_progress_mended(void);
/* A rank died and the others continue. The communicator was revoked, so that nothing is under way on it any more. If it
 * was broken, that reason for MPI_Abort is taken back. */
void coll_progress_survived(int was_broken);
/* A process of this machine, whose end during MPI_Finalize means that a rank died. For jobs that go on then. */
void coll_progress_watch_process(int pid);
/* The program has ended with this exit code, that of a process whose MPI_Finalize had to be ended. Without this call
 * the code is 1, and there is a message: the program may have had more to do. */
void coll_progress_exit_code(int);
/* MPI_Abort, or the end of this process if that hangs. Not within the interpreter's lock, which MPI_Abort may keep. */
void coll_progress_abort(void);
/* Have these checks made when MPI_Finalize begins. If a rank died, MPI_Finalize is ended after 5 s, with the process,
 * unless coll_progress_finalized is called. It is left alone if `tells`, called when it begins, returns 0: then nobody
 * makes that call. COLL_OK or an error. */
int coll_progress_watch_end(const coll_mpi_api *, int (*tells)(void));
void coll_progress_finalized(void);
/* MPI_Finalize writes '2' to *state, once no call of this process can begin any more; NULL: nowhere. */
void coll_progress_note(char *state);
/* From now on forked children use no requests and no thread; coll_progress_watch_end includes this. */
int coll_progress_watch_forks(void);
/* Whether this process no longer uses MPI: MPI has been finalized, or this is a forked child. */
int coll_progress_ended(void);

#endif
