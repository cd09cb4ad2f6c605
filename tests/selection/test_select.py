"""Which algorithm serves a call, and in how many segments."""

import pytest

from collectives.schedules import registry
from collectives.selection import hierarchy, policy
from collectives.selection.policy import Demand, Rules, choose, segments_for


def pick(nbytes, rules=None, collective="allreduce", *, apart="two nodes", **facts):
    return choose(rules or Rules(), Demand(collective, nbytes, apart=apart, **facts))


@pytest.mark.parametrize("nbytes", [0, 8, 1 << 20, 1 << 40])
def test_on_one_node(nbytes):
    """The engine serves everything there, and nothing elsewhere."""
    for collective in policy.LOCAL:
        for commutes in (True, False):
            for linear in (True, False):
                choice = pick(nbytes, collective=collective, commutes=commutes, linear=linear, apart=None)
                assert choice.algorithm.name == "shm"
                assert "share a node" in str(choice)
    with pytest.raises(ValueError, match="'shm' cannot serve this call: two nodes"):
        pick(nbytes, forced="shm")
    assert pick(nbytes, forced="shm", apart=None).algorithm.name == "shm"
    assert pick(nbytes, forced="ring", apart=None).algorithm.name == "ring"
    assert [pick(nbytes, forced=name, apart=None).segment for name in ("shm", "mpi")] == [None, None]


def test_the_table():
    for collective, rows in policy.DEFAULT.items():
        limits = [limit for limit, _, _ in rows]
        assert limits[-1] is None
        assert limits[:-1] == sorted(limits[:-1])
        for limit, name, segment in rows:
            choice = pick(limit if limit is not None else 1 << 40, collective=collective)
            assert (choice.algorithm.name, choice.segment) == (name, segment)
            assert name in str(choice)
    assert pick(0).algorithm.name == pick(1).algorithm.name


@pytest.mark.parametrize("nbytes", [0, 8, 1 << 20, 1 << 40])
def test_ops_that_do_not_commute_and_deterministic_calls(nbytes):
    for collective in policy.DEFAULT:
        assert pick(nbytes, collective=collective, commutes=False).algorithm.ordered
        for commutes in (True, False):
            assert pick(nbytes, collective=collective, commutes=commutes, linear=True).algorithm.linear


def test_hierarchical_calls_need_several_nodes_with_several_ranks():
    assert pick(1 << 20, forced="hierarchical", flat=None).algorithm.name == "hierarchical"
    with pytest.raises(ValueError, match="'hierarchical' cannot serve this call: no two ranks share a node"):
        pick(1 << 20, forced="hierarchical", flat="no two ranks share a node")
    with pytest.raises(ValueError, match="'hierarchical' cannot serve this call: .*exact"):
        pick(1 << 20, forced="hierarchical", flat=None, exact=True)
    with pytest.raises(ValueError, match="no ranks are known to share a node"):
        pick(1 << 20, forced="hierarchical")
    with pytest.raises(ValueError, match="scan has no algorithm 'hierarchical'"):
        pick(1 << 20, collective="scan", forced="hierarchical", flat=None)
    for collective in ("gatherv", "scatterv", "alltoallv"):
        with pytest.raises(ValueError, match=f"{collective} has no use for 'hierarchical', whose blocks are"):
            pick(1 << 20, collective=collective, forced="hierarchical", flat=None)


def test_the_default_on_several_nodes_with_several_ranks():
    rows = [(collective, *row) for collective, rows in hierarchy.DEFAULT.items() for row in rows]
    for collective, least, most, lanes in rows:
        rules = Rules(lanes=lanes)
        for nbytes in (least, most or 1 << 40):
            assert pick(nbytes, rules, collective, flat=None).algorithm.name == "hierarchical"
            assert pick(nbytes, rules, collective).algorithm.name != "hierarchical"
            if registry.find(collective, "hierarchical").spec.reduces:
                for facts in ({"commutes": False}, {"linear": True}, {"exact": True}):
                    assert pick(nbytes, rules, collective, flat=None, **facts).algorithm.name != "hierarchical"
        for nbytes in filter(None, (least - 1 if least else None, most + 1 if most else None)):
            assert pick(nbytes, rules, collective, flat=None).algorithm.name != "hierarchical"
    assert pick(1 << 40, flat=None).algorithm.name == "circulant"  # one lane


def test_forced_by_name():
    for name in registry.algorithms("allreduce"):
        algorithm = registry.find("allreduce", name)
        choice = pick(1000, forced=name, apart=None, flat=None)
        assert choice.algorithm is algorithm
        assert "call" in choice.why
        for commutes, linear, able in ((False, False, algorithm.ordered), (True, True, algorithm.linear)):
            if able:
                found = pick(1000, forced=name, commutes=commutes, linear=linear, apart=None, flat=None)
                assert found.algorithm is algorithm
            else:
                with pytest.raises(ValueError, match=name):
                    pick(1000, forced=name, commutes=commutes, linear=linear, apart=None, flat=None)
    with pytest.raises(ValueError, match="no algorithm 'rings'; known: .*ring"):
        pick(1, forced="rings")
    with pytest.raises(ValueError, match="unknown collective 'allreduces'; known: .*allreduce"):
        pick(1, collective="allreduces")


