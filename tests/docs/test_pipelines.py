"""docs/pipelines.md: its commands and programs run, and print what the page says; its table has every schedule."""

import os
import re
import shlex
import subprocess
import sys

from jobs import ROOT

from collectives.train.pipeline.registry import SCHEDULES

PAGE = (ROOT / "docs/pipelines.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_every_block(tmp_path):
    printed, compared = "", 0
    for language, block in BLOCKS:
        if language == "text":
            assert printed == block
            compared += 1
            continue
        words = shlex.split(block)[1:]
        if language == "python":
            program = tmp_path / "program.py"
            program.write_text(block)
            words = [str(program)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env=env, timeout=60)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    assert compared == PAGE.count("```text") == 4


def test_the_table_has_every_schedule():
    assert re.findall(r"^\| `(\w+)`", PAGE, re.MULTILINE) == list(SCHEDULES)
