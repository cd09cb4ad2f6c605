"""docs/threads.md: its program, and that of docs/training.md on threads, print what the pages say."""

import re
import subprocess
import sys

import pytest
from jobs import ROOT, variables

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGE = (ROOT / "docs/threads.md").read_text()
TRAINING = BLOCK.findall((ROOT / "docs/training.md").read_text())
(_, PROGRAM), (_, COMMAND), (_, PRINTED), (_, SCRIPT) = BLOCK.findall(PAGE)
(_, LOOP), _, (_, STOPPED), *_ = TRAINING


@pytest.mark.parametrize(
    ("program", "command", "printed"), [(PROGRAM, COMMAND, PRINTED), (LOOP, SCRIPT, STOPPED)], ids=["run", "script"]
)
def test_a_program(program, command, printed, tmp_path):
    name = re.match(r"# (.*)\n", program)[1]
    (tmp_path / name).write_text(program)
    words = command.split()
    assert words[0] == "python"
    assert words[-1] == name
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=tmp_path, env=variables(), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(printed), done.stdout


def test_links():
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
