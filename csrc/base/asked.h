/* How often a signal has come, whichever thread of Python's answers it: its own handlers run only when the main thread
 * comes back to it. */
#ifndef COLL_ASKED_H
#define COLL_ASKED_H

/* Count a signal before the handler that it has now, which is called as before. 0, or -1 where it has none. */
int coll_asked_watch(int signal);
int coll_asked(void);

#endif
