/* How a thread that polls leaves its core to others that need it. */
#ifndef COLL_PATIENCE_H
#define COLL_PATIENCE_H

/* One wait. */
typedef struct {
    long long since; /* ns: when it began, or last saw something move; 0: not read yet */
    long long nap;   /* ns: when the next nap is due */
    unsigned moves;  /* coll_moves at that time */
    unsigned polls;  /* in vain since then */
} coll_patience;

coll_patience coll_patience_new(void);
/* To be called after each poll in vain. Gives the core to another process for a moment, if one needs it. */
void coll_give_way(coll_patience *);
/* To be called instead if the poll or the caller has done so: naps in a long wait. */
void coll_gave_way(coll_patience *);
/* Gives the core away for a moment, unless that has lately cost a time slice. */
void coll_give_way_once(void);

#endif
