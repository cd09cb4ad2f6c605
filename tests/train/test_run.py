"""Run: records, log file, progress, errors."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from collectives import train
from collectives.train.run.progress import Progress, wants_bar


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
    with pytest.raises(ValueError, match="auto, bar, lines"):
        train.Run(comm=comm, progress="loud")
    with pytest.raises(ValueError, match="epochs"):
        next(train.Run(comm=comm).steps(loader(), epochs=0))
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
