"""Strategies that train apart and merge, against their definitions, on ranks that are threads."""

import numpy as np
import pytest
from local_training import (
    NEAR,
    SAMPLES,
    Alone,
    adam,
    begin,
    even,
    flat,
    momentum,
    on_threads,
    sgd,
    steps,
    turning,
    uneven,
)

from collectives import train
from collectives.train import threads

RANKS = [1, 2, 4]


def near(a, b):
    return np.abs(a - b).max() < NEAR


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize(
    ("optimizer", "shares", "options"),
    [
        (sgd, turning, {}),
        (sgd, even, {"weighted": False}),
        (sgd, turning, {"master": 0}),
        (momentum, even, {}),
        (momentum, uneven, {}),
        (momentum, turning, {"merge_optimizer": True}),
    ],
)
def test_rounds_of_one_step_are_synchronous(optimizer, shares, options, size):
    """Hypotheses: an optimizer linear in the gradient; with momentum, constant shares or merged momentum."""
    local = on_threads(size, lambda: train.LocalSGD(1, **options), 7, optimizer, shares)
    synchronous = on_threads(size, train.AllReduce, 7, optimizer, shares)
    assert near(local, synchronous)


@pytest.mark.parametrize(
    ("optimizer", "shares", "options"),
    [(momentum, turning, {}), (sgd, uneven, {"weighted": False}), (adam, even, {}), (sgd, even, {"every": 2})],
)
def test_without_its_hypotheses_it_is_not_synchronous(optimizer, shares, options):
    local = on_threads(4, lambda: train.LocalSGD(**{"every": 1, **options}), 7, optimizer, shares)
    assert np.abs(local - on_threads(4, train.AllReduce, 7, optimizer, shares)).max() > 1e-6


def weights_of(shares, size, weighted=True):
    return np.array(shares(size)) / SAMPLES if weighted else np.full(size, 1 / size)


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize(
    "options", [{}, {"weighted": False}, {"master": 0}, {"merge_optimizer": True}, {"start": 0, "stop": None}]
)
def test_local_sgd_is_its_definition(options, size):
    """7 steps are two rounds of 3 and a step apart."""
    w = weights_of(uneven, size, options.get("weighted", True))
    alone = Alone(size, momentum, uneven)
    for step in range(1, 8):
        alone.gradients()
        alone.update()
        if step % 3 == 0:
            alone.x = w @ alone.x
            if options.get("merge_optimizer"):
                for arrays in zip(*(opt.kept() for opt in alone.opts), strict=True):
                    mean = sum(part * array for part, array in zip(w, arrays, strict=True))
                    for array in arrays:
                        array[...] = mean
    assert near(on_threads(size, lambda: train.LocalSGD(3, **options), 7, momentum, uneven), alone.x)


@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_it_is_synchronous_before_start_and_from_stop(optimizer):
    synchronous = on_threads(3, train.AllReduce, 5, optimizer, uneven)
    assert near(on_threads(3, lambda: train.LocalSGD(2, start=5), 5, optimizer, uneven), synchronous)
    assert near(on_threads(3, lambda: train.LocalSGD(2, stop=0), 5, optimizer, uneven), synchronous)
    apart = on_threads(3, lambda: train.LocalSGD(50, start=2, stop=7), 6, optimizer)
    assert np.abs(apart - apart[0]).max() > 1e-4
    together = on_threads(3, lambda: train.LocalSGD(50, start=2, stop=7), 10, optimizer)
    assert (together == together[0]).all()


@pytest.mark.parametrize("size", RANKS)
def test_diloco_with_an_outer_step_of_one_is_local_sgd(size):
    plain = on_threads(size, lambda: train.DiLoCo(3, 1.0, 0.0), 7, adam, uneven)
    assert near(plain, on_threads(size, lambda: train.LocalSGD(3), 7, adam, uneven))


@pytest.mark.parametrize("nesterov", [True, False])
def test_diloco_is_its_definition(nesterov):
    alone, lr, m = Alone(3, adam), 0.7, 0.8
    y, v = alone.x[0], 0.0
    for step in range(1, 11):
        alone.gradients()
        alone.update()
        if step % 3 == 0:
            d = y - alone.x.mean(axis=0)
            v = m * v + d
            y = y - lr * (d + m * v if nesterov else v)
            alone.x = y
    assert near(on_threads(3, lambda: train.DiLoCo(3, lr, m, nesterov), 10, adam), alone.x)


