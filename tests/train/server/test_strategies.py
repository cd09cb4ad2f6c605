"""Strategies with a parameter server, and among peers, on ranks that are threads."""

import functools
import threading
import time

import numpy as np
import pytest

from collectives import PeerFailure, train
from collectives.train import threads

COUNT = 96


def samples():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((COUNT, 6))
    return x, (x[:, 0] > x[:, 1]).astype(int) + (x[:, 2] > 1)


def model(optimizer=train.SGD, lr=0.05, seed=0, **how):
    net = train.mlp((6,), 3, rng=np.random.default_rng(seed), dtype=np.float64)
    return net, optimizer(net.parameters(), lr, **how)


def flat(net):
    return np.concatenate([p.data.ravel() for p in net.parameters()])


def trained(ranks, strategy, epochs=3, make=model, batch=20, **how):
    """The run, and all parameters, of each rank. The program is the one of docs/training.md."""

    def on_rank(comm):
        data = train.Loader(samples(), batch, seed=1, comm=comm)
        net, opt = make()
        net, opt = train.distribute(net, opt, strategy(), comm=comm)
        evaluate = functools.partial(train.evaluate, net, *samples(), comm=comm)
        run = train.Run(comm=comm, state={"net": net, "opt": opt, "data": data}, evaluate=evaluate, **how)
        steps = 0
        for x, y in run.steps(data, epochs=epochs):
            opt.zero_grad()
            loss = train.CrossEntropyLoss()(net(x), y)
            loss.backward()
            opt.step()
            run.log(loss=loss)
            steps += 1
        assert train.evaluate(net, *samples(), comm=comm)["accuracy"] > 0.5  # all ranks take part again
        return run, flat(net), steps

    return threads.run(ranks, on_rank, timeout=60)


@pytest.mark.parametrize(
    "how", [{"servers": 1}, {"servers": 3}, {"servers": 2, "beside": True}, {"servers": 2, "backup": True}]
)
@pytest.mark.parametrize(
    "make", [functools.partial(model, momentum=0.9), functools.partial(model, train.Adam, lr=0.01)], ids=["sgd", "adam"]
)
def test_the_synchronous_server_does_what_all_reduce_does(make, how):
    workers = 3
    ranks = workers + (0 if how.get("beside") else how["servers"])
    expected = trained(workers, train.AllReduce, make=make)[0]
    found = trained(ranks, functools.partial(train.ParameterServer, bucket_bytes=700, **how), make=make)
    for rank, (run, parameters, steps) in enumerate(found):
        np.testing.assert_allclose(parameters, expected[1], atol=1e-12)
        assert steps == (expected[2] if rank < workers else 0)
        assert [{**r, "seconds": 0} for r in run.records] == [
            {**r, "seconds": 0, "loss": pytest.approx(r["loss"], abs=1e-12)} for r in expected[0].records
        ]
        assert (run.step, run.stopped, run.trains) == (expected[0].step, None, rank < workers)


def test_ssp_without_staleness_is_synchronous():
    expected = trained(3, train.AllReduce)[0][1]
    for _, parameters, _ in trained(4, functools.partial(train.SSP, 0)):
        np.testing.assert_allclose(parameters, expected, atol=1e-12)


@pytest.mark.parametrize(
    "strategy",
    [
        train.AsyncParameterServer,
        functools.partial(train.AsyncParameterServer, 2, compensation=0.04),
        functools.partial(train.AsyncParameterServer, 2, rate="shared", backup=True),
        functools.partial(train.AsyncParameterServer, 4, beside=True, backup=True),
        functools.partial(train.SSP, 2, 2),
        functools.partial(train.AsyncEASGD, 2, 2),
        functools.partial(train.AsyncEASGD, 2, 1, beside=True),
        train.PeerAsync,
    ],
)
def test_asynchronous_strategies_learn_and_end_alike_on_all_ranks(strategy):
    made = []
    lock = threading.Lock()

    def make():
        with lock:
            made.append(strategy())
        return made[-1]

    make_model = functools.partial(model, momentum=0.5)
    found = trained(5, make, epochs=12, make=make_model, every=3)
    for _, parameters, _ in found:
        np.testing.assert_array_equal(parameters, found[0][1])
    first, last = found[0][0].records[0], found[0][0].records[-1]
    assert last["loss"] < 0.8 * first["loss"]
    assert last["samples"] == 12 * COUNT
    assert last["accuracy"] > 0.7


