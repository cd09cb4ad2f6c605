"""benchmarks/torch_messages.py: a row and a target for each kind and size."""

import os
import re
import subprocess

from jobs import ROOT

COMMAND = ROOT / ".venvs/torch/bin/python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"
OPTIONS = ("--sizes", "8,1Mi", "--rounds", "2", "--batch", "0.2")


def measured(ranks):
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}", "OMP_NUM_THREADS": "1"}
    words = ["timeout", "-k", "5", "100", *COMMAND, str(ranks), "benchmarks/torch_messages.py", *OPTIONS]
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_rows_and_targets():
    done = measured(2)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^ *(\S+ \S+) +[\d.]+ +[\d.]+ +[\d.]+ \[", done.stdout, re.MULTILINE)
    assert rows == [f"{kind} {size}" for kind in ("ping-pong", "window") for size in ("8", "1Mi")]
    assert done.stdout.count("PASS") + done.stdout.count("FAIL") == len(rows)


def test_another_number_of_ranks_is_refused():
    done = measured(1)
    assert done.returncode != 0
    assert "start it on 2 ranks" in done.stderr
