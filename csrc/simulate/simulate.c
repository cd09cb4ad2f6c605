/* Runs the rounds of all ranks through ports and processors, event by event. */
#include "simulate/simulate.h"
#include "simulate/events.h"

#include <math.h>
#include <stdlib.h>

enum { ARRIVED = -1, LEFT = -2, ANNOUNCED = -3 }; /* instead of the number of a port */

typedef struct {
    double early; /* seconds of folding for messages that came before the round began */
    int32_t arrived;
    int32_t left;      /* messages of the round that have left */
    int32_t announced; /* the last announced message that waits for its receive, plus 1 */
} round_state;

typedef struct {
    double began;  /* when the current round began, and receives of the next one were posted */
    double posted; /* when receives of the current round were posted */
    double ready;  /* when what has ended of the round had ended */
    int64_t round; /* the current one; the number after the last if all have ended */
    int32_t begun; /* whether the segment has begun on the rank */
} rank_state;

typedef struct {
    const coll_sim_network *net;
    const coll_sim_rounds *plan;
    coll_sim_heap heap;
    int64_t nrounds;
    int32_t *rank_of;    /* of each round */
    int32_t *sender;     /* of each message */
    round_state *rounds; /* nsegments x nrounds */
    rank_state *ranks;   /* nsegments x nranks */
    double *processor;   /* of each rank: when it is free */
    double *port;        /* when it is free: out and in of each host, up and down of each group */
    double *end, *sent;
    int32_t *waiting; /* of each rank: the next segment to begin */
    int32_t *before;  /* nsegments x nmessages: the message announced before, plus 1 */
    int64_t nmessages;
    uint64_t random;
    int failed;
} simulation;

static double latency(simulation *sim) {
    const coll_sim_network *net = sim->net;
    if (net->jitter <= 0)
        return net->alpha;
    uint64_t z = (sim->random += UINT64_C(0x9e3779b97f4a7c15)); /* SplitMix64 (Steele, Lea, Flood 2014) */
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    double uniform = ((double)(z >> 11) + 0.5) / 9007199254740992.0;
    return net->alpha * (1 - net->jitter * log(uniform));
}

static double later(double a, double b) {
    return a > b ? a : b;
}

static void push(simulation *sim, double time, double end, int64_t message, int segment, int hop) {
    coll_sim_event event = {.time = time, .end = end, .message = message, .segment = segment, .hop = hop};
    sim->failed |= coll_sim_push(&sim->heap, event);
}

/* Levels of switches that a message between two hosts climbs. */
static int levels_between(const coll_sim_network *net, int from, int to) {
    int level = 0;
    while (level < net->nlevels && net->group[level * net->nhosts + from] != net->group[level * net->nhosts + to])
        level++;
    return level;
}

/* The port at a hop of the way: out, up, ..., up, down, ..., down, in. Returns its gap. */
static double port_at(const simulation *sim, int from, int to, int levels, int hop, double **port) {
    const coll_sim_network *net = sim->net;
    double *groups = sim->port + 2 * net->nhosts;
    if (hop == 0 || hop == 2 * levels + 1) {
        *port = hop ? sim->port + net->nhosts + to : sim->port + from;
        return net->host_gap[hop ? to : from];
    }
    int up = hop <= levels, level = up ? hop - 1 : 2 * levels - hop;
    int group = net->group[level * net->nhosts + (up ? from : to)];
    *port = groups + (up ? 0 : net->ngroups) + group;
    return net->group_gap[group];
}

static rank_state *state_of(const simulation *sim, int rank, int segment) {
    return &sim->ranks[(int64_t)segment * sim->net->nranks + rank];
}

static double latency_between(const simulation *sim, int64_t message) {
    const int32_t *host = sim->net->host;
    int local = host[sim->sender[message]] == host[sim->rank_of[sim->plan->to_round[message]]];
    return local ? sim->net->local_alpha : sim->net->alpha;
}

/* The receive is posted: a message that was announced at `time` leaves a latency after both. */
static void release(simulation *sim, int64_t message, int segment, double time, double posted) {
    double leaves = later(time, posted) + latency_between(sim, message);
    push(sim, leaves, leaves, message, segment, 0);
}

/* Posts the receives of a round at `time`: releases what has been announced for it. */
static void post(simulation *sim, int64_t number, int segment, double time) {
    int32_t message = sim->rounds[segment * sim->nrounds + number].announced;
    for (; message; message = sim->before[segment * sim->nmessages + message - 1])
        release(sim, message - 1, segment, 0, time);
}

