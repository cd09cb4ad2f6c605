"""How a run ends, and goes on: signals, patience, the best epoch, checkpoints, rates, callbacks. On one rank."""

import datetime
import json
import logging
import os
import signal
import sys
import threading
import types
from collections import deque
from unittest.mock import Mock

import numpy as np
import pytest
from lone_runs import COMM, go, names, parts

from collectives import train
from collectives.train.run.records import Means


def weights(state):
    return np.concatenate([p.data.ravel() for p in state["net"].parameters()])


def without_seconds(run):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in run.records]


def test_a_run_that_is_left_goes_on(tmp_path):
    """The break is as good as a death: what is not on the disk by then is done again."""
    whole = parts()
    expected = go(tmp_path / "a", whole, epochs=4, every=2, checkpoint_every=3)
    go(tmp_path / "b", parts(), epochs=4, upto=8, every=2, checkpoint_every=3)
    second = parts()
    run = go(tmp_path / "b", second, epochs=4, every=2, checkpoint_every=3)
    assert run.resumed in (None, 3, 6)
    assert expected.resumed is None
    assert (weights(second) == weights(whole)).all()
    assert without_seconds(run) == without_seconds(expected)
    assert names(tmp_path / "b") == ["step-000000009", "step-000000012"]
    again = parts()
    run = go(tmp_path / "b", again, epochs=4, checkpoint_every=3)
    assert (run.resumed, run.step, run.stopped) == (12, 12, None)
    assert (weights(again) == weights(whole)).all()
    assert names(tmp_path / "b") == ["step-000000009", "step-000000012"]


def test_a_run_that_is_left_can_wait_for_its_checkpoints(tmp_path):
    run = go(tmp_path, parts(), epochs=4, upto=8, checkpoint_every=3)
    run.finish()
    assert names(tmp_path) == ["step-000000003", "step-000000006"]
    assert go(tmp_path, parts(), epochs=4, checkpoint_every=3).resumed == 6


def test_more_epochs_later(tmp_path):
    whole, first, second = parts(), parts(), parts()
    go(None, whole, epochs=4)
    go(tmp_path, first, epochs=2, checkpoint_every=100)
    assert go(tmp_path, second, epochs=4, checkpoint_every=100).resumed == 6
    assert (weights(second) == weights(whole)).all()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_stops_after_a_step_and_saves(signum, tmp_path):
    """Without any other checkpoint. The handlers are there only while steps run."""
    before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR1)]
    state = parts()
    run = train.Run(tmp_path, comm=COMM, state=state, progress="lines")
    for _ in run.steps(state["data"], epochs=9):
        assert run.step < 6
        if run.step == 4:
            os.kill(os.getpid(), signum)
    assert (run.step, run.stopped) == (6, signum.name)
    assert names(tmp_path) == ["step-000000006"]
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR1)] == before
    state = parts()
    assert train.Run(tmp_path, comm=COMM, state=state).resumed == 6
    assert (state["data"].epoch, state["data"].step) == (2, 0)


def test_a_signal_in_the_last_step_is_not_lost(tmp_path):
    state = parts()
    run = train.Run(tmp_path, comm=COMM, state=state, progress="lines")
    for _ in run.steps(state["data"], epochs=1):
        if run.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
    assert (run.step, run.stopped) == (3, "SIGTERM")


def test_handlers_return_after_an_error_and_a_break():
    def handler(*_):
        pass

    old = signal.signal(signal.SIGUSR1, handler)
    try:
        for end in ("break", "error"):
            run = train.Run(comm=COMM, progress="lines")
            try:
                for _ in run.steps(parts()["data"], epochs=1):
                    assert signal.getsignal(signal.SIGUSR1) != handler
                    if end == "break":
                        break
                    run.log(loss=float("inf"))
            except FloatingPointError:
                assert end == "error"
            assert signal.getsignal(signal.SIGUSR1) == handler
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_other_threads_set_no_handlers():
    before, within = signal.getsignal(signal.SIGTERM), []

    def work():
        for _ in train.Run(comm=COMM, progress="lines").steps(parts()["data"], epochs=1):
            within.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert within == [before] * 3


def damage(folder):
    (file,) = folder.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_a_corrupt_checkpoint_is_set_aside(tmp_path, caplog):
    go(tmp_path, parts(), epochs=4, checkpoint_every=5)
    assert names(tmp_path) == ["step-000000010", "step-000000012"]
    damage(tmp_path / "checkpoints/train/step-000000012")
    with caplog.at_level(logging.WARNING, "collectives"):
        run = go(tmp_path, parts(), epochs=4, checkpoint_every=5)
    assert run.resumed == 10
    assert "is corrupt" in caplog.text
    assert "the one before is used" in caplog.text
    assert names(tmp_path) == ["corrupt-step-000000012-0", "step-000000010", "step-000000012"]