@pytest.mark.parametrize("shares", [even, uneven])
def test_fedavg_of_all_ranks_is_local_sgd_weighted_by_samples(shares):
    everyone = on_threads(4, lambda: train.FedAvg(3, fraction=1.0), 8, momentum, shares)
    assert (everyone == on_threads(4, lambda: train.LocalSGD(3), 8, momentum, shares)).all()


def test_fedavg_is_its_definition():
    size, every = 4, 3
    drawn = threads.run(size, lambda comm: draws(comm, every))
    assert drawn == [drawn[0]] * size
    alone, rounds = Alone(size, momentum, uneven), iter(drawn[0])
    ranks = next(rounds)
    for step in range(1, 15):
        before = alone.x
        velocities = [opt.kept() for opt in alone.opts]
        velocities = [[array.copy() for array in arrays] for arrays in velocities]
        alone.gradients()
        alone.update()
        for rank in set(range(size)) - set(ranks):  # those make no step
            for array, old in zip(alone.opts[rank].kept(), velocities[rank], strict=True):
                array[...] = old
        alone.x = np.where(np.isin(np.arange(size), ranks)[:, None], alone.x, before)
        if step % every == 0:
            n = np.where(np.isin(np.arange(size), ranks), uneven(size), 0)
            if n.sum():
                alone.x = n @ alone.x / n.sum()
            else:
                alone.x = alone.x.mean(axis=0)
            ranks = next(rounds)
    assert near(on_threads(size, lambda: train.FedAvg(every, 0.5, seed=2), 14, momentum, uneven), alone.x)


def draws(comm, every):
    """The ranks that are drawn in each of 40 rounds."""
    _, opt = begin(comm, train.FedAvg(every, 0.5, seed=2))
    found = []
    for number in range(40):
        opt.strategy.round = number
        found.append(opt.strategy.drawn())
        assert opt.strategy.trains == (comm.rank in found[-1])
    return found


def test_every_rank_is_drawn_equally_often():
    (drawn,) = threads.run(1, lambda comm: [draws_of(4, 0.5), draws_of(5, 0.01), draws_of(3, 1.0)])
    half, one, everyone = drawn
    assert all(len(ranks) == 2 for ranks in half)
    assert 60 < sum(0 in ranks for ranks in half) < 140  # 100 of 200 expected, 4 deviations of 7
    assert all(len(ranks) == 1 for ranks in one)
    assert all(ranks == [0, 1, 2] for ranks in everyone)


def draws_of(size, fraction):
    def on_rank(comm):
        _, opt = begin(comm, train.FedAvg(fraction=fraction))
        found = []
        for number in range(200):
            opt.strategy.round = number
            found.append(opt.strategy.drawn())
        return found

    return threads.run(size, on_rank)[0]


def test_a_rank_that_was_not_drawn_may_leave_out_the_backward_pass():
    def on_rank(comm, lazy):
        net = train.mlp((8,), 3, rng=np.random.default_rng(1), dtype=np.float64)
        opt = train.SGD(net.parameters(), 0.1)
        net, opt = train.distribute(net, opt, train.FedAvg(2, 0.5), comm=comm, unused="zero")
        for step in range(6):
            if opt.strategy.trains or not lazy:
                steps(net, opt, comm, step, step + 1)
            else:
                opt.step()
        return flat(net)

    eager, lazy = (np.stack(threads.run(4, lambda comm, lazy=lazy: on_rank(comm, lazy))) for lazy in (False, True))
    assert (eager == lazy).all()


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("options", [{}, {"alpha": 0.2}, {"rho": 2.0}])
def test_easgd_follows_its_recursion(options, size):
    alpha = options.get("alpha", 0.05 * options["rho"] if "rho" in options else 1 / max(2, size))
    alone = Alone(size, momentum)
    c = alone.x[0]
    centres = []
    for step in range(9):
        alone.gradients()
        if step and step % 2 == 0:
            x = alone.x
            alone.x = x - alpha * (x - c)
            c = (1 - size * alpha) * c + size * alpha * x.mean(axis=0)
        alone.update()
        centres.append(c)

    def on_rank(comm):
        net, opt = begin(comm, train.EASGD(2, **options), momentum)
        for step in range(9):
            steps(net, opt, comm, step, step + 1)
            own, state = flat(net), opt.strategy.state_dict()["centre"]
            assert near(np.concatenate([state[p.name] for p in net.parameters()]), centres[step])
        opt.strategy.finish()
        return own, flat(net)

    results = threads.run(size, on_rank)
    assert near(np.stack([own for own, _ in results]), alone.x)
    last = c + alpha * (alone.x - c).sum(axis=0)
    assert near(np.stack([end for _, end in results]), last)