static void announce(simulation *sim, const coll_sim_event *event) {
    int64_t number = sim->plan->to_round[event->message];
    rank_state *state = state_of(sim, sim->rank_of[number], event->segment);
    round_state *round = &sim->rounds[event->segment * sim->nrounds + number];
    if (state->begun && number <= state->round + 1) {
        double posted = number == state->round ? state->posted : state->began;
        release(sim, event->message, event->segment, event->time, posted);
        return;
    }
    sim->before[event->segment * sim->nmessages + event->message] = round->announced;
    round->announced = (int32_t)event->message + 1;
}

/* Sends the messages of a round that depend on the round before, or those that do not; returns when all are sent. */
static double send(simulation *sim, int rank, int segment, int64_t number, int ahead, double now) {
    const coll_sim_rounds *plan = sim->plan;
    for (int64_t message = plan->first_message[number]; message < plan->first_message[number + 1]; message++) {
        if (plan->ahead[message] != ahead)
            continue;
        now += sim->net->overhead * sim->net->slowness[rank];
        if (plan->bytes[message] < sim->net->rendezvous)
            push(sim, now, now, message, segment, 0);
        else
            push(sim, now + latency_between(sim, message), now, message, segment, ANNOUNCED);
    }
    return now;
}

/* Begins the current round at `time`: sends its messages and, of the next round, those that do not depend on it; and
 * folds what has come before. */
static void begin_round(simulation *sim, int rank, int segment, double time) {
    rank_state *state = state_of(sim, rank, segment);
    int64_t number = state->round;
    int first = number == sim->plan->first_round[rank], last = number + 1 == sim->plan->first_round[rank + 1];
    double now = later(time, sim->processor[rank]);
    state->posted = first ? time : state->began;
    state->began = time;
    now = send(sim, rank, segment, number, 0, now);
    if (first) {
        now = send(sim, rank, segment, number, 1, now);
        post(sim, number, segment, time);
    }
    if (!last) {
        now = send(sim, rank, segment, number + 1, 1, now);
        post(sim, number + 1, segment, time);
    }
    state->ready = sim->processor[rank] = now + sim->rounds[segment * sim->nrounds + number].early;
}

/* Whether the current round has ended; then folds what is left, at `ready`, and goes on to the next one. */
static int end_round(simulation *sim, int rank, int segment) {
    rank_state *state = state_of(sim, rank, segment);
    const round_state *round = &sim->rounds[segment * sim->nrounds + state->round];
    int64_t sends = sim->plan->first_message[state->round + 1] - sim->plan->first_message[state->round];
    if (round->left < sends || round->arrived < sim->plan->expected[state->round])
        return 0;
    double folding = sim->plan->folded[state->round] * sim->net->fold_gap * sim->net->slowness[rank];
    if (folding > 0)
        state->ready = sim->processor[rank] = later(state->ready, sim->processor[rank]) + folding;
    state->round++;
    return 1;
}

/* Begins the current round at `time`, and the rounds and segments after it as long as these wait for nothing. */
static void run_rounds(simulation *sim, int rank, int segment, double time) {
    for (;;) {
        rank_state *state = state_of(sim, rank, segment);
        if (!state->begun) {
            state->begun = 1;
            state->round = sim->plan->first_round[rank];
        }
        if (state->round < sim->plan->first_round[rank + 1]) {
            begin_round(sim, rank, segment, time);
            if (!end_round(sim, rank, segment))
                return;
            time = state->ready;
        } else {
            sim->end[rank] = later(sim->end[rank], time);
            if (sim->waiting[rank] == sim->plan->nsegments)
                return;
            segment = sim->waiting[rank]++;
        }
    }
}

/* Something that the current round waited for has ended at `time`. */
static void advance(simulation *sim, int rank, int segment, double time) {
    rank_state *state = state_of(sim, rank, segment);
    state->ready = later(state->ready, time);
    if (end_round(sim, rank, segment))
        run_rounds(sim, rank, segment, state->ready);
}

static void arrive(simulation *sim, const coll_sim_event *event) {
    int64_t number = sim->plan->to_round[event->message];
    int rank = sim->rank_of[number];
    rank_state *state = state_of(sim, rank, event->segment);
    round_state *round = &sim->rounds[event->segment * sim->nrounds + number];
    double bytes = sim->plan->folds[event->message] ? sim->plan->bytes[event->message] : 0;
    double work = (sim->net->overhead + bytes * sim->net->fold_gap) * sim->net->slowness[rank];
    round->arrived++;
    if (!state->begun || state->round != number) {
        round->early += work;
        return;
    }
    double now = later(event->time, sim->processor[rank]) + work;
    sim->processor[rank] = now;
    advance(sim, rank, event->segment, now);
}

