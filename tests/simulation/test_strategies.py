"""The simulation of strategies, against closed forms."""

import math

import numpy as np
import pytest

from collectives.schedules import registry
from collectives.simulation.network import Network, placed
from collectives.simulation.simulate import simulate
from collectives.simulation.strategies import Conditions, pace
from collectives.train.strategies.pattern import (
    GRADIENTS,
    Pattern,
    Post,
    Receive,
    Send,
    apart,
    central,
    neighbours,
    together,
)

FREE = {"nbytes": 0, "alpha": 0.0}  # messages take no time


def asynchronous(p, servers=1):
    return central(range(p - servers, p), math.inf)


def ring(p):
    """Each rank sends to the next one, then to the one before, so that ports are never in demand twice at a time."""
    return neighbours(lambda r, k: ((r + 1) % p, (r - 1) % p), lambda r, k: ((r + 1) % p, (r - 1) % p))


def everyone(p):
    return Pattern(lambda rank, step: (Post(tuple(r for r in range(p) if r != rank), GRADIENTS),), staleness=math.inf)


@pytest.mark.parametrize("p", [2, 5, 64])
def test_without_communication_rates_add_up(p):
    found = pace(apart(), p, Conditions(step=0.1, stragglers={1: 4}), 200)
    assert found.steps_per_second == pytest.approx((p - 1 + 1 / 4) / 0.1, rel=0.01)
    assert (found.waiting, found.lag, found.busiest) == (0, 0, None)
    assert found.gap == 150


@pytest.mark.parametrize("p", [4, 16])
def test_one_straggler_sets_the_pace_of_synchronous_training(p):
    for pattern, workers in ((together(GRADIENTS), p), (central([p - 1], 0), p - 1)):
        found = pace(pattern, p, Conditions(step=0.1, stragglers={1: 4}, **FREE), 50)
        assert found.steps_per_second == pytest.approx(workers / 0.4)
        assert found.waiting == pytest.approx((workers - 1) / workers * 3 / 4)
        assert (found.gap, found.lag) == (0, 0)


@pytest.mark.parametrize("p", [4, 16])
def test_a_straggler_slows_only_itself_where_nobody_waits(p):
    conditions = Conditions(step=0.1, stragglers={1: 4}, **FREE)
    for pattern, workers in ((asynchronous(p), p - 1), (everyone(p), p)):
        found = pace(pattern, p, conditions, 200)
        assert found.steps_per_second == pytest.approx((workers - 1 + 1 / 4) / 0.1, rel=0.01)
        assert found.waiting == pytest.approx(0)
        assert found.gap > 100


@pytest.mark.parametrize("p", [3, 9])
def test_the_lag_of_equal_workers_is_the_number_of_the_others(p):
    for pattern, workers in ((asynchronous(p), p - 1), (everyone(p), p)):
        found = pace(pattern, p, Conditions(jitter=0.3, **FREE), 2000)
        assert found.lag == pytest.approx(workers - 1, rel=0.01)


def test_local_steps_average_jitter():
    """The slowest of p exponential delays takes H(p) of them; of the sums of h steps it takes less."""
    p, x = 8, 0.5
    harmonic = sum(1 / k for k in range(1, p + 1))
    synchronous = pace(together(GRADIENTS), p, Conditions(step=0.1, jitter=x, **FREE), 4000)
    assert synchronous.steps_per_second == pytest.approx(p / (0.1 * (1 + x * harmonic)), rel=0.01)
    sums = np.random.default_rng(0).exponential(x, (20_000, p, 10)).sum(axis=2).max(axis=1).mean()
    local = pace(together(GRADIENTS, lambda step: (step + 1) % 10 == 0), p, Conditions(jitter=x, **FREE), 4000)
    assert local.steps_per_second == pytest.approx(p / (0.1 * (1 + sums / 10)), rel=0.01)


