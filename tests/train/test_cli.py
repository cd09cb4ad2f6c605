"""The driver in one process: results, files, and what it says to bad input."""

import argparse
import json

import numpy as np
import pytest
from mpi4py import MPI

from collectives import train
from collectives.train import blas_threads as threads
from collectives.train import cli

QUICK = ["--epochs", "2", "--batch", "64"]


def parse(*options):
    parser = argparse.ArgumentParser(prog="train")
    cli.add_arguments(parser)
    return parser.parse_args(options)


def main(*options):
    return cli.main(parse(*options), MPI.COMM_SELF)


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = 0.2 * rng.random((60, 6, 6))
    x[np.arange(60), 2 * y] += 1  # a bright row, where the label says
    np.savez(tmp_path / "images.npz", x=x, y=y)
    return str(tmp_path / "images.npz")


def test_files(tmp_path, capsys):
    assert main(*QUICK, "--out", str(tmp_path)) == 0
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    run = json.loads((tmp_path / "log.json").read_text())["runs"]["allreduce"]
    assert run["settings"]["epochs"] == 2
    last = run["records"][-1]
    assert last["epoch"] == 2
    assert last["samples"] == 2 * 1442
    assert set(last) == {"epoch", "step", "samples", "seconds", "lr", "loss", "accuracy"}
    out = capsys.readouterr().out
    assert "digits: 1442 training and 355 test samples, 10 classes" in out
    assert f"test accuracy {last['accuracy']:.4f}" in out
    assert "the same bits" in out


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_own_data(images, model, capsys):
    assert main("--data", images, "--model", model, "--epochs", "15", "--batch", "10", "--dtype", "float64") == 0
    assert "test accuracy 1.0000" in capsys.readouterr().out


def test_the_model_follows_the_data(tmp_path, images, capsys):
    np.savez(tmp_path / "flat.npz", x=np.eye(20)[np.arange(40) % 20], y=np.arange(40) % 2)
    main("--data", str(tmp_path / "flat.npz"), "--epochs", "1")
    main("--data", images, "--epochs", "1")
    out = capsys.readouterr().out
    assert out.index("mlp, float32") < out.index("cnn, float32")


def test_same_seed_same_bits(tmp_path, images):
    def losses(seed):
        main("--data", images, "--epochs", "3", "--seed", seed, "--out", str(tmp_path / "out"))
        records = train.read_log(tmp_path / "out" / "log.json")["runs"]["allreduce"]["records"]
        return [r["loss"] for r in records]

    assert losses("1") == losses("1") != losses("2")


def test_curve_of_several_runs(tmp_path):
    records = [{"seconds": i, "samples": 10 * i, "loss": 1 / (i + 1), "accuracy": 0.5} for i in range(30)]
    for r in records:
        r["accuracy_min"], r["accuracy_max"] = 0.4, 0.6
    runs = {name: {"settings": {}, "records": records[: 5 + 5 * i]} for i, name in enumerate("abcde")}
    train.draw_curves({"format": 1, "runs": runs}, tmp_path / "curve.png", "title")
    assert (tmp_path / "curve.png").stat().st_size > 10_000