def test_a_checkpoint_that_failed_is_written_by_the_next_call(tmp_path, monkeypatch):
    state = parts()
    run = train.Run(tmp_path, comm=COMM, state=state, checkpoint_every=1000, progress=None)
    with monkeypatch.context() as patched:
        patched.setattr("collectives.train.checkpoint.saver.write_part", Mock(side_effect=OSError("full")))
        with pytest.raises(OSError, match="full"):
            list(run.steps(state["data"], epochs=1))
    assert names(tmp_path) == []
    assert list(run.steps(state["data"], epochs=1)) == []
    assert names(tmp_path) == ["step-000000003"]


def test_only_corrupt_checkpoints_are_an_error(tmp_path, caplog):
    go(tmp_path, parts(), checkpoint_every=100)
    damage(tmp_path / "checkpoints/train/step-000000006")
    with pytest.raises(ValueError, match="all checkpoints in .* are corrupt"):
        go(tmp_path, parts(), checkpoint_every=100)
    with caplog.at_level(logging.WARNING, "collectives"):
        assert go(tmp_path, parts(), checkpoint_every=100).resumed is None
    assert "has corrupt checkpoints only: the run begins at step 0" in caplog.text


def test_an_earlier_run_is_not_written_over(tmp_path):
    go(tmp_path, parts(), checkpoint_every=100)
    for every in (100, None):  # without a number it would save if it were stopped
        with pytest.raises(ValueError, match="has checkpoints of an earlier run"):
            go(tmp_path, parts(), checkpoint_every=every, resume=False)
    assert go(tmp_path, parts(), checkpoint_every=100, resume=False, name="another").resumed is None


def test_a_checkpoint_of_another_run_changes_nothing(tmp_path):
    go(tmp_path, parts(), checkpoint_every=100)
    state = {**parts(), "more": train.Loader((np.zeros(3),), 1, comm=COMM)}
    before = weights(state)
    with pytest.raises(ValueError, match=r"of another run; states missing: \['more'\], unexpected: \[\]"):
        train.Run(tmp_path, comm=COMM, state=state)
    state = parts()
    state["net"] = train.mlp((2,), 3, rng=np.random.default_rng(1))
    with pytest.raises(ValueError, match="has the shape"):
        train.Run(tmp_path, comm=COMM, state=state)
    with pytest.raises(ValueError, match="it had 10 samples, now 11"):
        train.Run(tmp_path, comm=COMM, state=parts(n=11))
    assert (weights(parts()) == before).all()


@pytest.mark.parametrize(("value", "kind"), [(datetime.date(2000, 1, 1), "date"), ({1}, "set"), (deque(), "deque")])
@pytest.mark.parametrize("every", [100, None])
def test_what_cannot_be_saved_is_an_error_at_the_start(tmp_path, value, kind, every):
    """Also for a run that would save only if it were stopped. On a rank that writes a state of its own, for all."""

    def on_rank(comm):
        bad = types.SimpleNamespace(state_dict=lambda: {"a": [value if comm.rank else 0]}, load_state_dict=dict)
        bad.per_rank = True
        with pytest.raises(TypeError, match=f"bad/a/0: a {kind} cannot be saved"):
            train.Run(tmp_path, comm=comm, state={"bad": bad}, checkpoint_every=every)

    train.threads.run(2, on_rank)
    assert not list(tmp_path.glob("checkpoints/*/*"))


def test_a_folder_that_cannot_be_written_is_an_error_at_the_start(tmp_path):
    (tmp_path / "checkpoints").write_text("no folder")
    with pytest.raises(OSError, match="checkpoints"):
        train.Run(tmp_path, comm=COMM, state=parts(), checkpoint_every=100)


class Counter:
    """State of each rank."""

    def __init__(self, per_rank):
        self.per_rank, self.count = per_rank, 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_how_a_state_is_saved_must_not_change(tmp_path):
    go(tmp_path, {**parts(), "counter": Counter(True)}, checkpoint_every=100)
    with pytest.raises(ValueError, match="counter was saved by every rank, unlike what this run does"):
        go(tmp_path, {**parts(), "counter": Counter(False)}, checkpoint_every=100)


def test_networks_that_differ_are_saved_by_every_rank(tmp_path):
    state = parts()
    train.distribute(state["net"], state["opt"], train.NoComm(), comm=COMM)
    go(tmp_path, state, checkpoint_every=100)
    loaded = train.checkpoint.load(tmp_path / "checkpoints/train/step-000000006", COMM)
    assert [loaded.per_rank(name) for name in ("net", "opt", "opt.strategy", "data", "run")] == [True] * 3 + [False] * 2


