"""Run: what a program does between steps, or changes from one start to the next, neither loses nor repeats samples."""

import contextlib
import functools
import os
import shutil
import signal

import numpy as np
import pytest
from mpi4py import MPI

from collectives import train
from collectives.train import threads

MICRO = 4  # micro-batches of a step


def parts(comm, strategy, n=48, batch=2):
    rng = np.random.default_rng(0)
    data = train.Loader((rng.standard_normal((n, 2)), np.arange(n) % 2), batch, comm=comm)
    net = train.mlp((2,), 2, rng=np.random.default_rng(0))
    net, opt = train.distribute(net, train.SGD(net.parameters(), lr=0.1, momentum=0.5), strategy, comm=comm)
    return {"net": net, "opt": opt, "data": data}


def accumulate(out, state, comm, upto=None, signal_at=None, **options):
    """Train for an epoch, MICRO batches in a step; the run, left after batch `upto`."""
    run = train.Run(out, comm=comm, state=state, progress="lines", **options)
    opt = state["opt"]
    for x, y in run.steps(state["data"], epochs=1):
        loss = train.CrossEntropyLoss()(state["net"](x), y)
        if run.step + 1 == signal_at:
            os.kill(os.getpid(), signal.SIGUSR1)
        if (run.step + 1) % MICRO:
            with opt.strategy.no_sync():
                loss.backward()
        else:
            loss.backward()
            opt.step()
            opt.zero_grad()
        if run.step + 1 == upto:
            break
    return run


def weights(state):
    return np.concatenate([p.data.ravel() for p in state["net"].parameters()])


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_a_checkpoint_waits_for_the_end_of_the_micro_batches(tmp_path, shard):
    def made():
        return parts(MPI.COMM_SELF, train.AllReduce(shard=shard))

    whole, second = made(), made()
    accumulate(None, whole, MPI.COMM_SELF)
    accumulate(tmp_path, made(), MPI.COMM_SELF, upto=11, checkpoint_every=6).finish()
    run = accumulate(tmp_path, second, MPI.COMM_SELF, checkpoint_every=6)
    assert (run.resumed, run.step) == (8, 24)
    np.testing.assert_array_equal(weights(second), weights(whole))


def test_a_signal_waits_for_the_end_of_the_micro_batches(tmp_path):
    run = accumulate(tmp_path, parts(MPI.COMM_SELF, train.AllReduce()), MPI.COMM_SELF, signal_at=5)
    assert (run.stopped, run.step) == ("SIGUSR1", 8)
    whole, second = (parts(MPI.COMM_SELF, train.AllReduce()) for _ in range(2))
    accumulate(None, whole, MPI.COMM_SELF)
    assert accumulate(tmp_path, second, MPI.COMM_SELF).resumed == 8
    np.testing.assert_array_equal(weights(second), weights(whole))


class Alone(train.Strategy):
    """Ranks do not wait for each other."""

    lockstep = False


def test_ranks_that_do_not_wait_stop_and_save_when_they_meet():
    """They did so when they met the next time: a record later."""
    state = parts(MPI.COMM_SELF, Alone())
    run = train.Run(comm=MPI.COMM_SELF, state=state, every=5, progress=None)
    for _ in run.steps(state["data"], epochs=1):
        if run.step == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
    assert (run.stopped, run.step) == ("SIGUSR1", 5)


def saved_steps(out):
    return [int(path.name.removeprefix("step-")) for path in sorted((out / "checkpoints/train").iterdir())]


def test_ranks_that_do_not_wait_save_by_time_when_they_meet(tmp_path):
    state = parts(MPI.COMM_SELF, Alone())
    options = {"every": 5, "checkpoint_seconds": 1e-9, "keep": 9, "progress": None}
    run = train.Run(tmp_path, comm=MPI.COMM_SELF, state=state, **options)
    assert len(list(run.steps(state["data"], epochs=1))) == 24
    assert saved_steps(tmp_path) == [5, 10, 15, 20, 24]


def test_checkpoints_of_ranks_that_do_not_wait_have_whole_steps(tmp_path):
    """What micro-batches had added up was in no checkpoint, although their samples were used."""

    def on_rank(comm):
        accumulate(tmp_path, parts(comm, train.PeerAsync()), comm, checkpoint_every=6, keep=9)

    threads.run(2, on_rank, timeout=60)
    assert saved_steps(tmp_path) == [8, 12, 20, 24]


class Used:
    """The samples of this rank's steps so far."""

    per_rank = True

    def __init__(self):
        self.numbers = []

    def state_dict(self):
        return {"numbers": list(self.numbers)}

    def load_state_dict(self, state):
        self.numbers = state["numbers"]


def test_checkpoints_of_ranks_that_take_samples_have_whole_steps(tmp_path):
    """Each rank is elsewhere in its step when a checkpoint is due: those within one take samples for the rest of it."""

    def on_rank(comm):
        data, used, taken = train.Loader((np.arange(240),), 4, seed=1, comm=comm), Used(), []
        net = train.mlp((2,), 2, rng=np.random.default_rng(0))
        net, opt = train.distribute(net, train.SGD(net.parameters(), lr=0.01), train.AsyncParameterServer(), comm=comm)
        state = {"net": net, "opt": opt, "data": data, "used": used}
        run = train.Run(tmp_path, comm=comm, state=state, checkpoint_every=7, keep=99, progress=None)
        for number, (numbers,) in enumerate(run.steps(data, epochs=1), 1):
            taken.append(numbers.tolist())
            with opt.strategy.no_sync() if number % MICRO else contextlib.nullcontext():
                net(np.zeros((len(numbers), 2))).backward(np.zeros((len(numbers), 2)))
            if number % MICRO == 0:
                opt.step()
                opt.zero_grad()
                used.numbers += sum(taken[-MICRO:], [])
        return sum(taken, [])

    found = threads.run(3, on_rank, timeout=60)
    assert sorted(sum(found, [])) == list(range(240))
    paths = sorted((tmp_path / "checkpoints/train").iterdir())[:-1]  # the last one is the end, within a step
    assert len(paths) >= 5
    for path in paths:
        loaded = train.checkpoint.load(path, MPI.COMM_SELF)
        numbers = [number for rank in range(loaded.ranks) for number in loaded.state("used", rank)["numbers"]]
        assert len(numbers) == len(set(numbers)) == loaded.state("data")["position"]


