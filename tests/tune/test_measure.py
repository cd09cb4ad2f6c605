"""What a bench measures, on a communicator that is made up: candidates, defaults, numbers of calls."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from tables import entry

from collectives.selection import hosts, policy
from collectives.selection.hosts import Link
from collectives.selection.layout import Layout
from collectives.selection.policy import Rules, Tuned
from collectives.selection.table import Table
from collectives.tune import measure
from collectives.tune.measure import Bench, Candidate
from collectives.tune.progress import Progress
from collectives.tune.report import check

LAYOUTS = {
    "8 x 1": list(range(8)), "4 x 2": [0, 0, 1, 1, 2, 2, 3, 3], "3 x 1": [0, 1, 2], "2 x 1": [0, 1],
    "1 + 2 + 1": [0, 1, 1, 2], "4 x 3, cyclic": [0, 1, 2, 3] * 3,
}  # fmt: skip
LENGTHS = [0, *(8 << k for k in range(24)), 3 << 16, 3 << 20]


def bench_of(layout, link=None, **facts):
    made = object.__new__(Bench)
    made.size, made.without, made.apart, made.flat = len(layout), frozenset(), "several hosts", "one rank for each node"
    made._own = Rules(hosts=np.array(layout, np.int32).tobytes(), link=link)
    made._known = {}
    vars(made).update(facts)
    return made


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("link", [None, Link(100e-6, 40e-9), Link(2e-6, 0.08e-9)])
def test_every_default_is_measured(layout, link):
    """Without a model of the default no race is run, and the default seems to have won it."""
    bench, segments = bench_of(layout, link), set()
    for collective, nbytes in itertools.product(policy.DEFAULT, LENGTHS):
        every = bench.candidates(collective, nbytes)
        default = bench.default(collective, nbytes)
        assert default in every, (collective, nbytes)
        found = hosts.between(bench._own.hosts, collective, nbytes, link)
        if found is not None:
            algorithm, segment, _ = found
            assert Candidate(algorithm.name, segment if segment and segment < nbytes else None) in every
            segments.add(segment)
    assert segments & {128 << 10, 512 << 10}


def test_a_row_with_a_segment_that_cuts_nothing_is_one_call_with_that_without():
    context = SimpleNamespace(apart="several hosts", nodes=SimpleNamespace(obstacle="one rank for each node"))
    bench = bench_of(LAYOUTS["4 x 2"], context=context, limits=None, _rules={}, _named={})
    rows = {"reduce_scatter": [(None, "circulant", 256 << 10)], "allreduce": [(None, "circulant", 256 << 10)]}
    bench.name("old", Rules(tuned=Tuned(rows, "a table")))
    assert bench.call("reduce_scatter", "old", 1 << 20) == (Candidate("circulant"), None)
    assert bench.call("allreduce", "old", 1 << 20) == (Candidate("circulant", 256 << 10), None)
    assert bench.call("allreduce", "old", 256 << 10) == (Candidate("circulant"), None)


@pytest.fixture
def timed(monkeypatch):
    """A bench whose calls take a nanosecond a byte, and the calls of each of its measurements."""
    at, made = [], []

    def sample(comm, call, calls, warmup):
        made.append(calls)
        return np.full(calls, at[-1] * 1e-9)

    monkeypatch.setattr(measure, "sample", sample)
    monkeypatch.setattr(measure.internal, "adopt_rules", lambda comm, rules: None)
    bench = bench_of(
        LAYOUTS["4 x 2"], comm=None, context=SimpleNamespace(layout=Layout(1, 8)), steady=None, limits=None, _rules={},
        plain=SimpleNamespace(Allreduce=lambda *arguments: None),
        _workload=lambda collective, nbytes: SimpleNamespace(call=lambda: at.append(nbytes)),
    )  # fmt: skip
    return bench, made


def test_as_many_calls_as_a_batch_has_time_for(timed):
    """The time of a short call told how many long ones to make: 80 of 2 MiB, for many times the time of a batch."""
    bench, made = timed
    ring, tree = Candidate("ring"), Candidate("tree")
    for nbytes in (100_000, 100_000, 2_000_000, 2_000_000, 500_000, 500_000, 100_000):
        assert bench.seconds("allreduce", ring, nbytes) == pytest.approx(nbytes * 1e-9)
    assert made == [1, 20, 1, 1, 1, 4, 20]
    assert all(bench.seconds("allreduce", each, 8) for each in (ring, ring, tree, tree))
    assert made[7:] == [20, 100, 1, 100]


def test_only_rank_0_makes_what_it_tells():
    told = []

    def bcast(value, root):
        told.append(value)
        return told[0]

    first, other = (bench_of([0, 1], comm=SimpleNamespace(rank=r), plain=SimpleNamespace(bcast=bcast)) for r in (0, 1))
    assert first.by_first(lambda: 7) == 7
    assert other.by_first(lambda: pytest.fail("rank 1 made it, too")) == 7
    assert told == [7, None]


def test_only_rank_0_makes_the_lines_of_a_check():
    ring = Candidate("ring")
    bench = SimpleNamespace(
        name=lambda *arguments: None, context=SimpleNamespace(layout=Layout(1, 2)), lengths=lambda *arguments: [8],
        now=lambda: 0.0, over=lambda deadline: False, candidates=lambda *arguments: [ring], strayed=0,
        call=lambda *arguments: (ring, None), seconds=lambda *arguments: 1e-6, by_first=lambda make: ["rank 0's"],
    )  # fmt: skip
    table = Table([entry()], "t.json")
    lines = check(bench, table, table.entries[0], ["allreduce"], [8], 1.0, lambda steps: Progress(steps, False))
    assert lines == ["rank 0's"]
