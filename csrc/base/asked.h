/* Counts how often a signal has arrived, whichever thread received it. Python's own handlers run only when its main
 * thread executes bytecode again. */
#ifndef COLL_ASKED_H
#define COLL_ASKED_H

/* Count `signal` and then call its present handler. 0, or -1 if it has no handler, or one that is already counted. */
int coll_asked_watch(int signal);
/* The number of signals counted so far. */
int coll_asked(void);

#endif
