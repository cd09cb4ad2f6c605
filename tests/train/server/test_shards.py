"""What servers do with gradients, without communication: updates, their order, delays, copies of messages."""

import numpy as np
import pytest
from simulated_servers import Servers

from collectives import train
from collectives.train.server.clocks import Policy
from collectives.train.server.layout import ranges
from collectives.train.server.messages import Kind, pack, unpack
from collectives.train.server.states import wholes

ASYNC = {rate: Policy(float("inf"), fold=False, rate=rate) for rate in ("full", "shared", "staleness")}
SSP = Policy(2, fold=False, rate="shared")


def parts(optimizer=train.SGD, lr=0.1, **how):
    net = train.mlp((6,), 3, rng=np.random.default_rng(0), dtype=np.float64)
    return net, optimizer(net.parameters(), lr, **how)


def run(servers, seed, steps=200, workers=4, rate=0.1):
    """Steps in a random order; a gradient is that of a quadratic whose minimum depends on the worker."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        going = servers.going()
        worker = going[rng.integers(len(going))]
        grads = [0.3 * (data - worker) for data in servers.data[worker]]
        servers.step(worker, grads, samples=1 + worker, rate=rate)
    return servers.parameters()


@pytest.mark.parametrize("policy", [Policy(), *ASYNC.values(), SSP, Policy(float("inf"), False, compensation=0.1)])
@pytest.mark.parametrize(("optimizer", "how"), [(train.SGD, {"momentum": 0.9}), (train.Adam, {})])
def test_several_servers_do_what_one_does_if_messages_come_in_the_same_order(policy, optimizer, how):
    one = run(Servers(*parts(optimizer, 0.05, **how), 4, policy), seed=3)
    other_order = run(Servers(*parts(optimizer, 0.05, **how), 4, policy), seed=4)
    for count in (2, 3, 7):
        several = run(Servers(*parts(optimizer, 0.05, **how), 4, policy, servers=count), seed=3)
        np.testing.assert_array_equal(several, one)
    assert policy.fold or not np.array_equal(one, other_order)


@pytest.mark.parametrize("servers", [1, 2, 5, 40])
def test_parameters_are_cut_by_bytes(servers):
    buckets = Servers(*parts(), 1, Policy()).buckets
    layout = ranges(buckets, servers)
    for bucket in buckets:
        mine = [parts[bucket.index] for parts in layout]
        assert [part.start for part in mine[1:]] == [part.stop for part in mine[:-1]]
        assert (mine[0].start, mine[-1].stop) == (0, len(bucket))
    sizes = [sum(8 * (part.stop - part.start) for part in parts) for parts in layout]
    assert max(sizes) - min(sizes) <= 8 * len(buckets)


@pytest.mark.parametrize("count", [1, 3])
def test_gradients_that_are_too_old_change_nothing(count):
    servers = Servers(*parts(), 3, Policy(float("inf"), fold=False, oldest=1), servers=count)
    grads = [np.ones_like(bucket.data) for bucket in servers.buckets]
    before = servers.parameters()
    for worker in range(3):  # all from the same parameters: with lags of 0, 1 and 2
        servers.step(worker, grads, rate=0.25)
    np.testing.assert_allclose(servers.parameters(), before - 2 * 0.25)
    assert [service.shard.clocks.dropped for service in servers.services] == [1] * count
    servers.step(2, grads, rate=0.25)
    np.testing.assert_allclose(servers.parameters(), before - 3 * 0.25)
    np.testing.assert_array_equal(np.concatenate(servers.data[2]), servers.parameters())


def test_gradients_of_no_samples_make_no_other_late():
    servers = Servers(*parts(), 2, Policy(float("inf"), fold=False, oldest=0))
    before, ones = servers.parameters(), [np.ones_like(bucket.data) for bucket in servers.buckets]
    nothing = [np.nan * one for one in ones]
    servers.step(0, nothing, samples=0)
    servers.step(1, ones, rate=0.25)
    servers.step(0, nothing, samples=0)  # late, but nothing is lost by that
    np.testing.assert_allclose(servers.parameters(), before - 0.25)
    clocks = servers.services[0].shard.clocks
    assert (clocks.version, clocks.lag, clocks.dropped) == (1, 0, 0)


def test_the_state_of_all_servers_has_the_steps_of_the_one_that_made_most():
    servers = Servers(*parts(train.Adam), 2, Policy(float("inf"), fold=False, oldest=0), servers=2)
    for server, workers in ((0, [0, 1]), (1, [0, 0])):  # server 0 drops the second gradient
        for worker in workers:
            servers.send(Kind.STEP, worker, server, 1, 0, np.array([0.1]))
    states = [service.shard.state() for service in servers.services]
    assert [state["optimizer"]["steps"] for state in states] == [1, 2]
    assert wholes(states)["optimizer"]["steps"] == 2


def test_a_clock_is_one_update_by_the_mean_over_all_samples():
    servers = Servers(*parts(momentum=0.9), 3, Policy())
    before = servers.parameters()
    for worker, samples in ((2, 5), (0, 1), (1, 0)):
        value = np.nan if samples == 0 else worker + 1.0
        servers.step(worker, [np.full_like(bucket.data, value) for bucket in servers.buckets], samples, rate=0.5)
        assert servers.going() == ([0, 1, 2] if worker == 1 else [w for w in (0, 1) if w > 0 or worker == 2])
    np.testing.assert_allclose(servers.parameters(), before - 0.5 * (1 * 1.0 + 5 * 3.0) / 6, rtol=1e-14)


def test_delay_compensation():
    """Zheng et al. 2017, eq. 10, for two workers of which the second is one update late."""
    servers = Servers(*parts(), 2, Policy(float("inf"), False, compensation=0.5))
    old = servers.parameters()
    ones = [np.ones_like(bucket.data) for bucket in servers.buckets]
    servers.step(0, ones, rate=0.1)
    now = servers.parameters()
    np.testing.assert_allclose(now, old - 0.1, rtol=1e-12)
    servers.step(1, [2 * one for one in ones], rate=0.1)
    np.testing.assert_allclose(servers.parameters(), now - 0.1 * (2 + 0.5 * 2 * 2 * (now - old)), rtol=1e-12)


def test_elastic_averaging_moves_the_centre():
    servers = Servers(*parts(), 2, Policy(float("inf"), False, attraction=0.25), servers=2)
    before = servers.parameters()
    servers.step(0, [bucket.data + 4 for bucket in servers.buckets])
    np.testing.assert_allclose(servers.parameters(), before + 1, rtol=1e-12)
    np.testing.assert_array_equal(np.concatenate(servers.data[0]), before)  # the centre before: both move by the same


def again(servers, worker):
    """The last message of a worker comes again, a STEP to the only server. What that replies."""
    number = servers._numbers[worker, 0]
    (reply,) = servers.services[0].handle(unpack(pack(Kind.STEP, worker, 0, number, 1, 0, np.array([0.1]))))
    return unpack(reply)


def test_elastic_averaging_answers_a_step_that_comes_again_by_the_same_centre():
    """So that centre and worker move by the same differences."""
    servers = Servers(*parts(), 2, Policy(float("inf"), False, attraction=0.25))
    before = servers.parameters()
    for worker in range(2):
        servers.step(worker, [bucket.data + 4 for bucket in servers.buckets])
    moved = servers.parameters()
    np.testing.assert_array_equal(again(servers, 0).payload.view(np.float64), before)
    np.testing.assert_array_equal(servers.parameters(), moved)


def test_a_worker_that_steps_again_has_what_it_reads_then():
    """Its next gradient is late by no update, and needs no compensation."""
    servers = Servers(*parts(), 2, Policy(float("inf"), False, compensation=0.5))
    ones = [np.ones_like(bucket.data) for bucket in servers.buckets]
    for worker in range(2):
        servers.step(worker, ones)
    now = servers.parameters()
    np.testing.assert_array_equal(again(servers, 0).payload.view(np.float64), now)
    servers.step(0, ones, rate=0.1)
    np.testing.assert_allclose(servers.parameters(), now - 0.1, rtol=1e-12)


def test_a_copy_of_all_messages_makes_the_same_state_and_messages_that_come_twice_have_no_effect():
    one, other = (Servers(*parts(momentum=0.9), 2, SSP, tables=[train.Table(9, 2)]) for _ in range(2))
    rng = np.random.default_rng(0)
    log = []
    for number in range(1, 60):
        worker, kind = number % 2, (Kind.PUSH, Kind.PUSH_ROWS, Kind.STEP)[number // 2 % 3]
        bucket = one.buckets[0]
        arrays = {
            Kind.PUSH: [rng.standard_normal(len(bucket))],
            Kind.PUSH_ROWS: [rng.integers(0, 9, 3), rng.standard_normal((3, 2)).astype(np.float32)],
            Kind.STEP: [np.array([0.1])],
        }[kind]
        first, second, third = {Kind.PUSH: (0, 0, 0), Kind.PUSH_ROWS: (0, 3, 2), Kind.STEP: (5, 0, 0)}[kind]
        log.append(pack(kind, worker, 0, (number + 1) // 2, first, second, *arrays, third=third))
    for at, packed in enumerate(log):
        replies = one.services[0].handle(unpack(packed))
        for again in log[max(0, at - 4) : at + 1]:
            repeated = other.services[0].handle(unpack(again))
        assert [unpack(r).worker for r in replies] == [unpack(r).worker for r in repeated]
    np.testing.assert_array_equal(one.parameters(), other.parameters())
    keys = np.arange(9)
    rows = [servers.services[0].shard.tables[0].read(0, keys.view(np.uint8)) for servers in (one, other)]
    np.testing.assert_array_equal(*rows)
    assert rows[0].any()


def test_the_gradient_of_a_worker_that_dies_within_its_clock_is_dropped():
    servers = Servers(*parts(), 2, Policy())
    before = servers.parameters()
    ones = [np.ones_like(bucket.data) for bucket in servers.buckets]
    servers.send(Kind.PUSH, 1, 0, 0, 0, ones[0])
    servers.step(0, ones, rate=0.1)
    assert servers.going() == [1]
    replies = servers.services[0].handle(unpack(pack(Kind.DROP, 1, 0, 0, 0, 0)))
    assert [unpack(reply).worker for reply in replies] == [0]
    np.testing.assert_allclose(servers.parameters(), before - 0.1)
