"""Simulated times against closed forms, against counted volumes, and by both engines."""

import itertools
import math

import numpy as np
import pytest

import collectives.algorithms  # noqa: F401
from collectives.analysis.cost import Machine, count, seconds
from collectives.schedules import registry
from collectives.simulation import events
from collectives.simulation.clocks import Clocks
from collectives.simulation.network import PLACEMENTS, Level, Network, placed
from collectives.simulation.rounds import rounds
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
    return events.run(rounds(algorithm, net.size, root), net, nbytes / algorithm.blocks(net.size), **segments)


@pytest.mark.parametrize("eager", [False, True], ids=["announced", "eager"])
@pytest.mark.parametrize("algorithm", SCHEDULES, ids=lambda a: f"{a.collective}-{a.name}")
def test_both_engines_agree(algorithm, eager):
    """To the last digit where messages are announced. Eager ones of a later round may come first: clocks miss that."""
    compared = 0
    for size, nbytes in itertools.product((2, 3, 4, 6, 8, 13, 16), (64,) if eager else (64, 1 << 20)):
        slow = {} if eager else {"rendezvous": 1, "slow_ranks": {size - 1: 1.5}, "slow_hosts": {0: 1.25}}
        net = network(size, **FULL | slow)
        clocks = Clocks(net, nbytes / algorithm.blocks(size))
        if all(clocks.run(*found) for found in rounds(algorithm, size)):
            ends, sent, messages = by_events(algorithm, net, nbytes)
            np.testing.assert_allclose(clocks.time, ends, rtol=0.03 if eager else 1e-9)
            np.testing.assert_allclose(clocks.sent, sent)
            assert clocks.messages == messages
            compared += 1
    assert compared or algorithm.name in ("linear", "naive", "double_tree", "recursive_multiplying", "knomial", "tree")


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


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: network(4, 5), "hosts"),
        (lambda: network(4, beta=0), "beta"),
        (lambda: network(4, alpha=-1.0), "alpha"),
        (lambda: network(4, alpha=math.nan), "alpha"),
        (lambda: network(4, slow_ranks={4: 2.0}), "slow_ranks"),
        (lambda: network(4, levels=(Level(0),)), "levels"),
        (lambda: simulate(registry.find("allreduce", "ring"), network(4), 8, segments=0), "segments"),
        (lambda: simulate(registry.find("allgather", "bruck"), network(4), 8, segments=2), "cannot be cut"),
    ],
)
def test_what_is_impossible_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_too_many_messages_are_refused_before_they_take_memory(monkeypatch):
    monkeypatch.setattr(events, "MOST_MESSAGES", 100)
    with pytest.raises(ValueError, match="over 100 messages"):
        simulate(registry.find("alltoall", "linear"), network(16, **FULL), 1 << 10)
