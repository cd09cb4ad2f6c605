"""A lane keeps pinned memory for later calls, up to a limit; it waits for events, and gives everything back."""

import itertools
import time

import pytest

from collectives import CollectiveTimeout
from collectives.cuda import lanes
from collectives.cuda.lanes import KEPT, SLOT, Lane


class Driver:
    """What a lane asks of the driver, and what it has not given back."""

    def __init__(self):
        self.number, self.left, self.pinned = itertools.count(1), set(), {}
        self.passes = True

    def made(self, *arguments):
        number = next(self.number)
        self.left.add(number)
        return number

    stream = event = retain = made

    def free_event(self, number):
        self.left.remove(number)

    free_stream = free_event

    def release(self, number):
        self.left.remove(1)  # the context, which was made first

    def pin(self, address, nbytes):
        self.pinned[address] = nbytes

    def unpin(self, address):
        del self.pinned[address]

    def passed(self, event):
        return self.passes

    def nothing(self, *arguments):
        pass

    push = pop = finish = nothing


@pytest.fixture
def own(monkeypatch):
    own = Driver()
    monkeypatch.setattr(lanes, "driver", lambda: own)
    return own


def test_a_slot_is_used_again(own):
    lane = Lane(0)
    slot = lane.take(100)
    assert slot.nbytes == SLOT
    assert own.pinned == {slot.address: SLOT}
    lane.give(slot)
    assert lane.take(SLOT) is slot
    other = lane.take(SLOT)
    assert other is not slot
    long = lane.take(SLOT + 1)
    assert long.nbytes == 2 * SLOT
    for one in (slot, other, long):
        lane.give(one)
    assert lane.take(SLOT) in (slot, other)  # the shortest that fits


def test_no_more_is_kept_than_the_limit(own):
    lane = Lane(0)
    slots = [lane.take(SLOT), lane.take(KEPT), lane.take(SLOT)]
    assert sum(own.pinned.values()) == KEPT + 2 * SLOT
    for slot in slots:
        lane.give(slot)
    assert sum(own.pinned.values()) == 2 * SLOT


def test_all_is_given_back(own):
    lane = Lane(0)
    lane.give(lane.take(1))
    lane.lose([lane.take(SLOT)])
    with lane.moment():
        pass
    lane.close()
    assert (own.left, own.pinned) == (set(), {})


def test_an_event_for_a_moment_is_used_again(own):
    lane = Lane(0)
    with lane.moment() as first, lane.moment() as second:
        assert first != second
    with lane.moment() as third:
        assert third in (first, second)


def test_a_wait_ends_at_the_deadline(own):
    lane = Lane(0)
    own.passes = False
    begin = time.monotonic()
    with pytest.raises(CollectiveTimeout, match="GPU 0 has not done its work on the array in time"):
        lane.wait(1, begin + 0.05)
    assert time.monotonic() - begin >= 0.05
    own.passes = True
    lane.wait(1, begin)  # what has passed is not waited for
