"""benchmarks/train_hosts.py: it measures what it says, and its verdict is that of its figures."""

import json
import re
import subprocess
import sys

import pytest
from jobs import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from train_hosts import Result  # noqa: E402

PROGRAM = ROOT / "benchmarks/train_hosts.py"
NAMES = ["compute", "communicate", "train", "ddp", "gloo", "gloo, 1 MiB"]


def measured(*options):
    words = [sys.executable, PROGRAM, *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=290, cwd=ROOT)
    if done.returncode == 77:
        pytest.skip(done.stdout)
    return done


@pytest.mark.long
def test_each_contestant_has_a_row_and_the_link_its_rate(tmp_path):
    file = tmp_path / "found.json"
    done = measured("--layers", "2", "--width", "512", "--rounds", "2", "--steps", "1", "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^([\w, ]+?) +[\d.]+ +[\d.]+(?: |$)", done.stdout, re.MULTILINE) == NAMES, done.stdout
    result = json.loads(file.read_text())["results"]["openmpi"]
    assert result["nbytes"] == 2 * 4 * (512 * 512 + 512)
    times = result["times"]
    assert list(times) == NAMES
    assert all(len(values) == 2 for values in times.values())
    bound = (result["nbytes"] - (256 << 10)) / 25e6
    assert all(min(values) > 0.9 * bound for name, values in times.items() if name != "compute"), times


@pytest.mark.alone
@pytest.mark.slow
def test_half_of_the_communication_is_hidden():
    done = measured("--check", "--rounds", "7")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"train": [1.6]}, ["m: train shows 0.60 [0.60, 0.60] of the communication, limit 0.5"]),
        ({"gloo": [1.3]}, ["m: train/gloo 1.08 [1.08, 1.08], limit 1"]),
        ({"compute": [1.4], "train": [1.7]}, ["m: computation over communication is 1.40, not about 1.0"]),
    ],
)
def test_what_is_beyond_the_limits(changed, words):
    times = {"compute": [1.0], "communicate": [1.0], "train": [1.4], "ddp": [1.3], "gloo": [1.8], "gloo, 1 MiB": [1.75]}
    result = Result("m", 1, 1, 1, {name: 3 * values for name, values in (times | changed).items()})
    assert result.beyond(1.0) == words


@pytest.mark.parametrize(
    ("options", "words"), [(["--mpis", "lam"], "--mpis: lam"), (["--rate", "fast"], "not like 200mbit")]
)
def test_bad_options(options, words):
    done = measured(*options)
    assert done.returncode == 2
    assert words in done.stderr