static void leave(simulation *sim, const coll_sim_event *event) {
    int rank = sim->sender[event->message];
    int64_t number = state_of(sim, rank, event->segment)->round;
    int next = event->message >= sim->plan->first_message[number + 1]; /* of the next round, sent ahead */
    sim->rounds[event->segment * sim->nrounds + number + next].left++;
    if (!next)
        advance(sim, rank, event->segment, event->time);
}

static void hop(simulation *sim, const coll_sim_event *event) {
    const coll_sim_network *net = sim->net;
    double bytes = sim->plan->bytes[event->message];
    int rank = sim->sender[event->message], target = sim->rank_of[sim->plan->to_round[event->message]];
    int from = net->host[rank], to = net->host[target];
    if (from == to) {
        double moved = event->time + bytes * net->local_gap;
        push(sim, moved + net->local_alpha, moved, event->message, event->segment, ARRIVED);
        push(sim, moved, moved, event->message, event->segment, LEFT);
        return;
    }
    double *port;
    int levels = levels_between(net, from, to);
    double gap = port_at(sim, from, to, levels, event->hop, &port);
    int last = event->hop == 2 * levels + 1;
    double saved = !event->hop || last ? net->burst * gap : 0; /* what it lets through at once after a rest */
    double start = later(event->time - saved, *port), end = later(start + bytes * gap, event->end);
    *port = start + bytes * gap;
    if (last) {
        push(sim, end, end, event->message, event->segment, ARRIVED);
        return;
    }
    double delay = event->hop ? 0 : latency(sim);
    push(sim, later(start, event->time) + delay, end + delay, event->message, event->segment, event->hop + 1);
    if (!event->hop) {
        sim->sent[from] += bytes;
        push(sim, end, end, event->message, event->segment, LEFT);
    }
}

static void find_senders(simulation *sim) {
    const coll_sim_rounds *plan = sim->plan;
    for (int rank = 0; rank < sim->net->nranks; rank++)
        for (int64_t round = plan->first_round[rank]; round < plan->first_round[rank + 1]; round++) {
            sim->rank_of[round] = rank;
            for (int64_t message = plan->first_message[round]; message < plan->first_message[round + 1]; message++)
                sim->sender[message] = rank;
        }
}

static int64_t run(simulation *sim) {
    int nranks = sim->net->nranks;
    find_senders(sim);
    for (int rank = 0; rank < nranks; rank++)
        while (sim->waiting[rank] < sim->plan->nsegments && sim->waiting[rank] < sim->plan->in_flight)
            run_rounds(sim, rank, sim->waiting[rank]++, 0);
    while (sim->heap.count && !sim->failed) {
        coll_sim_event event = coll_sim_pop(&sim->heap);
        if (event.hop == ARRIVED)
            arrive(sim, &event);
        else if (event.hop == LEFT)
            leave(sim, &event);
        else if (event.hop == ANNOUNCED)
            announce(sim, &event);
        else
            hop(sim, &event);
    }
    if (sim->failed)
        return -1;
    for (int64_t i = 0; i < (int64_t)sim->plan->nsegments * nranks; i++)
        if (!sim->ranks[i].begun || sim->ranks[i].round != sim->plan->first_round[i % nranks + 1])
            return -2;
    return sim->heap.pushed;
}

int64_t coll_simulate(const coll_sim_network *network, const coll_sim_rounds *rounds, double *end, double *sent) {
    size_t nranks = (size_t)network->nranks, segments = (size_t)rounds->nsegments;
    simulation sim = {.net = network, .plan = rounds, .end = end, .sent = sent, .random = network->seed};
    sim.nrounds = rounds->first_round[nranks];
    sim.nmessages = rounds->first_message[sim.nrounds];
    sim.before = calloc((size_t)sim.nmessages * segments + 1, sizeof *sim.before);
    sim.rank_of = malloc((size_t)(sim.nrounds + 1) * sizeof *sim.rank_of);
    sim.sender = malloc(((size_t)sim.nmessages + 1) * sizeof *sim.sender);
    sim.rounds = calloc((size_t)sim.nrounds * segments + 1, sizeof *sim.rounds);
    sim.ranks = calloc(nranks * segments, sizeof *sim.ranks);
    sim.processor = calloc(nranks, sizeof *sim.processor);
    sim.port = calloc(2 * (size_t)(network->nhosts + network->ngroups), sizeof *sim.port);
    sim.waiting = calloc(nranks, sizeof *sim.waiting);
    int64_t events = -1;
    if (sim.before && sim.rank_of && sim.sender && sim.rounds && sim.ranks && sim.processor && sim.port && sim.waiting)
        events = run(&sim);
    void *memory[] = {sim.rank_of, sim.sender,  sim.rounds, sim.ranks,      sim.processor,
                      sim.port,    sim.waiting, sim.before, sim.heap.events};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
    return events;
}
