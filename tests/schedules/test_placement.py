"""Ranks in other orders than their own: what leaves a host over its link, and that schedules stay right."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.analysis import verify
from collectives.schedules import placement, registry
from collectives.selection.policy import Demand, Rules, choose

LAYOUTS = {
    "4 x 2": [0, 0, 1, 1, 2, 2, 3, 3],
    "4 x 2, cyclic": [0, 1, 2, 3] * 2,
    "3 x 2": [0, 0, 1, 1, 2, 2],
    "4 x 4": [rank // 4 for rank in range(16)],
    "16 x 8": [rank // 8 for rank in range(128)],
    "64 x 64": [rank // 64 for rank in range(4096)],
}


def hosts_of(layout):
    return np.array(layout, np.int32).tobytes()


def over_bound(algorithm, layout):
    """What leaves the busiest host, divided by the least that must leave a host."""
    hosts = len(set(layout))
    return placement.crossing(algorithm, hosts_of(layout)) / (2 * (hosts - 1) / hosts)


def circulant(layout):
    return placement.nearest(registry.find("allreduce", "circulant"), hosts_of(layout))[0]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_circulant_sends_no_more_than_it_must(layout):
    assert over_bound(circulant(layout), layout) == pytest.approx(1)


def test_in_its_own_order_it_sends_more():
    plain = registry.find("allreduce", "circulant")
    assert over_bound(plain, LAYOUTS["4 x 2"]) == pytest.approx(2.17, abs=0.01)
    assert over_bound(plain, LAYOUTS["4 x 4"]) == pytest.approx(4.42, abs=0.01)


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=14))
def test_no_order_is_worse_than_the_ranks_own_and_all_are_proved(layout):
    numbers = {host: i for i, host in enumerate(dict.fromkeys(layout))}
    layout = [numbers[host] for host in layout]
    for name in ("circulant", "ring"):
        plain = registry.find("allreduce", name)
        found, _ = placement.nearest(plain, hosts_of(layout))
        assert placement.crossing(found, hosts_of(layout)) <= placement.crossing(plain, hosts_of(layout)) + 1e-9
        verify.verify(found, len(layout))


def test_a_ring_crosses_each_link_once():
    layout = [rank // 3 for rank in range(15)]
    ring, order = placement.nearest(registry.find("allreduce", "ring"), hosts_of(layout[::2] + layout[1::2]))
    assert order == "grouped"
    assert placement.crossing(ring, hosts_of(layout[::2] + layout[1::2])) == pytest.approx(2 * 14 / 15)


def test_only_ranks_that_are_interchangeable_change_places():
    layout = hosts_of([0, 1, 0, 1, 2, 2])
    for collective in registry.collectives():
        for name in registry.algorithms(collective):
            algorithm = registry.find(collective, name)
            if isinstance(algorithm, registry.ScheduleAlgorithm) and collective != "allreduce":
                assert placement.nearest(algorithm, layout) == (algorithm, "")


def chosen(layout, nbytes, **asked):
    return choose(Rules(hosts=hosts_of(layout)), Demand("allreduce", nbytes, apart="several hosts", **asked))


def test_the_default_takes_what_sends_least():
    assert "circulant" in str(chosen(LAYOUTS["4 x 2"], 1 << 22))
    assert "ranks in turn" in str(chosen(LAYOUTS["4 x 2"], 1 << 22))
    odd = [rank // 3 for rank in range(15)]
    assert chosen(odd, 1 << 22).algorithm.name == "ring"
    assert "times as much over a host's link" in str(chosen(odd, 1 << 22))
    assert chosen(odd, 1 << 18).algorithm.name == "circulant"
    assert "grouped" in str(chosen([0, 1, 0, 1], 1 << 22, forced="ring"))


def test_the_order_of_operands_is_kept_where_it_matters():
    for asked in ({"commutes": False}, {"linear": True}):
        assert "ranks" not in str(chosen(LAYOUTS["4 x 2"], 1 << 22, **asked)).replace("ranks share", "")
