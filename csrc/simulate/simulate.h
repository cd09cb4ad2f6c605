/* Simulation of a schedule's messages, as events in order of time, on hosts whose links are shared.

   Every rank runs its rounds in order. A round ends when its messages have left, those of other ranks have arrived, and
   the arrivals are folded. As in the executor of schedules, receives are posted when the round before begins, and
   messages that do not depend on that round are sent then.

   A message between hosts passes ports: its host's port out, uplinks and downlinks of switches as far as the two hosts
   have no switch in common, and the other host's port in. A port serves messages in the order in which their first
   bytes come, and never rests while one waits. A message is in several ports at once: its bytes follow its first one
   as fast as the slowest port allows. A host's port is a token bucket: after a rest, it lets `burst` bytes through at
   once. It begins without any.

   A long message is announced first, which takes a latency. It leaves a latency after the receiver's answer, which
   comes when the receive has been posted. */
#ifndef COLL_SIMULATE_H
#define COLL_SIMULATE_H

#include <stdint.h>

typedef struct {
    int nranks, nhosts, nlevels, ngroups;
    const int32_t *host;     /* of each rank */
    const int32_t *group;    /* nlevels x nhosts: the group of each host at each level; numbers differ between levels */
    const double *host_gap;  /* seconds per byte of each host's port, out and in */
    const double *group_gap; /* seconds per byte of each group's uplink, and of its downlink */
    const double *slowness;  /* factor of the overhead and the fold of each rank */
    double alpha;            /* seconds between hosts, for the first byte */
    double local_alpha;      /* the same within a host */
    double local_gap;        /* seconds per byte within a host */
    double overhead;         /* seconds of a rank's processor per message, on both sides */
    double fold_gap;         /* seconds per byte folded */
    double rendezvous;       /* messages of at least so many bytes leave when their receive has been posted */
    double burst;            /* bytes that a host's port lets through at once after a rest */
    double jitter;           /* mean of the exponential part of the latency, as a multiple of it */
    uint64_t seed;
} coll_sim_network;

typedef struct {
    const int64_t *first_round;   /* nranks + 1: the rounds of each rank, numbered through all ranks */
    const int64_t *first_message; /* nrounds + 1: the messages that are sent in each round */
    const int32_t *expected;      /* messages that arrive in each round */
    const double *folded;         /* bytes folded in each round besides arrivals */
    const int64_t *to_round;      /* of each message: the round in which it arrives */
    const double *bytes;          /* of each message */
    const uint8_t *folds;         /* of each message: whether it is folded where it arrives */
    const uint8_t *ahead;         /* of each message: whether it does not depend on the round before its own */
    int nsegments;                /* copies of all this, each with its own messages */
    int in_flight;                /* of them at once */
} coll_sim_rounds;

/* Sets `end[rank]` to the seconds at which the rank's last round of the last segment ended, and `sent[host]` to the
   bytes that left it. Returns the number of events, -1 without memory, -2 if ranks wait for messages that nobody
   sends. */
int64_t coll_simulate(const coll_sim_network *network, const coll_sim_rounds *rounds, double *end, double *sent);

#endif
