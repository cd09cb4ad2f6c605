"""benchmarks/train_torch.py: what it measures, and that its verdict is that of its figures."""

import json

import pytest
from jobs import mpiexec


@pytest.mark.alone
@pytest.mark.slow
def test_train_is_the_fastest_way_to_train(tmp_path):
    file = tmp_path / "found.json"
    options = ("--models", "mlp17", "--rounds", "7", "--check", "--json", str(file))
    done = mpiexec("torch", 2, "benchmarks/train_torch.py", *options, timeout=240)
    times = json.loads(file.read_text())["results"]["mlp17"]
    assert set(times) == {"train", "ddp", "gloo", "hvd"}
    assert all(len(values) == 7 and all(0 < seconds < 10 for seconds in values) for values in times.values())
    assert done.returncode == 0, done.stdout + done.stderr


def test_bad_options():
    done = mpiexec("torch", 1, "benchmarks/train_torch.py", "--models", "rnn", timeout=60)
    assert done.returncode == 2
    assert "--models: unknown: rnn" in done.stderr