def test_curve_without_accuracies(tmp_path):
    records = [{"seconds": i, "samples": 10 * i, "loss": 1 / (i + 1)} for i in range(5)]
    train.draw_curves(
        {"format": 1, "runs": {"a": {"settings": {}, "records": records}}}, tmp_path / "curve.png", "title"
    )
    assert (tmp_path / "curve.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "absent.npz"], "cannot read absent.npz"),
        (["--momentum", "1"], "--momentum must be below 1"),
        (["--lr", "1e30", "--epochs", "2"], "the gradient of 0.weight is not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_errors(options, message, capsys):
    assert main(*options) == 2
    err = capsys.readouterr().err
    assert err.startswith("train: error: ")
    assert message in err


def test_wrong_data_for_the_cnn(tmp_path, capsys):
    np.savez(tmp_path / "flat.npz", x=np.eye(20), y=np.arange(20) % 2)
    assert main("--data", str(tmp_path / "flat.npz"), "--model", "cnn") == 2
    assert "the cnn takes images" in capsys.readouterr().err


def test_out_that_is_a_file(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main("--out", str(tmp_path / "file")) == 2
    assert "file" in capsys.readouterr().err


def test_out_without_matplotlib_is_told_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main("--out", str(tmp_path)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "pip install matplotlib" in err


@pytest.mark.parametrize(
    "options",
    [
        ["--epochs", "0"],
        ["--batch", "-1"],
        ["--batch", "2.5"],
        ["--lr", "0"],
        ["--lr", "nan"],
        ["--weight-decay", "-1"],
        ["--model", "rnn"],
        ["--shard", "none"],
        ["--dtype", "float16"],
        ["--scale-lr", "cubic"],
    ],
)
def test_bad_options(options, capsys):
    with pytest.raises(SystemExit) as end:
        parse(*options)
    assert end.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_help_is_readable(capsys):
    with pytest.raises(SystemExit):
        parse("-h")
    out = capsys.readouterr().out
    for option in ("--data", "--shard", "--batch", "--strategy", "--option", "--list", "--no-control", "--out"):
        assert option in out


def test_threads(monkeypatch, tmp_path):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setattr(threads, "CPU_MAX", tmp_path / "cpu.max")
    assert threads.threads_per_rank(MPI.COMM_SELF) == 6
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert threads.threads_per_rank(MPI.COMM_SELF) == 2
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert threads.threads_per_rank(MPI.COMM_SELF) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert threads.threads_per_rank(MPI.COMM_SELF) == 6


def result(tmp_path, *options):
    """The file of --json after a run with these options."""
    assert main(*QUICK, *options, "--json", str(tmp_path / "result.json")) == 0
    return json.loads((tmp_path / "result.json").read_text())


def test_it_goes_on(tmp_path, capsys):
    """To the bits of a run without an end in between; the log has all records."""
    saving = ["--out", str(tmp_path / "out"), "--checkpoint-every", "10"]
    whole = result(tmp_path, "--epochs", "4")
    half = result(tmp_path, "--epochs", "2", *saving)
    rest = result(tmp_path, "--epochs", "4", *saving, "--resume")
    assert "allreduce: goes on from the checkpoint of step 46" in capsys.readouterr().out
    assert whole.pop("seconds") > 0
    assert rest.pop("seconds") > half["seconds"]
    assert rest == whole != half
    log = (tmp_path / "out" / "log.json").read_text()
    assert [record["epoch"] for record in json.loads(log)["runs"]["allreduce"]["records"]] == [1, 2, 3, 4]
    for options in (saving, saving[:2], [*saving, "--strategy", "nocomm"]):
        assert main(*QUICK, *options) == 2
        assert "has checkpoints of an earlier run: go on from there with --resume" in capsys.readouterr().err
    assert (tmp_path / "out" / "log.json").read_text() == log


def test_the_result_as_json(tmp_path):
    found = result(tmp_path, "--seed", "3")
    assert list(found) == [
        "strategy", "ranks", "seed", "accuracy", "seconds", "steps", "samples", "bytes_sent", "weights_sha256",
        "stopped",
    ]  # fmt: skip
    assert (found["strategy"], found["ranks"], found["seed"], found["stopped"]) == ("allreduce", 1, 3, None)
    assert (found["steps"], found["samples"]) == (46, 2 * 1442)
    assert 0.5 < found["accuracy"] <= 1
    assert len(found["weights_sha256"]) == 64
    again, other = result(tmp_path, "--seed", "3"), result(tmp_path, "--seed", "4")
    assert again["weights_sha256"] == found["weights_sha256"] != other["weights_sha256"]


def test_bytes_sent_are_those_of_the_buckets(tmp_path, images):
    """On one rank, too: what the strategy hands over. Without communication, that is the first broadcast."""
    options = ["--data", images, "--model", "mlp", "--batch", "16"]
    found = result(tmp_path, *options)
    net = train.mlp((1, 6, 6), 3, rng=np.random.default_rng(0))
    sizes = [p.data.nbytes for p in net.parameters()]
    alone = result(tmp_path, *options, "--strategy", "nocomm")
    assert alone["bytes_sent"] == [sum(sizes)]
    per_step = (found["bytes_sent"][0] - sum(sizes)) / found["steps"]
    assert per_step == sum(sizes) + 6 * 8  # and the number of samples, and five numbers on which the ranks agree


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--resume"], "need a folder"),
        (["--checkpoint-every", "3"], "need a folder"),
        (["--json", "/absent/result.json"], "cannot write /absent/result.json: there is no directory"),
    ],
)
def test_files_that_cannot_be(options, words, capsys):
    assert main(*options) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert out == ""