def test_a_run_that_a_signal_has_stopped_can_go_on():
    state = parts(MPI.COMM_SELF, train.AllReduce())
    run, made = train.Run(comm=MPI.COMM_SELF, state=state, progress="lines"), []
    for epochs in (1, 1, 2):
        for x, _ in run.steps(state["data"], epochs=epochs):
            made.append(len(x))
            if len(made) == 5:
                os.kill(os.getpid(), signal.SIGUSR1)
        made.append(run.stopped)
    assert made.index("SIGUSR1") < 8
    assert [each for each in made if not isinstance(each, int)] == ["SIGUSR1", None, None]
    assert made.count(2) == 48


def test_a_sum_of_gradients_in_shards_has_no_micro_batches():
    strategy = parts(MPI.COMM_SELF, train.AllReduce(shard=2, average=False))["opt"].strategy
    with pytest.raises(ValueError, match="shard=1 can"), strategy.no_sync():
        pass


def on_demand(comm, out=None, epochs=1, leave_at=(), **options):
    """Train with samples that a server deals; what this rank has seen, and the step from which the run went on.

    The loop is left when this rank has seen so many samples as `leave_at` says, and entered again.
    """
    data = train.Loader((np.arange(240),), 4, seed=1, comm=comm)
    net = train.mlp((2,), 2, rng=np.random.default_rng(0))
    net, opt = train.distribute(net, train.SGD(net.parameters(), lr=0.01), train.AsyncParameterServer(), comm=comm)
    run = train.Run(out, comm=comm, state={"net": net, "opt": opt, "data": data}, progress="lines", **options)
    seen = []
    for most in (*leave_at, 10**9) if run.trains else (0,):
        for (numbers,) in run.steps(data, epochs=epochs):
            seen += numbers.tolist()
            opt.zero_grad()
            net(np.zeros((len(numbers), 2))).backward(np.zeros((len(numbers), 2)))
            opt.step()
            if len(seen) >= most * (comm.rank + 1):
                break
    return seen, run.resumed


def test_workers_that_leave_the_loop_and_enter_it_again_use_each_sample_once():
    found = threads.run(3, functools.partial(on_demand, leave_at=(10, 40)), timeout=60)
    assert sorted(number for seen, _ in found for number in seen) == list(range(240))


def test_records_may_come_more_often_after_a_checkpoint(tmp_path):
    """The next one would have been due before the step from which the run goes on."""
    first = threads.run(2, functools.partial(on_demand, out=tmp_path, checkpoint_every=30, every=100), timeout=60)
    shutil.rmtree(tmp_path / "checkpoints/train/step-000000060")
    again = threads.run(2, functools.partial(on_demand, out=tmp_path, checkpoint_every=30, every=20), timeout=60)
    assert [resumed for seen, resumed in again if seen] == [30]
    before = max(seen for seen, _ in first)[:120]
    assert sorted([*before, *(number for seen, _ in again for number in seen)]) == list(range(240))


def test_a_loop_on_demand_has_a_step():
    data = train.Loader((np.arange(24),), 4, comm=MPI.COMM_SELF)
    with pytest.raises(ValueError, match="expected at least 1, not -10"):
        next(data.on_demand(-10, lambda series: 0))


def test_a_run_without_patience_left_has_nothing_to_do(tmp_path):
    def trained():
        state = parts(MPI.COMM_SELF, train.AllReduce())
        run = train.Run(
            tmp_path, comm=MPI.COMM_SELF, state=state, progress="lines", evaluate=lambda: {"accuracy": 0.5},
            best=("accuracy", "max"), patience=2, checkpoint_every=100,
        )  # fmt: skip
        return len(list(run.steps(state["data"], epochs=9))), run.step, run.stopped

    steps, last, _ = trained()
    assert steps == last == 72
    assert trained() == trained() == (0, 72, "patience")


def test_ranks_that_a_checkpoint_does_not_know_begin_without_residuals(tmp_path):
    def rank(comm, epochs):
        state = parts(comm, train.AllReduce(compression=train.Int8()))
        run = train.Run(tmp_path, comm=comm, state=state, progress="lines", checkpoint_every=100)
        kept = {index: part["residual"] for index, part in state["opt"].strategy.compression.state_dict().items()}
        for x, y in run.steps(state["data"], epochs=epochs):
            train.CrossEntropyLoss()(state["net"](x), y).backward()
            state["opt"].step()
            state["opt"].zero_grad()
        areas = state["opt"].strategy.compression.state_dict()
        return kept, {index: area["residual"] for index, area in areas.items()}

    saved = [last for _, last in threads.run(2, functools.partial(rank, epochs=1), timeout=60)]
    began = [kept for kept, _ in threads.run(3, functools.partial(rank, epochs=2), timeout=60)]
    for index, residual in saved[0].items():
        np.testing.assert_array_equal(began[0][index], residual)
        np.testing.assert_array_equal(began[1][index], saved[1][index])
        assert residual.any()
        assert not began[2][index].any()
