/* A count of what tasks do, by which a pass over the queue of non-blocking calls knows whether it was of use. */
#ifndef COLL_MOVES_H
#define COLL_MOVES_H

/* Messages that this thread has found complete, and times that it has moved a call of the node-local engine on. */
extern _Thread_local unsigned coll_moves;

#endif
