# The event simulator; included by _core.pyx.

def simulate(dict network, dict rounds, int nsegments, int in_flight, cnp.ndarray end, cnp.ndarray sent):
    """Simulate one call; returns the number of events.

    ``end`` and ``sent``, arrays of float64, are set to the seconds at which each rank ends, and to the bytes that left
    each host, from 0. ``network`` and ``rounds`` have the fields of the C structures in csrc/simulate/simulate.h: contiguous arrays of
    their types, and numbers. ValueError if messages and arrivals do not match; MemoryError without memory.
    """
    cdef coll_sim_network net
    cdef coll_sim_rounds plan
    cdef cnp.ndarray host = network["host"], group = network["group"], host_gap = network["host_gap"]
    cdef cnp.ndarray group_gap = network["group_gap"], slowness = network["slowness"]
    cdef cnp.ndarray first_round = rounds["first_round"], first_message = rounds["first_message"]
    cdef cnp.ndarray expected = rounds["expected"], folded = rounds["folded"], to_round = rounds["to_round"]
    cdef cnp.ndarray bytes = rounds["bytes"], folds = rounds["folds"], ahead = rounds["ahead"]
    net.nranks, net.nhosts, net.nlevels, net.ngroups = len(host), len(host_gap), len(group), len(group_gap)
    net.host, net.group = <const int32_t *>host.data, <const int32_t *>group.data
    net.host_gap, net.group_gap = <const double *>host_gap.data, <const double *>group_gap.data
    net.slowness = <const double *>slowness.data
    net.alpha, net.local_alpha, net.local_gap = network["alpha"], network["local_alpha"], network["local_gap"]
    net.overhead, net.fold_gap, net.jitter = network["overhead"], network["fold_gap"], network["jitter"]
    net.rendezvous, net.burst, net.seed = network["rendezvous"], network["burst"], network["seed"]
    plan.first_round, plan.first_message = <const int64_t *>first_round.data, <const int64_t *>first_message.data
    plan.expected, plan.folded = <const int32_t *>expected.data, <const double *>folded.data
    plan.to_round, plan.bytes = <const int64_t *>to_round.data, <const double *>bytes.data
    plan.folds, plan.ahead = <const uint8_t *>folds.data, <const uint8_t *>ahead.data
    plan.nsegments, plan.in_flight = nsegments, in_flight
    cdef double *ends = <double *>end.data
    cdef double *leaving = <double *>sent.data
    cdef int64_t events
    with nogil:
        events = coll_simulate(&net, &plan, ends, leaving)
    if events == -1:
        raise MemoryError
    if events == -2:
        raise ValueError("rounds: ranks wait for messages that nobody sends")
    return events