@pytest.mark.parametrize(
    "strategy",
    [train.AsyncParameterServer, functools.partial(train.SSP, 8), functools.partial(train.AsyncEASGD, 3, beside=True)],
)
def test_a_slow_worker_gets_fewer_samples_and_every_sample_is_used_once_in_an_epoch(strategy):
    workers, epochs = 4, 2

    def on_rank(comm):
        made = strategy()
        data = train.Loader((np.arange(480),), 16, seed=1, comm=comm)
        net, opt = train.distribute(*model(), made, comm=comm)
        run = train.Run(comm=comm, state={"net": net, "opt": opt, "data": data}, every=12)
        seen = []
        for (numbers,) in run.steps(data, epochs=epochs):
            seen += numbers.tolist()
            opt.zero_grad()
            net(np.zeros((len(numbers), 6))).backward(np.zeros((len(numbers), 3)))
            time.sleep(0.02 if comm.rank == 1 else 0.001)
            opt.step()
            run.log(loss=1.0)
        return seen, [(r["epoch"], r["step"], r["samples"]) for r in run.records]

    found = threads.run(workers + (0 if strategy().beside else 1), on_rank, timeout=60)
    assert sorted(number for seen, _ in found for number in seen) == sorted([*range(480)] * epochs)
    assert len(found[1][0]) < 0.6 * len(found[0][0])
    records = [(0, 12, 192), (0, 24, 384), (1, 30, 480), (1, 42, 672), (1, 54, 864), (2, 60, 960)]
    assert all(told == records for _, told in found)


def test_ssp_records_gap_and_lag_within_their_bounds():
    def on_rank(comm):
        net, opt = model()
        net, opt = train.distribute(net, opt, train.SSP(staleness=2), comm=comm)
        x, y = samples()
        for step in range(30 if opt.strategy.worker else 0):
            train.CrossEntropyLoss()(net(x), y).backward()
            time.sleep(0.004 if comm.rank == step % 3 else 0)
            opt.step()
        opt.strategy.close()
        return (opt.strategy.gap, opt.strategy.lag) if opt.strategy.worker else None

    found = threads.run(4, on_rank, timeout=60)[:3]
    assert max(gap for gap, _ in found) in (1, 2)
    assert 0 < max(lag for _, lag in found) <= 2 * 5


def ones_of(comm, workers, strategy, optimizer=train.SGD):
    """A linear network, at 0, of which each worker's gradient is 1 for its own weight, and for the bias."""
    net = train.Sequential(train.Linear(workers, 1, rng=np.random.default_rng(0), dtype=np.float64))
    for p in net.parameters():
        p.data[...] = 0
    net, opt = train.distribute(net, optimizer(net.parameters(), 2.0**-10), strategy, comm=comm)

    def step():
        opt.zero_grad()
        net(np.eye(workers)[comm.rank : comm.rank + 1]).backward(np.ones((1, 1)))
        opt.step()

    return net, opt, step


class Slow(train.SGD):
    """An optimizer that takes its time."""

    def update(self, data, grad, *kept):
        time.sleep(0.002)
        super().update(data, grad, *kept)


def test_many_workers_push_to_a_slow_server_and_nothing_is_lost_and_nobody_is_left_waiting():
    workers, steps = 8, 15

    def on_rank(comm):
        strategy = train.AsyncParameterServer(rate="full", bucket_bytes=1)
        net, opt, step = ones_of(comm, workers, strategy, Slow)
        for _ in range(steps if strategy.worker else 0):
            step()
        lag = strategy.lag if strategy.worker else 0
        strategy.close()
        return flat(net), lag

    for parameters, lag in threads.run(workers + 1, on_rank, timeout=60):
        np.testing.assert_array_equal(parameters, [-steps / 1024] * workers + [-steps * workers / 1024])
        assert lag <= 3 * workers  # turns are fair: nobody waits for more than a few steps of each other worker


