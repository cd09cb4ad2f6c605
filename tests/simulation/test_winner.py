"""The algorithm that a simulation names as the best."""

import pytest

from collectives.schedules import registry
from collectives.simulation.network import Network, placed
from collectives.simulation.simulate import simulate
from collectives.simulation.winner import changes, winner


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [("ring", 8, 0), ("ring", 2, 0), ("recursive_halving", 4, 2), ("recursive_halving", 8, 4), ("ring", 1, 0)],
)
def test_changes_of_partner(name, size, expected):
    assert changes(registry.find("allreduce", name), size) == expected


def test_the_changes_of_a_root():
    assert [changes(registry.find("bcast", "chain"), 4, root) for root in range(4)] == [0] * 4
    assert changes(registry.find("scatter", "linear"), 4, 2) == 2


def test_of_equal_times_the_one_with_fewest_partners_wins():
    assert winner([1.0, 1.005, 1.2], [3, 2, 1]) == 1
    assert winner([1.0, 1.02], [3, 2]) == 0
    assert winner([2.0], [5]) == 0
    assert winner([0.0, 0.0], [2, 1]) == 1


def test_a_ring_is_named_for_long_vectors():
    network = Network(placed(8, 8), beta=25e6, rendezvous=float("inf"))
    names = ["circulant", "recursive_halving", "recursive_doubling", "ring"]
    found = [registry.find("allreduce", name) for name in names]
    times = [simulate(algorithm, network, 4 << 20).seconds for algorithm in found]
    assert names[winner(times, [changes(algorithm, 8) for algorithm in found])] == "ring"
