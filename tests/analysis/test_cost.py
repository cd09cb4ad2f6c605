"""Counting from generators agrees with counting from schedules, with promises, and with the formulas."""

import tracemalloc
from dataclasses import replace
from math import ceil, log2

import numpy as np
import pytest

from collectives.analysis import cost
from collectives.analysis.verify import verify
from collectives.schedules import registry
from collectives.schedules.registry import ScheduleAlgorithm

FOUND = [registry.find(kind, name) for kind in registry.collectives() for name in registry.algorithms(kind)]
SCHEDULES = [a for a in FOUND if isinstance(a, ScheduleAlgorithm)]
CLUSTER = cost.Machine(alpha=2e-6, beta=1 / 12e9, gamma=1 / 8e9)


@pytest.mark.parametrize("algorithm", SCHEDULES, ids=lambda a: a.name)
def test_counts_are_those_of_the_proof_and_the_promise(algorithm):
    for p in (1, 2, 3, 4, 6, 7, 8, 11, 13, 16, 24):
        traffic, proof = cost.count(algorithm, p), verify(algorithm, p)
        assert (traffic.rounds, traffic.sent.max(), traffic.messages.sum()) == (
            proof.rounds,
            proof.sent,
            proof.messages,
        )
        assert traffic.sent.sum() == traffic.received.sum()
        promise = cost.promised(algorithm, p, 1200)
        assert promise.rounds == traffic.rounds
        assert promise.sent == pytest.approx(traffic.of(1200)[0].max())


@pytest.mark.parametrize("p", [2, 3, 8, 12])
def test_everybody_in_the_ring_does_the_same(p):
    traffic = cost.count(registry.find("allreduce", "ring"), p)
    sent, received, reduced = traffic.of(1000.0 * p)
    assert np.all(sent == 2000 * (p - 1))
    assert np.all(received == sent)
    assert np.all(reduced == 1000 * (p - 1))


def formula(name, p, n):
    a, b, g, lg = CLUSTER.alpha, CLUSTER.beta, CLUSTER.gamma, ceil(log2(p))
    share = n * (p - 1) / p
    return {
        "ring": 2 * (p - 1) * a + 2 * share * b + share * g,
        "circulant": 2 * lg * a + 2 * share * b + share * g,
        "tree": 2 * lg * (a + n * b) + lg * n * g,
        "recursive_doubling": lg * (a + n * b + n * g),
        "recursive_halving": 2 * lg * a + 2 * share * b + share * g,
        "naive": 2 * a + (p - 1) * n * (2 * b + g),
    }[name]


@pytest.mark.parametrize("name", ["ring", "circulant", "tree", "recursive_doubling", "recursive_halving", "naive"])
@pytest.mark.parametrize("p", [2, 8, 32])
def test_time_is_the_textbook_formula(name, p):
    n = 1 << 20
    assert cost.seconds(registry.find("allreduce", name), p, n, CLUSTER) == pytest.approx(formula(name, p, n))


@pytest.mark.parametrize("name", ["ring", "circulant"])
def test_time_is_the_textbook_formula_for_any_size(name):
    for p in (3, 5, 6, 7, 13, 24):
        n = 1 << 20
        assert cost.seconds(registry.find("allreduce", name), p, n, CLUSTER) == pytest.approx(formula(name, p, n))


def test_driver_that_handles_one_message_after_the_other():
    naive, n, p = registry.find("allreduce", "naive"), 1 << 20, 9
    serial = replace(CLUSTER, overhead=CLUSTER.alpha)
    expected = 2 * (p - 1) * (CLUSTER.alpha + n * CLUSTER.beta) + (p - 1) * n * CLUSTER.gamma
    assert cost.seconds(naive, p, n, serial) == pytest.approx(expected)


def test_recursive_multiplying_overlaps_the_messages_of_a_round():
    n, k = 1 << 20, 4
    expected = 3 * (CLUSTER.alpha + (k - 1) * n * (CLUSTER.beta + CLUSTER.gamma))
    assert cost.seconds(registry.find("allreduce", "recursive_multiplying"), k**3, n, CLUSTER) == pytest.approx(
        expected
    )


def test_small_vectors_want_few_rounds_and_large_ones_little_volume():
    def best(n):
        names = [a.name for a in SCHEDULES if a.collective == "allreduce"]
        return min(names, key=lambda name: cost.seconds(registry.find("allreduce", name), 64, n, cluster))

    cluster = replace(CLUSTER, overhead=CLUSTER.alpha / 10)

    assert best(8) == "recursive_multiplying"
    assert best(1 << 28) in ("circulant", "recursive_halving", "ring")


@pytest.mark.parametrize(("collective", "sent"), [("alltoall", 199), ("reduce_scatter", 199), ("gather", 1)])
def test_counting_a_linear_algorithm_keeps_no_more_than_a_step(collective, sent):
    """It has a step for each rank in one round, so that all of them are as many entries as pairs of ranks."""
    linear, hosts = registry.find(collective, "linear"), (np.arange(200, dtype=np.int32) // 4).tobytes()
    tracemalloc.start()
    traffic, carried = cost.count(linear, 200), cost.crossing(linear, hosts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert traffic.sent.max() == sent
    assert carried.busiest == pytest.approx(0.98 if collective == "gather" else 4 * 196 / 200)
    assert peak < 256 << 10


def test_thousands_of_ranks_are_quick():
    tree = registry.find("allreduce", "tree")
    expected = 2 * 17 * (CLUSTER.alpha + 1e6 * CLUSTER.beta) + 17 * 1e6 * CLUSTER.gamma
    assert cost.seconds(tree, 100_000, 1e6, CLUSTER) == pytest.approx(expected)
