"""docs/advise.md: its commands run, and print what the page says; the other pages' words on it are right."""

import re
import shlex

import pytest
from jobs import ROOT

from collectives.advise.machine import MACHINES
from collectives.advise.memory import Memory
from collectives.advise.step import Step
from collectives.cli.commands import main

PAGE = (ROOT / "docs/advise.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PAIRS = [(command, text) for (kind, command), (next_kind, text) in zip(BLOCKS, BLOCKS[1:], strict=False)
         if (kind, next_kind) == ("sh", "text")]  # fmt: skip


def test_blocks_come_in_pairs():
    assert len(PAIRS) == sum(kind == "text" for kind, _ in BLOCKS) >= 3
    assert {kind for kind, _ in BLOCKS} == {"sh", "text"}


@pytest.mark.parametrize(("command", "text"), PAIRS, ids=range(len(PAIRS)))
def test_block(command, text, capsys):
    """The text is a part of what the command prints, from the beginning of a line on; ... stands for lines left out."""
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:4] == ["python", "-m", "collectives", "advise"]
    assert main(words[3:]) == 0
    printed = capsys.readouterr().out
    at = 0
    for piece in text.split("...\n"):
        assert piece in printed[at:], printed
        at = printed.index(piece, at) + len(piece)


def test_terms_and_machines_are_described():
    for word in (*Step._fields, *Memory._fields, *MACHINES):
        assert f"`{word}`" in PAGE
