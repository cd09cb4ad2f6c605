"""Run: records, log file, progress, errors."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from collectives import train
from collectives.train.run.progress import Progress, wants_bar
from collectives.train.run.strategies import Strategies


def loader(n=10, batch=4):
    return train.Loader((np.zeros((n, 2)), np.zeros(n, int)), batch, comm=MPI.COMM_SELF)


def test_records_are_means_over_samples():
    data = loader()
    run = train.Run(comm=MPI.COMM_SELF, evaluate=lambda: {"accuracy": 0.5})
    for x, _ in run.steps(data, epochs=2):
        run.log(loss=float(len(x)))
    assert [(r["epoch"], r["step"], r["samples"], r["accuracy"]) for r in run.records] == [
        (1, 3, 10, 0.5),
        (2, 6, 20, 0.5),
    ]
    assert run.records[0]["loss"] == pytest.approx((4 * 4 + 4 * 4 + 2 * 2) / 10)
    assert 0 <= run.records[0]["seconds"] <= run.records[1]["seconds"]


def test_records_within_an_epoch():
    run = train.Run(comm=MPI.COMM_SELF, every=2)
    for _ in run.steps(loader(n=10, batch=2), epochs=1):
        run.log(loss=1)
    assert [(r["epoch"], r["step"]) for r in run.records] == [(0, 2), (0, 4), (1, 5)]


def test_log_file(tmp_path):
    net = train.mlp((2,), 2, rng=np.random.default_rng(0))
    opt = train.SGD(net.parameters(), lr=0.5)
    for name in ("a", "b"):
        state = {"net": net, "opt": opt}
        run = train.Run(tmp_path / "deep" / "out", comm=MPI.COMM_SELF, name=name, state=state, settings={"k": 1})
        for _ in run.steps(loader(), epochs=3):
            run.log(loss=2.0)
    log = train.read_log(tmp_path / "deep" / "out" / "log.json")
    assert set(log["runs"]) == {"a", "b"}
    assert log["runs"]["b"]["records"] == run.records
    assert log["runs"]["b"]["settings"] == {"k": 1}
    assert log["runs"]["b"]["ranks"] == 1
    assert run.records[-1]["lr"] == 0.5
    assert [p.name for p in (tmp_path / "deep" / "out").iterdir()] == ["log.json"]


def test_not_a_number_ends_the_run():
    run = train.Run(comm=MPI.COMM_SELF, name="mine")
    steps = run.steps(loader(n=4), epochs=5)
    next(steps)
    run.log(loss=float("nan"))
    with pytest.raises(FloatingPointError, match="mine: loss is nan at step 1"):
        next(steps)


def evaluated(values, **options):
    """The last record of a run on two ranks whose evaluation returns `values`; or what each of them raises."""

    def rank(comm):
        data = train.Loader((np.zeros((8, 2)),), 4, comm=comm)
        run = train.Run(comm=comm, evaluate=lambda: values, progress="lines", **options)
        try:
            list(run.steps(data, epochs=1))
        except Exception as error:
            return error
        return run.records[-1]

    return train.threads.run(2, rank, timeout=10)


def test_numbers_of_numpy_are_logged_as_pythons(tmp_path):
    """JSON has no numbers of NumPy: rank 0 raised an error that the others did not, which waited for it for ever."""
    found = {"a": np.float32(0.5), "b": np.int64(3), "c": np.full((1,), 2.0), "d": True}
    record, _ = evaluated(found, out=tmp_path)
    assert {key: (record[key], type(record[key])) for key in found} == {
        "a": (0.5, float), "b": (3, int), "c": (2.0, float), "d": (True, bool),
    }  # fmt: skip
    assert train.read_log(tmp_path / "log.json")["runs"]["train"]["records"][-1]["a"] == 0.5


@pytest.mark.parametrize(
    ("found", "kind", "text"),
    [
        (None, TypeError, "a dict of numbers, not None"),
        ({"a": np.zeros(3)}, TypeError, "'a' is array"),
        ({"a": "good"}, TypeError, "'a' is 'good'"),
        ({(1, 2): 3}, TypeError, r"named by texts, not by \(1, 2\)"),
        ({"step": 3}, ValueError, "'step' is a value of the record that the run sets itself"),
    ],
)
def test_an_evaluation_that_finds_no_numbers(found, kind, text):
    for error in evaluated(found):
        assert type(error) is kind
        assert re.search(text, str(error))


@pytest.mark.parametrize(("name", "values"), [("checkpoint_every", [2, 3]), ("every", [2, 3]), ("name", ["a", "b"])])
def test_options_that_differ_on_ranks(tmp_path, name, values):
    """The ranks waited for each other in different collectives, after many steps."""

    def rank(comm):
        data = train.Loader((np.zeros((8, 2)),), 4, comm=comm)
        with pytest.raises(ValueError, match="Run: ") as error:
            train.Run(tmp_path, comm=comm, state={"data": data}, **{name: values[comm.rank]})
        return str(error.value)

    _, told = train.threads.run(2, rank, timeout=10)
    assert told == f"Run: {name} is {values[1]} on rank 1, {values[0]} on rank 0"


def with_rate():
    """What a run can set the learning rate of."""
    return SimpleNamespace(lr=0.1, state_dict=dict, load_state_dict=dict)


@pytest.mark.parametrize("name", ["evaluate", "lr"])
def test_a_function_that_only_one_rank_gives(name):
    """The others did not come to what it communicates, or went on with another rate."""

    def rank(comm):
        given = {name: lambda *_: 0.1} if comm.rank == 0 else {}
        with pytest.raises(ValueError, match="Run: ") as error:
            train.Run(comm=comm, state={"opt": with_rate()}, **given)
        return str(error.value)

    assert train.threads.run(2, rank, timeout=10)[1] == f"Run: {name} is None on rank 1, a function on rank 0"


def test_the_rate_counts_samples_that_are_left_out():
    data, seen = train.Loader((np.zeros((100, 2)),), 64, comm=MPI.COMM_SELF, drop_last=True), []

    def rate(samples):
        seen.append(samples)
        return 0.1

    run = train.Run(comm=MPI.COMM_SELF, state={"opt": with_rate()}, lr=rate, progress=None)
    assert len(list(run.steps(data, epochs=3))) == 3
    assert seen == [0, 64, 100, 164, 200, 264]


@pytest.mark.parametrize("strategy", [train.AllReduce, train.LocalSGD])
def test_a_run_that_was_made_before_distribute(strategy, tmp_path):
    """Its checkpoints lacked the strategy, and what the strategy lets differ of all ranks but one."""

    def rank(comm):
        data = train.Loader((np.zeros((8, 2)), np.zeros(8, int)), 4, comm=comm)
        net = train.mlp((2,), 2, rng=np.random.default_rng(0))
        opt = train.SGD(net.parameters(), lr=0.5)
        run = train.Run(tmp_path, comm=comm, state={"net": net, "opt": opt, "data": data}, checkpoint_every=1)
        train.distribute(net, opt, strategy(), comm=comm)
        with pytest.raises(ValueError, match="make the run after distribute"):
            next(run.steps(data, epochs=1))

    train.threads.run(2, rank, timeout=10)


def test_names_of_the_run_are_not_logged():
    run = train.Run(comm=MPI.COMM_SELF)
    next(run.steps(loader(), epochs=1))
    with pytest.raises(ValueError, match="'epoch' is a value of the record"):
        run.log(epoch=3)


def test_a_run_of_another_name_with_the_same_folder(tmp_path):
    """The name with a blank and the one without have the same folder: the second run had nothing left to do."""
    for name in ("a b", "a_b"):
        data = loader()
        how = {"comm": MPI.COMM_SELF, "state": {"data": data}, "name": name, "checkpoint_every": 1}
        if name == "a_b":
            with pytest.raises(ValueError, match="is of the run 'a b'"):
                train.Run(tmp_path, **how)
        else:
            list(train.Run(tmp_path, **how).steps(data, epochs=1))


def test_an_error_of_a_callback_is_raised_on_all_ranks():
    class Broken(train.Callback):
        def record(self, record):
            raise KeyError("key")

    own, other = evaluated({}, callbacks=[Broken()])
    assert (type(own), type(other), str(other)) == (KeyError, ValueError, "rank 0: KeyError: 'key'")


def test_goes_on_from_the_loader_position():
    data = loader()
    data.load_state_dict({**data.state_dict(), "epoch": 1, "position": 8})
    assert len(list(train.Run(comm=MPI.COMM_SELF).steps(data, epochs=2))) == 1
    assert list(train.Run(comm=MPI.COMM_SELF).steps(data, epochs=2)) == []


def test_bad_arguments(tmp_path):
    comm = MPI.COMM_SELF
    with pytest.raises(ValueError, match="state_dict"):
        train.Run(comm=comm, state={"net": 3})
    with pytest.raises(ValueError, match="every"):
        train.Run(comm=comm, every=0)
    for count in ("every", "checkpoint_every", "keep"):
        with pytest.raises(TypeError, match=f"{count} must be an integer, not 2.5"):
            train.Run(tmp_path, comm=comm, state={"data": loader()}, **{count: 2.5})
    for name in ("", ".", "..", 5):
        with pytest.raises(ValueError, match="name must be a text"):
            train.Run(comm=comm, name=name)
    with pytest.raises(TypeError, match="not JSON serializable"):
        train.Run(tmp_path, comm=comm, settings={"a": np.zeros(2)})
    with pytest.raises(ValueError, match="auto, bar, lines"):
        train.Run(comm=comm, progress="loud")
    with pytest.raises(ValueError, match="epochs"):
        next(train.Run(comm=comm).steps(loader(), epochs=0))
    with pytest.raises(TypeError, match="epochs must be an integer, not 1.5"):
        next(train.Run(comm=comm).steps(loader(), epochs=1.5))
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        train.Run(tmp_path / "file", comm=comm)
    (tmp_path / "log.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        train.read_log(tmp_path / "log.json")
    (tmp_path / "log.json").write_text(json.dumps({"format": 0}))
    with pytest.raises(ValueError, match="format 1"):
        train.read_log(tmp_path / "log.json")


def test_lines_for_a_log(capsys):
    progress = Progress("name", 100, 0, 25, bar=False)
    for epoch in range(1, 26):
        progress.epoch({"epoch": epoch, "loss": 0.5, "accuracy": 0.25, "seconds": 1.0})
    lines = capsys.readouterr().out.splitlines()
    assert 8 <= len(lines) <= 14
    assert lines[-1] == "name        epoch 25/25  loss 0.5000  accuracy 0.2500  1.0 s"


def test_a_run_that_shows_nothing(capsys):
    run = train.Run(comm=MPI.COMM_SELF, progress=None)
    for _ in run.steps(loader(), epochs=2):
        run.log(loss=0.5)
    assert capsys.readouterr() == ("", "")


def test_evaluation_is_without_dropout_and_draws_nothing():
    """Layers that were for evaluation before stay so."""
    rng, random = np.random.default_rng(0), train.Random(0, "dropout", 0)
    dropouts = [train.Dropout(0.5, random=random) for _ in range(2)]
    net = train.Sequential(*dropouts, train.Linear(8, 2, rng=rng))
    dropouts[1].training = False
    x, before = rng.standard_normal((50, 8)), random.state_dict()
    y = net.layers[-1].forward(x.astype(net.dtype))[0].argmax(axis=1)
    assert train.evaluate(net, x, y, comm=MPI.COMM_SELF) == {"accuracy": 1.0}
    assert random.state_dict() == before
    assert [dropout.training for dropout in dropouts] == [True, False]


def test_a_bar_for_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    assert wants_bar("auto")
    assert not wants_bar("lines")
    monkeypatch.undo()
    run = train.Run(comm=MPI.COMM_SELF, name="mine", progress="bar")
    for _ in run.steps(loader(), epochs=2):
        run.log(loss=0.5)
    out, err = capsys.readouterr()
    assert out == ""
    assert "mine: 100%" in err
    assert "loss=0.5000" in err


def test_a_bar_without_tqdm(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    assert not wants_bar("auto")
    with pytest.raises(ImportError, match="pip install tqdm"):
        wants_bar("bar")


def test_import_needs_no_mpi():
    """A process that only builds networks must not start MPI, nor load the packages of the extras."""
    code = (
        "import sys\n"
        "sys.modules['mpi4py'] = sys.modules['sklearn'] = sys.modules['matplotlib'] = sys.modules['tqdm'] = None\n"
        "import collectives.train as train, numpy as np\n"
        "train.mlp((3,), 2, rng=np.random.default_rng(0))(np.ones((1, 3)))\n"
        "assert 'collectives.core._core' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_strategies_of_several_optimizers_are_as_one():
    def opt(strategy, within=False):
        strategy.buckets = SimpleNamespace(accumulating=within)
        return SimpleNamespace(strategy=strategy)

    def told(**objects):
        one = Strategies(objects)
        return one.lockstep, one.accumulating, one.hands_out

    synchronous, free = opt(train.AllReduce()), opt(train.AsyncParameterServer(), within=True)
    assert told(net=SimpleNamespace()) == (True, False, False)
    assert told(opt=synchronous) == (True, False, False)
    assert told(opt=free, same=free) == (False, True, True)
    assert told(opt=free, other=synchronous) == (False, True, False)
