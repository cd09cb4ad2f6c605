"""Whoever is told to install this project is told of its checkout: `collectives` on PyPI is another project."""

import re
import subprocess
from pathlib import Path

import pytest
from jobs import ROOT

TEXTS = (".py", ".pyx", ".pxi", ".md", ".toml", ".yml", ".yaml", ".txt", ".sh", ".cfg", "Makefile", "run")
EXTRAS = re.findall(
    r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n\n")[0],
    re.MULTILINE,
)  # fmt: skip


def hints(text):
    """What `pip install` is given wherever a text says it, as words."""
    found = re.findall(r"pip(?: --?[\w-]+)* install ([^\n`]*)", text)
    return [re.split(r"[\s,;()]+", told) for told in found]


def by_name(words):
    """The words by which pip would fetch a project named collectives."""
    return [word for word in words if re.fullmatch(r"collectives(\[.*|[=<>~!].*)?", word.strip("'\""))]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("run pip install 'collectives[torch]' first", ["'collectives[torch]'"]),
        ("python -m pip install --upgrade collectives", ["collectives"]),
        ("'pip install numpy, collectives>=1'", ["collectives>=1'"]),
        ("pip install ./collectives, or pip install -e .", []),
    ],
)
def test_what_counts_as_its_name(text, wrong):
    assert [word for words in hints(text) for word in by_name(words)] == wrong


def test_every_hint_names_the_checkout():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    here = Path(__file__).name
    files = [ROOT / name for name in listed.splitlines() if name.endswith(TEXTS) and not name.endswith(here)]
    told = {file: hints(file.read_text()) for file in files}
    assert {file: bad for file, found in told.items() if (bad := [w for words in found for w in by_name(words)])} == {}
    every = " ".join(word for found in told.values() for words in found for word in words)
    extras = set(re.findall(r"\.\[(\w+)\]", every))
    assert "torch" in extras
    assert extras <= set(EXTRAS)
    assert sum(map(len, told.values())) > 8
