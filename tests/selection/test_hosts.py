"""Choices between hosts: what crosses the hosts' links, the order of the ranks, and that schedules stay right."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.analysis import verify
from collectives.analysis.cost import crossing
from collectives.schedules import registry
from collectives.schedules.placement import orders
from collectives.selection import policy
from collectives.selection.hosts import AT_ONCE, CANDIDATES, MOST_RANKS, SEGMENTS, SHORTEST, Link, nearest
from collectives.selection.model import Model, Piece, load
from collectives.selection.policy import Demand, Rules, Tuned, choose

LAYOUTS = {
    "4 x 1": [0, 1, 2, 3],
    "4 x 2": [0, 0, 1, 1, 2, 2, 3, 3],
    "4 x 2, cyclic": [0, 1, 2, 3] * 2,
    "3 x 2": [0, 0, 1, 1, 2, 2],
    "7 x 1": list(range(7)),
    "1 + 2 + 1": [0, 1, 1, 2],
    "2 + 3, mixed": [0, 1, 1, 0, 1],
    "5 x 3": [rank // 3 for rank in range(15)],
    "4 x 4": [rank // 4 for rank in range(16)],
}
SLOW, FAST = Link(100e-6, 40e-9), Link(2e-6, 0.08e-9)


def hosts_of(layout):
    return np.array(layout, np.int32).tobytes()


def least(collective, layout):
    """The part of the vector that must leave or enter some host."""
    hosts, size = len(set(layout)), len(layout)
    fewest = min(map(layout.count, layout))
    return {"allreduce": 2 * (hosts - 1) / hosts, "bcast": 1.0}.get(collective, (size - fewest) / size)


def pick(collective, nbytes, layout, link=None, **asked):
    demand = Demand(collective, nbytes, apart="several hosts", **asked)
    return choose(Rules(hosts=hosts_of(layout), link=link), demand)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("collective", [*CANDIDATES, "allgatherv", "reduce_scatter_block"])
def test_long_vectors_cross_no_link_more_than_they_must(collective, layout):
    for link in (None, SLOW):
        found = pick(collective, 16 << 20, layout, link).algorithm
        assert crossing(found, hosts_of(layout)).busiest == pytest.approx(least(registry.base(collective), layout))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=11), st.sampled_from(sorted(CANDIDATES)), st.data())
def test_every_order_is_proved_and_none_is_worse_than_the_ranks_own(layout, collective, data):
    numbers = {host: i for i, host in enumerate(dict.fromkeys(layout))}
    hosts = hosts_of([numbers[host] for host in layout])
    plain = registry.find(collective, data.draw(st.sampled_from(CANDIDATES[collective])))
    found, _ = nearest(plain, hosts)
    for each in (found, *orders(plain, hosts).values()):
        verify.verify(each, len(layout))
    if len(numbers) > 1:
        verify.verify(pick(collective, 1 << 20, [numbers[host] for host in layout]).algorithm, len(layout))


def test_in_its_own_order_circulant_sends_more():
    plain, layout = registry.find("allreduce", "circulant"), hosts_of(LAYOUTS["4 x 2"])
    assert crossing(plain, layout).busiest == pytest.approx(2.17 * 1.5, abs=0.01)
    assert crossing(nearest(plain, layout)[0], layout).busiest == pytest.approx(1.5)


def test_a_chain_enters_and_leaves_each_host_once_from_any_root():
    layout = [0, 1, 2, 1, 0, 2, 1]
    chain, order = nearest(registry.find("bcast", "chain"), hosts_of(layout))
    assert order == "block"
    for root in range(len(layout)):
        edges = set()
        for rank in range(len(layout)):
            for steps in chain.rounds_of(rank, len(layout), root):
                for step in (s for n in steps.numbers for s in steps.steps(n)):
                    if step.when and step.kind.name == "SEND" and layout[rank] != layout[int(step.peer)]:
                        edges.add((layout[rank], layout[int(step.peer)]))
        assert len(edges) == 2
        assert len({source for source, _ in edges}) == len({target for _, target in edges}) == 2


def test_slow_links_get_short_segments_of_what_is_only_moved():
    slow, fast = (pick("bcast", 16 << 20, LAYOUTS["4 x 1"], link) for link in (SLOW, FAST))
    assert slow.algorithm.name == "chain"
    assert slow.segment <= 256 << 10
    assert pick("bcast", 16 << 20, LAYOUTS["4 x 1"], Link(2e-3, 0.08e-9)).segment is None
    assert "on a measured link of 100 us, 200 Mbit/s" in str(slow)
    assert "on a measured link of 2 us, 100000 Mbit/s" in str(fast)
    assert "on a nominal link" in str(pick("allreduce", 16 << 20, LAYOUTS["4 x 1"], SLOW))
    assert "on an unmeasured link" in str(pick("bcast", 16 << 20, LAYOUTS["4 x 1"]))


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "reduce_scatter_block"])
def test_bits_of_a_sum_do_not_depend_on_a_measurement(collective):
    for layout in LAYOUTS.values():
        for nbytes in (SHORTEST, 1 << 20, 16 << 20):
            known = [pick(collective, nbytes, layout, link) for link in (None, SLOW, FAST)]
            assert len({(choice.algorithm, choice.segment) for choice in known}) == 1


def test_what_cannot_be_cut_has_no_segment():
    """A call named segments that it did not have; `tune` measured no such thing."""
    cut = {}
    for collective in [*CANDIDATES, "allgatherv", "reduce_scatter_block"]:
        for layout in LAYOUTS.values():
            for nbytes in (SHORTEST, 1 << 20, 16 << 20):
                for link in (None, SLOW, FAST):
                    found = pick(collective, nbytes, layout, link)
                    assert found.segment in SEGMENTS
                    if not found.algorithm.divisible(len(layout)):
                        assert found.segment is None
                        assert ", segments of" not in str(found)
                    cut.setdefault((registry.base(collective), found.algorithm.name), set()).add(found.segment)
    assert cut["reduce_scatter", "circulant"] >= {None}
    assert cut["allreduce", "circulant"] == {256 << 10}
    assert cut["reduce_scatter", "ring"] == {512 << 10}


def test_only_a_table_or_a_word_is_stronger():
    layout = LAYOUTS["4 x 2"]
    assert pick("allreduce", SHORTEST - 1, layout).algorithm.name == policy.DEFAULT["allreduce"][-1][1]
    assert pick("allreduce", 1 << 22, layout, commutes=False).algorithm.name == policy.ORDERED["allreduce"]
    assert pick("allreduce", 1 << 22, layout, linear=True).algorithm.linear
    assert pick("allreduce", 1 << 22, layout, forced="tree").algorithm.name == "tree"
    assert "ranks cyclic" in str(pick("allreduce", 1 << 22, layout, forced="circulant"))
    assert "ranks in lanes" in str(pick("allreduce", 1 << 22, layout, forced="ring"))
    for asked in ({"commutes": False}, {"linear": True}):
        assert ", ranks " not in str(pick("allreduce", 1 << 22, layout, **asked))


@pytest.mark.parametrize("link", [None, SLOW, FAST])
def test_an_all_to_all_of_few_ranks_sends_all_blocks_at_once(link):
    few, many = (hosts_of(range(size)) for size in (AT_ONCE, AT_ONCE + 1))
    for collective, nbytes in (("alltoallv", 0), ("alltoallw", 0), ("alltoall", SHORTEST), ("alltoall", 1 << 30)):
        names = [
            choose(Rules(hosts=hosts, link=link), Demand(collective, nbytes, apart="hosts")).algorithm.name
            for hosts in (few, many)
        ]
        assert names == ["linear", "linear" if nbytes == SHORTEST else "pairwise"]
    for hosts in (few, many):
        neighbours = Demand("neighbor_alltoallw", 0, apart="hosts")
        assert choose(Rules(hosts=hosts, link=link), neighbours).algorithm.name == "linear"


def test_the_expected_time_is_that_of_the_load_that_the_model_was_fitted_to():
    """That of the ring in rank order. Its time was told for the load of the ring in lanes, with fewer rounds."""
    model = Model((Piece(None, 1e-3, 1e-9, 1e-10),), 0.1)
    models = {("allreduce", "ring", 1 << 16): model}
    tuned = Tuned({"allreduce": [(None, "ring", 1 << 16)]}, "a table", models=models)
    rules, size, nbytes = Rules(tuned=tuned, hosts=hosts_of(LAYOUTS["4 x 2"])), 8, 1 << 20
    choice = choose(rules, Demand("allreduce", nbytes, apart="several hosts"))
    assert "ranks in lanes" in str(choice)
    plain = load(registry.find("allreduce", "ring"), size, nbytes, 16)
    assert plain.rounds == 14 + 15
    assert rules.expected("allreduce", choice, size, nbytes, 4) == model.seconds(plain, nbytes)
    assert rules.expected("allreduce", replace(choice, segment=None), size, nbytes, 4) is None


def test_many_ranks_take_no_round_for_each_rank():
    layout = [rank // 8 for rank in range(8 * MOST_RANKS)]
    for collective in CANDIDATES:
        assert pick(collective, 1 << 24, layout, SLOW).algorithm.rounds(len(layout)) < 64
