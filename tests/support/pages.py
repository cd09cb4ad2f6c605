"""Pages of docs/: their blocks, executed in order, and the cells of their tables."""

import os
import re
import subprocess
from pathlib import Path

from jobs import ROOT, variables

#: A program that runs programs, its arguments, one after the other: what they import is imported once.
IN_TURN = "import runpy, sys\nfor program in sys.argv[1:]: runpy.run_path(program, run_name='__main__')"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def text_of(name: str) -> str:
    """The text of a page."""
    return (ROOT / f"docs/{name}.md").read_text()


def run(line: str, environment: str, folder: Path) -> str:
    """What a line of a ``sh`` block prints in an environment of .venvs."""
    path = f"{ROOT}/.venvs/{environment}/bin:{os.environ['PATH']}"
    env = variables({"PATH": path, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"})
    words = ["timeout", "-k", "5", "120", "sh", "-c", line]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def execute(name: str, environment: str, folder: Path) -> None:
    """Save the programs of a page by the names in their first lines, run its commands, compare what it says they print.

    A ``text`` block is what each line of the ``sh`` block before it prints.
    """
    printed: list[str] = []
    for language, block in BLOCK.findall(text_of(name)):
        if language == "python":
            (folder / re.match(r"# (\w+\.py)\n", block)[1]).write_text(block)
        elif language == "sh":
            printed = [run(line, environment, folder) for line in block.splitlines()]
        else:
            assert language == "text"
            assert printed
            assert printed == [block] * len(printed)


def rows(name: str) -> list[list[str]]:
    """The cells of all rows of a page's tables, the rows of their heads included."""
    lines = [line for line in text_of(name).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def code(cells: list[str]) -> str:
    """What cells have in backticks, joined by line ends."""
    return "\n".join(word for cell in cells for word in re.findall(r"`([^`]+)`", cell))