def test_peers_use_every_gradient_once_also_where_one_rank_is_slow():
    ranks, steps = 4, 24

    def on_rank(comm):
        net, opt, step = ones_of(comm, ranks, train.PeerAsync())
        mine = steps // 4 if comm.rank == 2 else steps
        for _ in range(mine):
            time.sleep(0.004 if comm.rank == 2 else 0.001)
            step()
        opt.strategy.close()
        return flat(net)

    counts = [steps // 4 if rank == 2 else steps for rank in range(ranks)]
    for parameters in threads.run(ranks, on_rank, timeout=60):
        np.testing.assert_array_equal(parameters, -np.array([*counts, sum(counts)]) / ranks / 1024)


def resumable(ranks, strategy, folder, epochs):
    """Trains with checkpoints and a table; all parameters and rows."""

    def on_rank(comm):
        made = strategy()
        made.tables["rows"] = train.Table(11, 2, dtype=np.float64, optimizer=functools.partial(train.Adam, lr=0.1))
        data = train.Loader(samples(), 24, seed=1, comm=comm)
        net, opt = train.distribute(*model(momentum=0.9), made, comm=comm)
        state = {"net": net, "opt": opt, "data": data, "rows": made.tables["rows"]}
        run = train.Run(folder, comm=comm, state=state, checkpoint_every=3, progress="lines")
        rows = None
        for x, y in run.steps(data, epochs=epochs):
            keys = np.arange(len(x)) * (1 + comm.rank) % 11
            opt.zero_grad()
            train.CrossEntropyLoss()(net(x), y).backward()
            made.tables["rows"].push(keys, made.tables["rows"].pull(keys) - 1)
            opt.step()
            rows = made.tables["rows"].pull(np.arange(11))
        return flat(net), rows

    return threads.run(ranks, on_rank, timeout=60)


@pytest.mark.parametrize("then", [1, 3])
def test_a_checkpoint_has_the_state_of_the_servers(tmp_path, then):
    expected = resumable(4, functools.partial(train.ParameterServer, 2), tmp_path / "whole", 4)
    resumable(4, functools.partial(train.ParameterServer, 2), tmp_path / "cut", 2)
    found = resumable(2 + then, functools.partial(train.ParameterServer, then), tmp_path / "cut", 4)
    np.testing.assert_array_equal(found[0][0], expected[0][0])
    np.testing.assert_array_equal(found[0][1], expected[0][1])


@pytest.mark.parametrize(("strategy", "how"), [(train.ParameterServer, {"check_weights": 3}), (train.SSP, {})])
def test_a_run_on_a_mesh_leaves_servers_out_and_goes_on_with_more_ranks(tmp_path, strategy, how):
    def on_rank(comm, epochs):
        mesh = train.Mesh(comm, data=comm.size)
        data = train.Loader(samples(), 24, seed=1, comm=mesh.data)
        net, opt = train.distribute(*model(), strategy(), mesh=mesh)
        run = train.Run(tmp_path, mesh=mesh, state={"net": net, "opt": opt, "data": data}, checkpoint_every=2, **how)
        for x, y in run.steps(data, epochs=epochs):
            opt.zero_grad()
            train.CrossEntropyLoss()(net(x), y).backward()
            opt.step()
        return run.resumed, run.step

    assert threads.run(3, functools.partial(on_rank, epochs=2), timeout=20)[0] == (None, 8)
    assert threads.run(4, functools.partial(on_rank, epochs=4), timeout=20)[0] == (8, 16)


@pytest.mark.parametrize(
    "strategy",
    [functools.partial(train.AsyncParameterServer, 2), functools.partial(train.AsyncEASGD, 2), train.PeerAsync],
)
@pytest.mark.parametrize("ranks", [4, 7])  # the mean of 7 equal numbers may be another one
def test_asynchronous_strategies_go_on_from_a_checkpoint(tmp_path, strategy, ranks):
    def on_rank(comm, epochs):
        data = train.Loader(samples(), 24, seed=1, comm=comm)
        net, opt = train.distribute(*model(), strategy(), comm=comm)
        state = {"net": net, "opt": opt, "data": data}
        run = train.Run(tmp_path, comm=comm, state=state, checkpoint_every=2, progress="lines")
        resumed, begin = run.resumed, flat(net).copy()
        for x, y in run.steps(data, epochs=epochs):
            opt.zero_grad()
            train.CrossEntropyLoss()(net(x), y).backward()
            opt.step()
        return resumed, run.step, begin, flat(net)

    first = threads.run(ranks, functools.partial(on_rank, epochs=2), timeout=60)
    again = threads.run(ranks, functools.partial(on_rank, epochs=4), timeout=60)
    assert (again[0][0], again[0][1]) == (8, 16)
    np.testing.assert_array_equal(again[0][2], first[0][3])
    assert not np.array_equal(again[0][3], first[0][3])


@pytest.mark.parametrize(
    "strategy",
    [functools.partial(train.AsyncParameterServer, 2, rate="full"), functools.partial(train.AsyncEASGD, 100, 2)],
)
def test_parameters_that_are_loaded_go_to_the_servers(strategy):
    def on_rank(comm):
        net, opt = train.distribute(*model(lr=0.0), strategy(), comm=comm)
        other = model(seed=5)[0]
        if opt.strategy.worker:
            net.load_state_dict(other.state_dict())
            train.CrossEntropyLoss()(net(samples()[0]), samples()[1]).backward()
            opt.step()
        opt.strategy.close()
        return flat(net), flat(other)

    for found, expected in threads.run(4, on_rank, timeout=60):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("strategy", [train.ParameterServer, train.SSP, train.AsyncParameterServer])
def test_parameters_that_the_program_changes_are_an_error(strategy):
    """The next pull would undo it. A change that the program has undone itself is none."""

    def on_rank(comm):
        net, opt = train.distribute(*model(), strategy(), comm=comm)

        def step():
            opt.zero_grad()
            train.CrossEntropyLoss()(net(samples()[0]), samples()[1]).backward()
            opt.step()

        if opt.strategy.worker:
            first = net.parameters()[0].data
            step()
            kept = first.copy()
            first[...] = 0
            first[...] = kept
            step()
            kept = first.copy()
            first[...] = 0
            with pytest.raises(ValueError, match="parameter 1.weight was changed since the last step: servers hold"):
                step()
            first[...] = kept
            step()
            assert (first != kept).any()
        opt.strategy.close()

    threads.run(2, on_rank, timeout=60)


def test_misuse_is_an_error():
    def on_rank(comm):
        run_before = train.Run(comm=comm)
        data = train.Loader(samples(), 8, comm=comm)
        net, opt = train.distribute(*model(), train.ParameterServer(), comm=comm)
        if opt.strategy.worker:
            with pytest.raises(ValueError, match="make the run after distribute"):
                next(run_before.steps(data, epochs=1))
            with pytest.raises(ValueError, match=r'state needs "opt"'):
                train.Run(comm=comm, state={"net": net})
        with pytest.raises(RuntimeError, match="still set apart"):
            train.distribute(*model(), comm=comm)
        if not opt.strategy.worker:
            with pytest.raises(RuntimeError, match="this rank has served"):
                train.CrossEntropyLoss()(net(samples()[0]), samples()[1]).backward()
        opt.strategy.close()
        if opt.strategy.worker:
            with pytest.raises(RuntimeError, match="servers have left"):
                train.CrossEntropyLoss()(net(samples()[0]), samples()[1]).backward()
        train.distribute(*model(), train.ParameterServer(), comm=comm)[1].strategy.close()

    threads.run(2, on_rank, timeout=60)


def test_samples_of_a_rank_that_serves_are_an_error():
    def on_rank(comm):
        mine = [part[comm.rank :: comm.size] for part in samples()]
        data = train.Loader(tuple(mine), 8, comm=comm, placement="local")
        net, opt = train.distribute(*model(), train.ParameterServer(), comm=comm)
        if opt.strategy.worker:
            with pytest.raises(ValueError, match="32 samples are on ranks that serve"):
                train.Run(comm=comm, state={"net": net, "opt": opt, "data": data})
        opt.strategy.close()

    threads.run(3, on_rank, timeout=60)


@pytest.mark.parametrize("strategy", [train.ParameterServer, train.AsyncEASGD, train.PeerAsync])
def test_a_worker_that_raises_ends_all_ranks(strategy):
    def on_rank(comm):
        net, opt = train.distribute(*model(), strategy(), comm=comm)
        for step in range(100 if opt.strategy.worker else 0):
            if comm.rank == 1 and step == 3:
                raise KeyError("mine")
            train.CrossEntropyLoss()(net(samples()[0]), samples()[1]).backward()
            opt.step()
        opt.strategy.close()

    with pytest.raises(KeyError, match="mine"):
        threads.run(3, on_rank, timeout=60)


def test_a_worker_that_ends_without_a_word_is_noticed():
    def on_rank(comm):
        _, opt = train.distribute(*model(), train.ParameterServer(), comm=comm)
        if comm.rank == 0:
            opt.strategy.close()

    with pytest.raises(PeerFailure, match="rank 1|has ended"):
        threads.run(3, on_rank, timeout=60)