def test_by_time(tmp_path):
    run = go(tmp_path, parts(), epochs=3, checkpoint_seconds=1e-9, keep=100)
    assert run.step == 9
    assert len(names(tmp_path)) >= 7


def test_the_rate_follows_the_samples():
    seen, state = [], parts()
    optimizer = types.SimpleNamespace(lr=None, state_dict=dict, load_state_dict=dict)
    run = train.Run(comm=COMM, state={"opt": optimizer}, lr=lambda samples: samples / 2, progress="lines")
    for _ in run.steps(state["data"], epochs=2):
        seen.append(optimizer.lr)
    assert seen == [0, 2, 4, 5, 7, 9]
    groups = types.SimpleNamespace(param_groups=[{"lr": 0}, {"lr": 0}], state_dict=dict, load_state_dict=dict)
    run = train.Run(comm=COMM, state={"opt": groups}, lr=lambda samples: 0.5, progress="lines")
    next(run.steps(parts()["data"], epochs=1))
    assert groups.param_groups == [{"lr": 0.5}] * 2


def test_lines_of_json(tmp_path):
    """A run that goes on writes the file anew up to its checkpoint."""
    options = {"every": 2, "checkpoint_every": 100}
    first = go(tmp_path, parts(), epochs=2, callbacks=[train.JSONL(tmp_path / "log.jsonl")], **options)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == first.records
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 7}\n')
    second = go(tmp_path, parts(), epochs=3, callbacks=[train.JSONL(tmp_path / "log.jsonl")], **options)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == second.records
    assert second.records[: len(first.records)] == first.records


def test_a_picture(tmp_path):
    go(None, parts(), evaluate=lambda: {"accuracy": 0.5}, callbacks=[train.Picture(tmp_path / "curve.png", seconds=0)])
    assert (tmp_path / "curve.png").stat().st_size > 10_000


def test_tensorboard(tmp_path, monkeypatch):
    with pytest.raises(ImportError, match="pip install tensorboardX"):
        train.TensorBoard(tmp_path)
    written = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            written.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("closed")

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    run = go(None, parts(), epochs=1, callbacks=[train.TensorBoard(tmp_path)])
    assert written[0] == (str(tmp_path), 0)
    assert ("loss", run.records[0]["loss"], 3) in written
    assert written[-1] == "closed"


def test_an_error_of_a_callback_ends_the_run(tmp_path):
    with pytest.raises(OSError, match="absent"):
        go(None, parts(), callbacks=[train.JSONL(tmp_path / "absent" / "log.jsonl")])


def test_bad_arguments(tmp_path):
    state = parts()
    for options, words in [
        ({"state": state, "checkpoint_every": 1}, "need a folder"),
        ({"out": tmp_path, "checkpoint_seconds": 1}, "need a folder and a state"),
        ({"out": tmp_path, "state": state, "checkpoint_every": 0}, "checkpoint_every must be at least 1"),
        ({"out": tmp_path, "state": state, "checkpoint_seconds": 0}, "must be positive"),
        ({"keep": 0}, "keep must be at least 1"),
        ({"best": ("accuracy", "most")}, "best is"),
        ({"patience": 3}, "needs best"),
        ({"best": ("accuracy", "max"), "patience": 0}, "at least 1"),
        ({"lr": lambda samples: 1.0}, "lr needs"),
        ({"state": {"run": state["data"]}}, "the run's own"),
    ]:
        with pytest.raises(ValueError, match=words):
            train.Run(comm=COMM, **options)
    with pytest.raises(ValueError, match="put the loader into state"):
        next(train.Run(tmp_path, comm=COMM, state=state, checkpoint_every=1).steps(parts()["data"], epochs=1))
    with pytest.raises(ValueError, match="the records have no 'accuracy'; they have epoch, loss"):
        go(None, parts(), best=("accuracy", "max"))
    assert not list(tmp_path.glob("checkpoints/*/*"))


def test_sums_of_other_ranks_are_taken_over():
    """Means of a run whose ranks have become fewer have every sample once."""
    states = []
    for value in (0.1, 0.2, 0.3):
        means = Means()
        means.samples = 2
        means.add({"loss": value}, 2)
        states.append(means.state_dict())
    means = Means()
    means.load(states)
    assert means.reduce(COMM) == (6, {"loss": pytest.approx(0.2)})
    means.load([])
    assert means.reduce(COMM) == (0, {})
