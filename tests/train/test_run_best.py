"""The best epoch of a run: which it is, that its checkpoint stays, and patience. On one rank."""

import contextlib
from types import SimpleNamespace

from lone_runs import COMM, go, names, parts

from collectives import train
from collectives.train.run.keeping import Keeping
from collectives.train.run.states import OWN, RUN


def accuracies(values):
    values = iter(values)
    return lambda: {"accuracy": next(values)}


def test_the_best_epoch_is_kept(tmp_path):
    run = go(tmp_path, parts(), epochs=5, best=("accuracy", "max"), keep=1,
             evaluate=accuracies([0.1, 0.5, 0.5, float("nan"), 0.2]))  # fmt: skip
    assert run.best == {"value": 0.5, "step": 6}
    assert names(tmp_path) == ["step-000000006", "step-000000015"]
    run = go(tmp_path, parts(), epochs=6, best=("accuracy", "max"), keep=1, evaluate=accuracies([0.4]))
    assert run.best == {"value": 0.5, "step": 6}
    assert names(tmp_path) == ["step-000000006", "step-000000018"]


def test_the_best_is_kept_if_its_epoch_ends_within_a_step(tmp_path):
    """Its checkpoint waits for the end of the step, and that one is kept."""

    def grouped(epochs, values):
        state = parts(40)
        net, opt = train.distribute(state["net"], state["opt"], comm=COMM)
        run = train.Run(
            tmp_path, comm=COMM, state={**state, "net": net, "opt": opt}, evaluate=accuracies(values),
            best=("accuracy", "max"), progress=None, checkpoint_every=4, keep=2,
        )  # fmt: skip
        for xs, ys in run.steps(state["data"], epochs=epochs):
            last = run.step % 4 == 3
            with contextlib.nullcontext() if last else opt.strategy.no_sync():
                train.CrossEntropyLoss()(net(xs), ys).backward()
            if last:
                opt.step()
                opt.zero_grad()
        return run

    run = grouped(3, [1.0, 0.5, 0.5])
    assert (run.best, run.best_checkpoint) == ({"value": 1.0, "step": 10}, 12)
    assert names(tmp_path) == ["step-000000012", "step-000000028", "step-000000030"]
    run = grouped(4, [0.5])
    assert run.best_checkpoint == 12
    assert "step-000000012" in names(tmp_path)


def test_the_best_may_be_infinite(tmp_path):
    run = go(tmp_path, parts(), epochs=2, best=("accuracy", "min"), evaluate=accuracies([float("inf"), 0.5]))
    assert run.best == {"value": 0.5, "step": 6}
    run = go(tmp_path / "b", parts(), epochs=1, best=("accuracy", "min"), evaluate=accuracies([float("inf")]))
    assert run.best == {"value": float("inf"), "step": 3}
    assert go(tmp_path / "b", parts(), epochs=2, best=("accuracy", "min"), evaluate=accuracies([0.5])).resumed == 3


def test_the_best_may_be_the_least(tmp_path):
    run = go(None, parts(), epochs=3, best=("accuracy", "min"), evaluate=accuracies([0.3, 0.2, 0.4]))
    assert run.best == {"value": 0.2, "step": 6}


def test_the_best_of_another_metric_does_not_count(tmp_path):
    go(tmp_path, parts(), epochs=1, best=("accuracy", "max"), evaluate=accuracies([0.9]))
    run = go(tmp_path, parts(), epochs=2, evaluate=accuracies([0.1]), checkpoint_every=3)
    assert run.best == {"value": 0.9, "step": 3}  # nothing is judged, and nothing lost
    run = go(tmp_path, parts(), epochs=3, best=("accuracy", "min"), evaluate=accuracies([0.95]))
    assert run.best == {"value": 0.95, "step": 9}


def test_patience_ends_a_run_and_survives_it(tmp_path):
    values = [0.1, 0.5, 0.4, 0.5, 0.3, 0.9]
    options = {"best": ("accuracy", "max"), "patience": 3}
    run = go(None, parts(), epochs=9, evaluate=accuracies(values), **options)
    assert (run.stopped, run.step) == ("patience", 15)
    go(tmp_path, parts(), epochs=4, checkpoint_every=3, evaluate=accuracies(values), **options)
    run = go(tmp_path, parts(), epochs=9, checkpoint_every=3, evaluate=accuracies(values[4:]), **options)
    assert (run.resumed, run.stopped, run.step) == (12, "patience", 15)


def test_a_best_that_was_lost_with_a_rank_marks_no_other_checkpoint(tmp_path):
    """The survivors have gone back behind the step that was the best, and save the next one."""
    marked = []
    run = SimpleNamespace(best_checkpoint=32, best_is_in=marked.append, position=lambda: {RUN: {}, OWN: {}})
    keeping = Keeping(tmp_path, COMM, parts(), run, None, keep=2, every=None, seconds=None, best=True)
    keeping.want_best()
    keeping.move(COMM)
    keeping.save_if_due(61, late=False)
    keeping.finish()
    assert (marked, [path.name for path in tmp_path.iterdir()]) == ([], ["step-000000061"])
