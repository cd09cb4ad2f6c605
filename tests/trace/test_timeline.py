"""Ranks' records put together: who waits for whom, and clocks. The records are made up; one tick is one ns."""

from types import SimpleNamespace

import numpy as np
import pytest

from collectives.trace import clocks
from collectives.trace.timeline import EVENT, Part, calls


def part(rank, size, rows, estimates=(), speed=1):
    """One rank's account; rows are (collective, begin, end, root)."""
    events = np.zeros(len(rows), EVENT)
    for i, (collective, begin, end, root) in enumerate(rows):
        events[i]["begin"], events[i]["returned"], events[i]["end"] = begin, end, end
        events[i]["collective"], events[i]["root"], events[i]["number"] = collective, root, i + 1
    about = {
        "rank": rank, "ranks": size, "world_rank": rank, "host": "here", "pid": 1, "names": ["shm"],
        "comms": [{"identity": "c", "rank": rank, "size": size}], "places": [("", 0, "")], "failures": [],
        "moments": [(0, 0), (10_000 // speed, 10_000)], "estimates": list(estimates), "aligned": True, "zero": 0,
        "dropped": 0,
    }  # fmt: skip
    return Part(about, events)


ALLREDUCE, REDUCE, BCAST, SCAN = 0, 1, 2, 8


@pytest.mark.parametrize(
    ("collective", "waits", "late"),
    [
        (ALLREDUCE, [300, 0, 200], [0, 300, 0]),
        (BCAST, [0, 0, 0], [0, 0, 0]),  # the root, rank 0, was first
        (REDUCE, [300, 0, 0], [0, 300, 0]),
        (SCAN, [0, 0, 200], [0, 200, 0]),
    ],
)
def test_who_waits_for_whom(collective, waits, late):
    begins = (100, 400, 200)
    found = calls([part(rank, 3, [(collective, begins[rank], 1000, 0)]) for rank in range(3)])
    assert found.wait.tolist() == waits
    assert found.late.tolist() == late


def test_a_wait_ends_with_the_call():
    """A root of a broadcast need not wait, nor who leaves before all have come."""
    begins, ends = (500, 100, 700), (510, 600, 710)
    found = calls([part(rank, 3, [(BCAST, begins[rank], ends[rank], 0)]) for rank in range(3)])
    assert found.wait.tolist() == [0, 400, 0]
    assert found.late.tolist() == [400, 0, 0]


def test_calls_of_a_number_belong_together():
    rows = [[(ALLREDUCE, 10, 50, 0), (ALLREDUCE, 60, 90, 0)], [(ALLREDUCE, 40, 50, 0), (ALLREDUCE, 61, 90, 0)]]
    found = calls([part(rank, 2, rows[rank]) for rank in range(2)])
    assert found.wait.tolist() == [30, 1, 0, 0]
    assert found.source.tolist() == [1, 1, -1, -1]


def test_offset_and_drift_of_a_clock():
    """A clock that is 1000 ns ahead at first, and 1100 ns after 10000 ns."""
    ahead = part(1, 2, [(ALLREDUCE, 5000, 6000, 0)], [(0, -1000, 5), (10_000, -1100, 5)])
    assert ahead.times(np.array([0, 5000, 10_000], np.uint64)).tolist() == [-1000, 3950, 8900]
    fast = part(1, 2, [], speed=2)  # a counter of 0.5 GHz
    assert fast.times(np.array([0, 2500, 5000], np.uint64)).tolist() == [0, 5000, 10_000]


class Name(str):
    """A name of a clock that counts how often names are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)


def test_the_first_rank_of_each_clock_is_asked_and_found_quickly(monkeypatch):
    """Comparisons are as many as ranks, not as ranks times hosts."""
    domains, sent = [Name(f"host {rank // 4}") for rank in range(400)], []
    monkeypatch.setattr(clocks, "_ask", lambda comm, leader: clocks.Estimate(0, leader, 1))
    comm = SimpleNamespace(rank=0, bcast=lambda found, root: sent.append(found) or found)
    assert clocks.compare(comm, domains) is None
    assert {str(name): estimate.offset for name, estimate in sent[0].items()} == {
        f"host {host}": 4 * host for host in range(1, 100)
    }
    assert Name.compared <= 2 * len(domains)


def test_a_part_is_read_as_it_was_saved(tmp_path):
    saved = part(1, 2, [(ALLREDUCE, 5000, 6000, 0)])
    saved.save(tmp_path / "p")
    found = Part.load(tmp_path / "p")
    assert found.events.tolist() == saved.events.tolist()
    assert found.about["comms"] == saved.about["comms"]