def test_environment(monkeypatch):
    def rules(text):
        monkeypatch.setenv("COLLECTIVES_ALGORITHM", text)
        return Rules.from_environment()

    assert rules("").forced == {}
    assert rules("ring").forced == {"allreduce": "ring"}
    assert rules("allreduce=tree,barrier=dissemination").forced == {"allreduce": "tree", "barrier": "dissemination"}
    choice = pick(5, rules("tree"))
    assert choice.algorithm.name == "tree"
    assert "COLLECTIVES_ALGORITHM" in choice.why
    assert pick(5, rules("tree"), forced="ring").algorithm.name == "ring"
    assert pick(5, rules("tree"), collective="barrier").algorithm.name == "dissemination"
    forced = rules("ring,all=mpi").forced
    assert forced.pop("allreduce") == "ring"
    assert set(forced.values()) == {"mpi"}
    assert {rules("all=mpi").forced_for(name) for name in policy.DEFAULT} == {"mpi"}
    assert rules("all=ring").forced_for("barrier") is None
    named = rules("neighbor_alltoall=pairwise")
    neighbours = {name: choose(named, Demand(name, 5)).algorithm.name for name in registry.EXCHANGES}
    assert {name for name, algorithm in neighbours.items() if algorithm == "pairwise"} == {"neighbor_alltoall"}
    assert set(policy.LOCAL) | set(registry.EXCHANGES) == {*named.local_reach(), "neighbor_alltoall"}
    assert rules("neighbor_alltoall=shm").local_reach().get("neighbor_alltoall", 0) is None
    unequal = rules("alltoall=bruck,allgather=bruck")  # which have blocks of one length
    assert [unequal.forced_for(name) for name in ("alltoall", "alltoallv", "alltoallw", "allgatherv")] == [
        "bruck", None, None, None,
    ]  # fmt: skip
    assert rules("alltoallv=linear").forced_for("neighbor_allgather") == "linear"
    mpis = rules("all=mpi")
    uses = {use: choose(mpis, Demand("bcast", 5, apart="two nodes", mpi=use)) for use in ("chosen", "named", "never")}
    assert [choice.algorithm.name for choice in uses.values()] == ["mpi", "mpi", "binomial"]
    for text in ("rings", "allreduce=rings", "allreduces=ring", "ring,tre", "all=rings", "ring,tree", "=ring",
                 "bcast=chain,bcast=binomial", "all=mpi,all=linear"):  # fmt: skip
        why = "no algorithm|unknown collective|an algorithm|named twice"
        with pytest.raises(ValueError, match=f"^COLLECTIVES_ALGORITHM='{text}': .*({why})"):
            rules(text)
    monkeypatch.delenv("COLLECTIVES_ALGORITHM")
    assert Rules.from_environment().forced == {}


def test_rules_do_not_share_what_they_force():
    a, b = Rules(), Rules()
    a.forced["allreduce"] = "ring"
    assert b.forced == {}


def segments(nbytes, segment, collective="allreduce", name="ring", size=8, depth=4):
    return segments_for(policy.Choice(registry.find(collective, name), segment, "test"), size, nbytes, depth)


def test_segments():
    assert segments(0, None) == 1
    assert segments(0, 1 << 20) == 1
    assert segments(1 << 30, None) == 4  # of 256 MB of staging memory at 4 x 2/8 of the vector each
    assert segments(1 << 20, 1 << 20) == 1
    assert segments((1 << 20) + 1, 1 << 20) == 2
    assert segments(10 << 20, 1 << 20) == 10


def test_what_moves_several_ranks_blocks_at_once_is_never_cut():
    for name in ("bruck", "circulant"):
        assert segments(10 << 20, 1 << 20, "allgather", name) == 1
    assert segments(10 << 20, 1 << 20, "allgather", "ring") == 10
    assert segments(10 << 20, 1 << 20, "allreduce", "circulant") == 10


@pytest.mark.parametrize("size", [2, 8, 100])
@pytest.mark.parametrize("name", registry.algorithms("allreduce"))
def test_no_more_staging_memory_than_allowed(name, size):
    algorithm = registry.find("allreduce", name)
    if isinstance(algorithm, registry.NativeAlgorithm):
        return
    for nbytes in (1 << 20, 1 << 30, 1 << 36):
        n = segments(nbytes, None, name=name, size=size)
        assert nbytes / n * 4 * algorithm.vectors(size) <= policy.STAGING_LIMIT


def test_ranks_that_do_not_know_the_same_lengths_agree_all_the_same():
    """One row whatever the bytes, and one segment."""
    for collective in registry.PRIVATE_LENGTHS:
        assert len(policy.DEFAULT[collective]) == 1
        for name in [None, *registry.algorithms(collective)]:
            for nbytes in (0, 1 << 30):
                choice = pick(nbytes, collective=collective, forced=name, apart=None if name == "shm" else "two nodes")
                if isinstance(choice.algorithm, registry.ScheduleAlgorithm):
                    assert segments_for(choice, 8, nbytes, 4) == 1


def test_blocks_of_any_length_are_served_where_the_call_has_them():
    for collective, rows in policy.DEFAULT.items():
        assert {name for _, name, _ in rows} <= set(registry.algorithms(collective))
    assert "bruck" not in registry.algorithms("allgatherv")
    with pytest.raises(ValueError, match="allgatherv has no use for 'bruck'"):
        pick(1, collective="allgatherv", forced="bruck")
