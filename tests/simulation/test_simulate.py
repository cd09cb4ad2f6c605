"""Simulated times against closed forms, against counted volumes, and by both engines."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest

import collectives.algorithms  # noqa: F401
from collectives.analysis.cost import Machine, count, seconds
from collectives.schedules import registry
from collectives.simulation import events
from collectives.simulation import rounds as simulation_rounds
from collectives.simulation.clocks import Clocks
from collectives.simulation.network import PLACEMENTS, Level, Network, placed
from collectives.simulation.rounds import bytes_of_block, rounds
from collectives.simulation.simulate import bound, simulate

PLAIN = {"alpha": 3e-6, "beta": 1e9, "overhead": 0.0, "fold": math.inf, "rendezvous": math.inf}
FULL = {"alpha": 3e-6, "beta": 1e9, "overhead": 2e-7, "fold": 5e9, "rendezvous": 4096}


def _schedules():
    for kind in registry.collectives():
        for name in registry.algorithms(kind):
            algorithm = registry.find(kind, name)
            if isinstance(algorithm, registry.ScheduleAlgorithm):
                yield algorithm


SCHEDULES = list(_schedules())


def network(size, hosts=None, placement="block", **parameters):
    return Network(placed(size, hosts or size, placement), **parameters)


def by_events(algorithm, net, nbytes, root=0, **segments):
    return events.run(rounds(algorithm, net.size, root), net, bytes_of_block(algorithm, net.size, nbytes), **segments)


#: Algorithms whose messages share ports, or are sent ahead of their rounds.
BY_EVENTS = {"linear", "naive", "recursive_multiplying", "tree", "pairwise", "scatter_allgather"}
SOME_BY_EVENTS = {"bcast-binomial", "scatter-binomial", "scan-recursive_doubling"}


@pytest.mark.parametrize("algorithm", SCHEDULES, ids=lambda a: f"{a.collective}-{a.name}")
def test_both_engines_agree(algorithm):
    """To the last digit, unless a message overtakes one of an earlier round: clocks say so, and events take over."""
    compared = 0
    for size, limit, burst in itertools.product((2, 3, 6, 8, 13, 16), (1, 4096, math.inf), (0, 4096)):
        slow = {"slow_ranks": {size - 1: 1.5}, "slow_hosts": {0: 1.25}}
        for nbytes in (64, 1 << 20):
            net = network(size, **FULL | {"rendezvous": limit, "burst": burst}, **slow)
            clocks = Clocks(net, bytes_of_block(algorithm, size, nbytes))
            if all(clocks.run(*found) for found in rounds(algorithm, size)):
                ends, sent, messages = by_events(algorithm, net, nbytes)
                np.testing.assert_allclose(clocks.sent, sent)
                assert clocks.messages == messages
                if not clocks.overtaken:
                    np.testing.assert_allclose(clocks.time, ends, rtol=1e-9)
                    compared += 1
                np.testing.assert_array_equal(
                    simulate(algorithm, net, nbytes).ends, ends if clocks.overtaken else clocks.time
                )
    assert compared > 9 or algorithm.name in BY_EVENTS or f"{algorithm.collective}-{algorithm.name}" in SOME_BY_EVENTS


def test_messages_that_reach_a_port_at_the_same_time_are_served_as_by_events():
    """Those of two rounds of a tree: clocks say that they cannot tell which one is first."""
    algorithm = registry.find("reduce", "binomial")
    for size, root in ((3, 1), (5, 2), (9, 4)):
        net = network(size, **FULL)
        ends, _, _ = by_events(algorithm, net, 16 << 20, root)
        np.testing.assert_array_equal(simulate(algorithm, net, 16 << 20, root=root).ends, ends)


def test_receives_and_free_sends_are_a_round_ahead():
    """A pairwise exchange of 4 ranks: three rounds, of which two are always under way, so that only bytes count."""
    exchange, n = registry.find("alltoall", "pairwise"), 1 << 20
    outcome = simulate(exchange, network(4, **PLAIN | {"rendezvous": 1}), 4 * n)
    assert outcome.engine == "events"
    assert outcome.seconds == pytest.approx(3 * n / 1e9 + 3 * 3e-6)


def test_a_rested_port_lets_a_burst_through():
    """A chain of 3: the second port has rested while the first message came, and saves the burst."""
    chain, n, burst = registry.find("bcast", "chain"), 1 << 20, 1 << 16
    plain, saved = (simulate(chain, network(3, **PLAIN | {"burst": b}), n).seconds for b in (0, burst))
    assert plain - saved == pytest.approx(burst / 1e9)


@pytest.mark.parametrize("algorithm", SCHEDULES, ids=lambda a: f"{a.collective}-{a.name}")
def test_every_byte_leaves_its_host(algorithm):
    for size in (1, 2, 5, 8):
        outcome = simulate(algorithm, network(size, **FULL), 1 << 16)
        nbytes = 0 if algorithm.collective == "barrier" else 1 << 16
        np.testing.assert_allclose(outcome.sent, count(algorithm, size).of(nbytes)[0])
        assert outcome.messages == count(algorithm, size).messages.sum()


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_hosts_with_several_ranks_send_less(placement):
    net = network(8, 2, placement, **FULL)
    ring = registry.find("allreduce", "ring")
    outcome = simulate(ring, net, 8 << 20)
    one_way = 14 / 8 * (8 << 20)  # what each rank sends
    assert outcome.sent.tolist() == [one_way * (1 if placement == "block" else 4)] * 2


@pytest.mark.parametrize("size", [2, 4, 8, 32])
@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "recursive_halving"])
def test_the_plain_model_is_the_linear_one(name, size):
    algorithm = registry.find("allreduce", name)
    for nbytes in (8, 4096, 1 << 20):
        expected = seconds(algorithm, size, nbytes, Machine(alpha=3e-6, beta=1e-9, gamma=2e-10))
        found = simulate(algorithm, network(size, **PLAIN | {"fold": 5e9}), nbytes).seconds
        assert found == pytest.approx(expected, rel=1e-9)


def test_closed_forms():
    p, n = 10, 1_000_000
    ring = registry.find("allreduce", "ring")
    each = 3e-6 + 2 * 2e-7 + n / p / 1e9 + 2 * 3e-6  # long messages are announced and answered
    expected = 2 * (p - 1) * each + (p - 1) * n / p / 5e9
    assert simulate(ring, network(p, **FULL), n).seconds == pytest.approx(expected)
    chain, segments = registry.find("bcast", "chain"), 20
    expected = (p - 1 + segments - 1) * n / segments / 1e9 + (p - 1) * 3e-6
    assert simulate(chain, network(p, **PLAIN), n, segments=segments, in_flight=segments).seconds == pytest.approx(
        expected, rel=1e-3
    )


def test_ports_are_shared_and_never_rest():
    n = 1_000_000
    linear = registry.find("gather", "linear")
    for hosts in (8, 4, 2):
        outcome = simulate(linear, network(8, hosts, **PLAIN | {"local_beta": 1e12}), 8 * n)
        arriving = (8 - 8 // hosts) * n / 1e9  # through the root's port
        assert outcome.seconds == pytest.approx(3e-6 + arriving, rel=1e-3)


def test_oversubscribed_switches_take_longer():
    n, p = 1 << 20, 16
    exchange = registry.find("alltoall", "linear")
    flat = simulate(exchange, network(p, **PLAIN), n).seconds
    full = simulate(exchange, network(p, levels=(Level(4), Level(4)), **PLAIN), n).seconds
    thin = simulate(exchange, network(p, levels=(Level(4, 4.0), Level(4)), **PLAIN), n).seconds
    assert full == pytest.approx(flat, rel=0.1)
    uplink = 4 * 12 / 16 * n / 1e9  # four hosts' bytes for other switches, at the rate of one host
    assert uplink < thin < 1.6 * uplink


def test_a_slow_host_and_a_slow_rank_hold_up_a_ring():
    ring, n, p = registry.find("allreduce", "ring"), 1 << 20, 12
    even = simulate(ring, network(p, **FULL), n)
    for slow in ({"slow_hosts": {3: 4.0}}, {"slow_ranks": {3: 400.0}}):
        net = network(p, **FULL, **slow)
        outcome = simulate(ring, net, n)
        assert outcome.seconds > 2 * even.seconds
        np.testing.assert_allclose(outcome.ends, by_events(ring, net, n)[0], rtol=1e-9)


def test_jitter_is_drawn_from_the_seed():
    ring = registry.find("allreduce", "ring")
    one, again, other, none = (
        simulate(ring, network(16, jitter=jitter, seed=seed, **FULL), 1 << 20).seconds
        for jitter, seed in ((0.5, 1), (0.5, 1), (0.5, 2), (0.0, 1))
    )
    assert one == again != other
    assert min(one, other) > none
    drawn = [by_events(ring, network(16, jitter=0.5, seed=seed, **FULL), 1 << 20)[0].max() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert np.mean(drawn) == pytest.approx(np.mean([one, other]), rel=0.1)


def test_a_long_message_waits_for_its_receiver():
    """Rank 1 of a chain is busy folding nothing: its message is announced early and answered when its round begins."""
    chain = registry.find("bcast", "chain")
    eager, announced = (
        simulate(chain, network(3, **PLAIN | {"rendezvous": limit}), 1 << 20).seconds for limit in (math.inf, 1)
    )
    assert announced - eager == pytest.approx(4 * 3e-6)


def test_repeated_rounds_are_found():
    """100,000 ranks: 200,000 rounds are simulated as one and the rest, in little time and memory."""
    ring = registry.find("allreduce", "ring")
    assert [times for _, times in rounds(ring, 100_000)] == [99_999, 99_999]
    outcome = simulate(ring, network(100_000, **FULL), 100_000_000)
    each = 3e-6 + 2 * 2e-7 + 1000 / 1e9
    assert outcome.seconds == pytest.approx(2 * 99_999 * each + 99_999 * 1000 / 5e9)
    assert outcome.messages == 2 * 99_999 * 100_000
    assert outcome.elapsed < 30


@pytest.mark.parametrize("size", [7, 64])
def test_repeated_rounds_take_as_long_as_single_ones(size):
    ring = registry.find("allreduce", "ring")
    net = network(size, slow_ranks={2: 50.0}, **FULL)
    once = Clocks(net, 1000)
    for messages, times in rounds(ring, size):
        for _ in range(times):
            once.run(messages, 1)
    np.testing.assert_allclose(simulate(ring, net, 1000 * size).ends, once.time, rtol=1e-9)


def test_bounds():
    net = network(8, 4, beta=1e9)
    assert bound("allreduce", net, 1000) == pytest.approx(1.5e-6)
    assert bound("bcast", net, 1000) == pytest.approx(1e-6)
    assert bound("bcast", network(2, 1), 1000) == 0
    assert bound("scan", net, 1000) is None
    assert bound("bcast", network(8, 4, beta=1e9, burst=400.0), 1000) == pytest.approx(0.6e-6)
    assert bound("bcast", network(8, 4, beta=1e9, burst=4000.0), 1000) == 0
    faster = {0: 0.5, 1: 0.5, 2: 0.25, 3: 3.0}
    assert bound("bcast", network(8, 4, beta=1e9, slow_hosts=faster), 1000) == pytest.approx(0.25e-6)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: network(4, 5), "hosts"),
        (lambda: network(4, beta=0), "beta"),
        (lambda: network(4, alpha=-1.0), "alpha"),
        (lambda: network(4, alpha=math.nan), "alpha"),
        (lambda: network(4, slow_ranks={4: 2.0}), "slow_ranks"),
        (lambda: network(4, rendezvous=math.nan), "rendezvous"),
        (lambda: network(4, seed=-1), "seed"),
        (lambda: Network(np.zeros(0, np.int32)), "hosts"),
        (lambda: Network(np.array([0, -1])), "hosts"),
        (lambda: Network(np.array([0, 0, 5])), "a rank on each host from 0 to 5"),
        (lambda: Network(placed(2, 2), beta=1e-310), "beta"),
        (lambda: simulate(registry.find("bcast", "binomial"), network(4), 1000, root=99), "no such root"),
        (lambda: simulate(registry.find("allreduce", "ring"), network(4), 1000, root=1), "no such root"),
        (lambda: simulate(registry.find("bcast", "binomial"), network(4), -1), "nbytes"),
        (lambda: network(4, levels=(Level(2, math.inf),)), "levels"),
        (lambda: network(4, levels=(Level(0),)), "levels"),
        (lambda: network(4, levels=(Level(2, 1e308), Level(2, 1e308))), "bandwidths of their uplinks"),
        (lambda: simulate(registry.find("allreduce", "ring"), network(4), 8, segments=0), "segments"),
        (lambda: simulate(registry.find("allgather", "bruck"), network(4), 8, segments=2), "cannot be cut"),
    ],
)
def test_what_is_impossible_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_rank_without_rounds_passes_a_million_segments():
    """Segments end as they begin there: one after the other, not one within the other."""
    ring = registry.find("allreduce", "ring")
    assert simulate(ring, network(1), 8, segments=1_000_000).seconds == 0
    chain = registry.find("bcast", "chain")
    far = network(3, alpha=1.0, overhead=1e-9, rendezvous=math.inf)
    assert simulate(chain, far, 1 << 20, segments=100_000).seconds > 2


def test_one_round_of_very_many_messages_is_refused_as_it_grows(monkeypatch):
    """An all-to-all of 20,000 ranks has 400 million messages in one round."""
    monkeypatch.setattr(simulation_rounds, "MOST_MESSAGES", 1_000_000)
    exchange, net = registry.find("alltoall", "linear"), network(20_000)
    tracemalloc.start()
    try:
        with pytest.raises(simulation_rounds.TooMany, match="over 1,000,000 messages"):
            simulate(exchange, net, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_too_many_messages_are_refused_before_they_take_memory(monkeypatch):
    monkeypatch.setattr(events, "MOST_MESSAGES", 100)
    with pytest.raises(ValueError, match="over 100 messages"):
        simulate(registry.find("alltoall", "linear"), network(16, **FULL), 1 << 10)
