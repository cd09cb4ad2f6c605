"""docs/features.md: every statement on this library names a test that exists, and every number a source."""

import re

import pages
import pytest
from jobs import ROOT

ROWS = [row for row in pages.rows("features") if row[0]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_a_test(row):
    assert row[1]
    file, name = re.fullmatch(r"`(tests/\S+\.py)::(test_\w+)`", row[-1]).groups()
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_every_number_is_a_source():
    page = pages.text_of("features")
    sources = re.findall(r"^(\d+)\. .*\]\(https://", page.split("## Sources")[1], re.MULTILINE)
    used = {number for row in ROWS for cell in row[2:-1] for number in re.findall(r"\((\d+)\)", cell)}
    assert len(ROWS) > 35
    assert used == set(sources)
