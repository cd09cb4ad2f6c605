/* What the queue (progress.c), its thread (thread.c) and the end of the process (ending.c) share. */
#ifndef COLL_PROGRESS_INTERNAL_H
#define COLL_PROGRESS_INTERNAL_H

#include "progress.h"

#include <pthread.h>

enum { WORKED = 200 }; /* us of a poll or pass that has moved data for so long that it did not wait */

extern pthread_mutex_t coll_queue_lock; /* guards the queue and every task in it */

/* With the lock held: go through the queue once, in order; if nothing moves, through a part. Returns whether anything
 * moved. */
int coll_queue_pass(void);
/* With the lock held: the oldest request, or NULL. */
const coll_request *coll_queue_first(void);
/* Number of the latest request. */
uint64_t coll_queue_latest(void);
/* Whether this thread holds the lock and runs a task of the queue. */
int coll_queue_within(void);
/* Number of threads in coll_progress_wait, which move the queue themselves. */
int coll_queue_waiters(void);
/* In a forked child: the queue is empty. */
void coll_queue_forget(void);

/* Make a thread that takes no signal of the process. COLL_OK or COLL_ERR_MEMORY. */
int coll_thread_create(pthread_t *made, void *(*function)(void *), void *argument);
/* Start the thread if it does not run. COLL_OK or an error. */
int coll_thread_start(void);
/* Wake the thread if it sleeps for want of requests. */
void coll_thread_wake(void);
/* Wake the callers of coll_progress_sleep, since requests have ended. Called with the queue's lock held. */
void coll_thread_landed(void);

#endif