def test_communication_is_added_to_the_step():
    p, n, alpha, beta, fold = 16, 10_000_000, 1e-3, 1e9, 4e9
    network = Network(placed(p, p), alpha=alpha, beta=beta, fold=fold, overhead=0.0, rendezvous=math.inf)
    each = [simulate(registry.find("allreduce", a), network, n).seconds for a in ("ring", "circulant")]
    found = pace(together(GRADIENTS), p, Conditions(0.1, n, alpha, beta, fold), 10)
    assert found.steps_per_second == pytest.approx(p / (0.1 + min(each)))
    found = pace(ring(p), p, Conditions(0.1, n, alpha, beta), 10)
    assert found.steps_per_second == pytest.approx(p / (0.1 + alpha + 2 * n / beta))  # two messages share a port
    server = central([1], 0)
    found = pace(server, 2, Conditions(0.1, n, alpha, beta, fold), 10)
    assert found.steps_per_second == pytest.approx(1 / (0.1 + 2 * (alpha + n / beta) + n / fold))


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_servers_saturate_at_the_rate_of_their_ports(servers):
    p, n, beta = 64, 100_000_000, 1e9
    conditions = Conditions(0.1, n, beta=beta, fold=1e12)
    found = pace(asynchronous(p, servers), p, conditions, 50)
    assert found.steps_per_second == pytest.approx(servers * beta / n, rel=0.05)
    assert found.busiest > 0.95
    slow = pace(asynchronous(p, servers), p, Conditions(0.1, n, beta=1e12, fold=1e9), 50)
    assert slow.steps_per_second == pytest.approx(servers * 1e9 / n, rel=0.05)


def test_bounded_staleness_is_between_synchronous_and_asynchronous():
    p, s = 9, 3
    lasting, passing = Conditions(stragglers={2: 4}, **FREE), Conditions(jitter=1.0, **FREE)
    bounded, never = central([p - 1], s), central([p - 1], 0)
    found = pace(bounded, p, lasting, 400)
    assert found.gap == s
    assert found.steps_per_second == pytest.approx((p - 1) / 0.4, rel=0.01)  # a lasting straggler sets the pace
    rates = [pace(one, p, passing, 1000).steps_per_second for one in (never, bounded, asynchronous(p))]
    assert rates[0] < 0.75 * rates[1] < 0.75 * rates[2]
    assert pace(bounded, p, passing, 1000).gap <= s


def test_a_slow_neighbour_is_felt_a_link_further_in_each_step():
    """On a ring, step k of a rank at a distance of d ends d steps after step k - d of the straggler."""
    p = 16
    found = pace(ring(p), p, Conditions(step=0.1, stragglers={0: 4}, **FREE), 100)
    assert found.gap == p // 2 * (1 - 1 / 4)
    jittered = Conditions(jitter=1.0, **FREE)
    apart_, on_ring, all_of = (pace(x, p, jittered, 500).steps_per_second for x in (apart(), ring(p), together("x")))
    assert all_of < on_ring < apart_


def test_equal_seeds_give_equal_results_and_others_differ():
    found = [pace(asynchronous(8), 8, Conditions(jitter=0.2, seed=seed), 50) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("pattern", "conditions", "said"),
    [
        (central([0, 1, 2], 0), {}, "3 servers on 3 ranks leave no rank to train"),
        (central([3], 0), {}, "1 servers on 3 ranks"),
        (apart(), {"stragglers": {3: 2.0}}, "straggler 3: the ranks that train are 0 to 2"),
        (central([2], 0), {"stragglers": {2: 2.0}}, "straggler 2: the ranks that train are 0 to 1"),
        (Pattern(lambda rank, step: [Receive((rank + 1) % 3)]), {}, "wait for each other"),
        (ring(3), {"jitter": 1e308}, "too long for a number"),
    ],
)
def test_what_cannot_be_simulated(pattern, conditions, said):
    with pytest.raises(ValueError, match=said):
        pace(pattern, 3, Conditions(**conditions), 10)


@pytest.mark.parametrize(
    "wrong", [{"step": 0}, {"beta": math.nan}, {"jitter": -1}, {"stragglers": {0: 0}}, {"seed": -1}]
)
def test_impossible_conditions(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)).removesuffix("s")):
        Conditions(**wrong)


def test_messages_that_overtake_a_step_are_kept_for_it():
    """Rank 1 waits for each message of rank 0 a step's time late; all are used, in their steps."""

    def actions(rank, step):
        return [Send(1, GRADIENTS)] if rank == 0 else [Receive(0)]

    found = pace(Pattern(actions), 2, Conditions(step=0.1, stragglers={1: 3}, **FREE), 90)
    assert found.steps_per_second == pytest.approx(120 / 9, rel=0.01)
    assert found.waiting == pytest.approx(0)
