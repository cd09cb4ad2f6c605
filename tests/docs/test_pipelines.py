"""docs/pipelines.md: its commands and programs run, and print what the page says; its table has every schedule."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from jobs import ROOT, mpiexec

from collectives.train.pipeline.registry import SCHEDULES

PAGE = (ROOT / "docs/pipelines.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def run(*words, cwd=ROOT):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=env, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_every_block(tmp_path):
    printed, compared = "", 0
    for language, block in BLOCKS:
        if language == "text":
            assert printed == block
            compared += 1
            continue
        if language == "python":
            program = tmp_path / re.match(r"# (.*)\n", block)[1]
            program.write_text(block)
            if f"python {program.name}\n" not in PAGE:
                printed = run(sys.executable, str(program), cwd=tmp_path)
        elif ranks := re.fullmatch(r"mpiexec -n (\d) python (.*)\n", block.replace("\\\n", "")):
            words = [str(tmp_path / word) if word.endswith((".py", ".json")) else word for word in ranks[2].split()]
            done = mpiexec("openmpi", int(ranks[1]), *words, timeout=300)
            assert done.returncode == 0, done.stderr
            printed = done.stdout
        else:
            printed = run(sys.executable, *shlex.split(block)[1:])
    assert compared == PAGE.count("```text") == 6


def test_the_table_has_every_schedule():
    assert re.findall(r"^\| `(\w+)`", PAGE, re.MULTILINE) == list(SCHEDULES)
