"""Which algorithm serves a call, and in how many segments."""

import pytest

from collectives import registry, select
from collectives.select import Rules, choose, segments_for


class FakeProgram:
    """What segments_for asks of a program."""

    def __init__(self, slots=2, slot_blocks=1, nblocks=8, nscratch=0):
        self.slots, self.slot_blocks, self.nblocks, self.nscratch = slots, slot_blocks, nblocks, nscratch


def pick(nbytes, rules=None, collective="allreduce", forced=None, commutes=True, linear=False, apart="two nodes"):
    return choose(rules or Rules(), collective, nbytes, forced=forced, commutes=commutes, linear=linear, apart=apart)


@pytest.mark.parametrize("nbytes", [0, 8, 1 << 20, 1 << 40])
def test_on_one_node(nbytes):
    """The engine serves everything there, and nothing elsewhere."""
    for collective in select.LOCAL:
        for commutes in (True, False):
            for linear in (True, False):
                choice = pick(nbytes, collective=collective, commutes=commutes, linear=linear, apart=None)
                assert choice.algorithm.name == "shm"
                assert "share a node" in str(choice)
    with pytest.raises(ValueError, match="'shm' cannot serve this communicator: two nodes"):
        pick(nbytes, forced="shm")
    assert pick(nbytes, forced="shm", apart=None).algorithm.name == "shm"
    assert pick(nbytes, forced="ring", apart=None).algorithm.name == "ring"


def test_the_table():
    for collective, rows in select.DEFAULT.items():
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
    assert pick(nbytes, commutes=False).algorithm.ordered
    for commutes in (True, False):
        assert pick(nbytes, commutes=commutes, linear=True).algorithm.linear


def test_forced_by_name():
    for name in registry.algorithms("allreduce"):
        algorithm = registry.find("allreduce", name)
        choice = pick(1000, forced=name, apart=None)
        assert choice.algorithm is algorithm
        assert "call" in choice.why
        for commutes, linear, able in ((False, False, algorithm.ordered), (True, True, algorithm.linear)):
            if able:
                assert pick(1000, forced=name, commutes=commutes, linear=linear, apart=None).algorithm is algorithm
            else:
                with pytest.raises(ValueError, match=name):
                    pick(1000, forced=name, commutes=commutes, linear=linear, apart=None)
    with pytest.raises(ValueError, match="no algorithm 'rings'; known: .*ring"):
        pick(1, forced="rings")
    with pytest.raises(ValueError, match="unknown collective 'allreduces'; known: allreduce"):
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
    for text in ("rings", "allreduce=rings", "allreduces=ring", "ring,tre"):
        with pytest.raises(ValueError, match="no algorithm|unknown collective"):
            rules(text)
    monkeypatch.delenv("COLLECTIVES_ALGORITHM")
    assert Rules.from_environment().forced == {}


def test_rules_do_not_share_what_they_force():
    a, b = Rules(), Rules()
    a.forced["allreduce"] = "ring"
    assert b.forced == {}


def segments(nbytes, segment, *, limit=1 << 30, depth=4, **program):
    choice = select.Choice(registry.find("allreduce", "ring"), segment, "test")
    return segments_for(choice, FakeProgram(**program), nbytes, limit, depth)


def test_segments():
    assert segments(0, None) == 1
    assert segments(0, 1 << 20) == 1
    assert segments(1 << 30, None) == 4  # of 256 MB of staging memory at 4 x 2/8 of the vector each
    assert segments(1 << 20, 1 << 20) == 1
    assert segments((1 << 20) + 1, 1 << 20) == 2
    assert segments(10 << 20, 1 << 20) == 10


def test_no_message_is_longer_than_the_transport_takes():
    for nbytes in (1, 99, 100, 101, 12345):
        assert nbytes / segments(nbytes, None, limit=100, slots=0) <= 100


def test_no_more_staging_memory_than_allowed():
    for program in (
        {"slots": 2},
        {"slots": 16, "slot_blocks": 4},
        {"slots": 2, "nscratch": 6},
        {"slots": 64, "nblocks": 1},
    ):
        for nbytes in (1 << 20, 1 << 30, 1 << 36):
            n, p = segments(nbytes, None, limit=1 << 60, **program), FakeProgram(**program)
            assert nbytes / n * 4 * (p.slots * p.slot_blocks / p.nblocks + p.nscratch) <= select.STAGING_LIMIT
