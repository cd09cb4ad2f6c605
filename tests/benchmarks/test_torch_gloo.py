"""benchmarks/torch_gloo.py: what it measures, and that its targets are those of its figures."""

import json
import re
import statistics
import subprocess

import pytest
from jobs import ROOT, mpiexec, variables

OPTIONS = ("--sizes", "8,2Mi", "--buckets", "3x1Ki", "--rounds", "3", "--batch", "0.2", "--models", "mlp")


@pytest.mark.long
def test_figures_and_targets(tmp_path):
    file = tmp_path / "found.json"
    done = mpiexec("torch", 2, "benchmarks/torch_gloo.py", *OPTIONS, "--check", "--json", str(file), timeout=120)
    found = json.loads(file.read_text())
    ratios = {}
    for kind, rows in found["results"].items():
        for what, times in rows.items():
            assert len(times["collectives"]) == len(times["gloo"]) == 3
            assert all(0 < seconds < 10 for seconds in (*times["collectives"], *times["gloo"]))
            rounds = [ours / gloo for ours, gloo in zip(times["collectives"], times["gloo"], strict=True)]
            ratios[kind, what] = statistics.median(rounds)
    values = [target["value"] for target in found["targets"]]
    small, large, mlp = ratios["all_reduce", "8"], ratios["all_reduce", "2Mi"], ratios["DDP", "DDP mlp"]
    assert values == pytest.approx([max(small, large), ratios["buckets", "3x1Ki"], mlp, small, large])
    assert [target["most"] for target in found["targets"]] == [1, 1, 1, 0.08, 0.3]
    missed = any(target["value"] > target["most"] for target in found["targets"])
    assert done.returncode == int(missed), done.stderr
    assert done.stdout.count("PASS") + done.stdout.count("FAIL") == 5
    assert done.stdout.count("FAIL") == sum(target["value"] > target["most"] for target in found["targets"])


def test_bad_options():
    done = mpiexec("torch", 1, "benchmarks/torch_gloo.py", "--models", "rnn", timeout=60)
    assert done.returncode == 2
    assert "--models: rnn: neither mlp nor cnn" in done.stderr


@pytest.mark.slow
def test_its_commands_run_as_they_stand():
    """Those of its docstring, but for the one that makes the environment; with options that make them short."""
    page = (ROOT / "benchmarks/torch_gloo.py").read_text().split('"""')[1]
    export, command = re.findall(r"^    ((?:export|mpiexec -n 2) .*)$", page, re.MULTILINE)[:2]
    clean = {name: value for name, value in variables().items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    line = f"{export}; timeout 100 {command} {' '.join(OPTIONS)}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\s*3x1Ki .*", done.stdout, re.MULTILINE), done.stdout