def test_a_rate_that_grows_leaves_the_attraction_at_its_limit():
    """alpha would be 20 * 0.05 = 1, and 2 ranks have 1/2 at most."""

    def on_rank(comm, **how):
        net, opt = begin(comm, train.EASGD(**how), lambda parameters: train.SGD(parameters, 0.01))
        for step in range(5):
            steps(net, opt, comm, step, step + 1)
            train.schedules.set_lr(opt, 0.05)
        return flat(net)

    ways = ({"rho": 20}, {"alpha": 0.5})
    found, expected = (threads.run(2, lambda comm, how=how: on_rank(comm, **how)) for how in ways)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("beta", [None, 0.9, 0.3])
def test_easgd_is_stable_up_to_the_rate_that_its_docstring_has(beta, size):
    """The loss is half the square of weight + bias, along which the curvature is 2."""
    how = {} if beta is None else {"alpha": beta / size}
    beta = beta or (1.0 if size > 1 else 0.5)
    limit = (4 - 2 * beta * (1 + 1 / size)) / (2 - beta)

    def grown(comm, rate):
        net = train.Sequential(train.Linear(1, 1, rng=np.random.default_rng(0), dtype=np.float64))
        net, opt = train.distribute(net, train.SGD(net.parameters(), rate), train.EASGD(**how), comm=comm)
        begin = flat(net).sum()
        for _ in range(200):
            opt.zero_grad()
            out = net(np.ones((1, 1)))
            out.backward(out.data)
            opt.step()
        return abs(flat(net).sum() / begin)

    assert max(threads.run(size, lambda comm: grown(comm, 0.9 * limit / 2))) < 0.2
    assert min(threads.run(size, lambda comm: grown(comm, 1.1 * limit / 2))) > 5


def test_a_finished_round_is_the_same_on_all_ranks():
    def on_rank(comm, strategy):
        net, opt = begin(comm, strategy)
        steps(net, opt, comm, 0, 5)
        before = opt.strategy.consensus_distance()
        opt.strategy.finish()
        return before, opt.strategy.consensus_distance(), flat(net)

    for make in (train.LocalSGD, train.DiLoCo, lambda: train.FedAvg(fraction=0.7), train.EASGD):
        results = threads.run(3, lambda comm, make=make: on_rank(comm, make()))
        assert all(before > 1e-6 for before, _, _ in results)
        assert all((end == results[0][2]).all() for _, _, end in results)
        assert all(after < 1e-25 for _, after, _ in results)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: train.LocalSGD(0), "every must be at least 1"),
        (lambda: train.LocalSGD(start=-1), "start must be at least 0"),
        (lambda: train.LocalSGD(start=5, stop=4), "stop must not be before start"),
        (lambda: train.DiLoCo(1, 0.0), "outer_lr must be positive"),
        (lambda: train.DiLoCo(1, outer_momentum=1.0), r"outer_momentum must be in \[0, 1\)"),
        (lambda: train.FedAvg(fraction=0.0), "fraction must be above 0"),
        (lambda: train.FedAvg(seed=-1), "seed must be at least 0"),
        (lambda: train.EASGD(0), "every must be at least 1"),
        (lambda: train.EASGD(alpha=0.1, rho=1.0), "one of both"),
        (lambda: train.EASGD(alpha=-0.1), "alpha must be positive"),
        (lambda: train.EASGD(rho=float("nan")), "rho must be positive"),
        (lambda: train.EASGD(rho=float("inf")), "rho must be positive and finite"),
        (lambda: train.LocalSGD(master=-1), "master must be at least 0"),
    ],
)
def test_arguments_that_make_no_sense(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: train.LocalSGD(float("nan")), "every must be an integer, not nan"),
        (lambda: train.LocalSGD(stop=2.5), "stop must be an integer"),
        (lambda: train.LocalSGD(master=1.0), "master must be an integer"),
        (lambda: train.FedAvg(seed=None), "seed must be an integer"),
        (lambda: train.EASGD(1.5), "every must be an integer"),
    ],
)
def test_what_is_counted_is_an_integer(make, words):
    with pytest.raises(TypeError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: train.LocalSGD(master=2), "master must be one of 2 ranks"),
        (lambda: train.EASGD(alpha=0.6), "alpha must be at most 1/2"),
        (lambda: train.EASGD(rho=6.0), "alpha must be at most 1/2 for 2 ranks, not 0.6"),
    ],
)
def test_arguments_that_do_not_fit_the_ranks(make, words):
    def on_rank(comm):
        with pytest.raises(ValueError, match=words):
            begin(comm, make())
        return comm.allreduce(1)  # nothing was sent

    assert threads.run(2, on_rank) == [2, 2]
