"""Who may go on, and how late gradients may be: the laws of stale synchronous parallel, without communication."""

import heapq
import math

import numpy as np
import pytest

from collectives import train
from collectives.train.server.clocks import Clocks


def simulate(clocks, steps, seed, workers, slow=1.0):
    """`steps` steps of all workers together, each after a random time; worker 0 is `slow` times slower.

    Checks at every moment that nobody goes on too early, and that who may go on does.
    """
    rng = np.random.default_rng(seed)
    times = rng.exponential(1.0, steps + workers)
    ready = [(float(times[worker]) * (slow if worker == 0 else 1), worker) for worker in range(workers)]
    heapq.heapify(ready)
    waiting = set()
    for step in range(steps):
        now, worker = heapq.heappop(ready)
        clocks.end(worker)
        clocks.complete()
        waiting.add(worker)
        for other in sorted(waiting):
            if clocks.may_pull(other):
                clocks.pull(other)
                waiting.discard(other)
                heapq.heappush(ready, (now + float(times[step + workers]) * (slow if other == 0 else 1), other))
    return clocks


@pytest.mark.quick("3-4-1.0")
@pytest.mark.parametrize(("staleness", "workers", "slow"), [(3, 4, 1.0), (1, 8, 6.0)])
def test_gap_and_lag_stay_within_their_bounds_and_reach_them_nearly(staleness, workers, slow):
    clocks = simulate(Clocks(range(workers), staleness, fold=False), 1_000_000, 7, workers, slow)
    assert clocks.version == 1_000_000
    assert clocks.gap == staleness
    most = (workers - 1) * (2 * staleness + 1)
    assert 0.5 * most < clocks.lag <= most


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("staleness", [0, 2, 10])
@pytest.mark.parametrize("slow", [1.0, 4.0])
def test_bounds_for_many_delays(seed, staleness, slow):
    clocks = simulate(Clocks(range(6), staleness, fold=False), 1_000_000, seed, 6, slow)
    assert clocks.gap == staleness
    assert clocks.lag <= 5 * (2 * staleness + 1)


def test_the_largest_lag_that_there_can_be():
    """The bound is sharp: the slowest worker goes on, then the others make all steps that they may."""
    s, workers = 2, 3
    clocks = Clocks(range(workers), s, fold=False)
    for _ in range(s):
        clocks.end(0)
        clocks.pull(0)
    for _ in range(2 * s + 1):  # from clock 0 to s more than the clock of worker 0, and one more
        for other in (1, 2):
            assert clocks.may_pull(other)
            clocks.pull(other)
            clocks.end(other)
    assert not clocks.may_pull(1)
    assert clocks.end(0) == (workers - 1) * (2 * s + 1)
    assert clocks.may_pull(1)


def test_without_a_bound_the_gap_grows():
    clocks = simulate(Clocks(range(4), math.inf, fold=False), 20_000, 1, 4, slow=10.0)
    assert clocks.gap > 1000


def test_folded_gradients_are_never_late():
    clocks = simulate(Clocks(range(5), 0, fold=True), 20_000, 3, 5)
    assert (clocks.version, clocks.gap, clocks.lag) == (4000, 0, 0)


def test_nobody_waits_for_a_worker_that_rests_or_has_left():
    clocks = Clocks(range(3), 0, fold=True)
    clocks.end(1)
    clocks.end(2)
    assert clocks.complete() == []
    clocks.rest(0)
    assert clocks.complete() == [1, 2]
    assert clocks.may_pull(1)
    clocks.pull(1)
    clocks.pull(2)
    clocks.end(2)
    assert clocks.complete() == []
    clocks.remove(1)
    assert clocks.complete() == [2]
    clocks.meet()
    assert set(clocks.clock) == {0, 2}
    clocks.end(2)
    assert not clocks.may_pull(2)


def test_gradients_that_are_too_old_are_no_updates():
    clocks = Clocks(range(3), math.inf, fold=False, oldest=2)
    for worker in range(3):
        clocks.pull(worker)
    assert [clocks.end(0), clocks.end(0)] == [0, 1]  # it pushes again without a pull
    assert clocks.end(1) == 2
    assert clocks.end(2) == -1
    assert (clocks.version, clocks.lag, clocks.dropped) == (3, 2, 1)
    clocks.pull(2)
    assert clocks.end(2) == 0
    assert (clocks.version, clocks.dropped) == (4, 1)


@pytest.mark.parametrize("oldest", [0, 1, 3])
def test_no_update_is_by_an_older_gradient(oldest):
    clocks = simulate(Clocks(range(6), math.inf, fold=False, oldest=oldest), 20_000, 5, 6)
    assert clocks.lag == oldest
    assert clocks.version + clocks.dropped == 20_000
    assert clocks.dropped > 0


@pytest.mark.parametrize(("wrong", "kind"), [(-1, ValueError), (0.5, TypeError), (True, TypeError), ("2", TypeError)])
def test_staleness_is_a_number_of_clocks(wrong, kind):
    with pytest.raises(kind, match="staleness"):
        train.SSP(wrong)
