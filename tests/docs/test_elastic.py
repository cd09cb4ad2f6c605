"""docs/elastic.md: its program survives the death that it causes, and prints what the page says."""

import re

import pytest
from jobs import LIVE_ON, ROOT, mpiexec

PAGE = (ROOT / "docs/elastic.md").read_text()
PROGRAM, COMMAND, PRINTED, *_ = re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.long
def test_the_program(tmp_path):
    (tmp_path / "elastic.py").write_text(PROGRAM.replace('"elastic-out"', repr(str(tmp_path / "out"))))
    assert COMMAND == "mpiexec --with-ft ulfm -n 4 python elastic.py\n"
    done = mpiexec("openmpi", 4, str(tmp_path / "elastic.py"), timeout=60, flags=LIVE_ON["openmpi"])
    assert done.stdout.endswith(PRINTED), done.stdout + done.stderr
    assert "3 of 4 go on from step 70" in done.stderr
    again = mpiexec("openmpi", 2, str(tmp_path / "elastic.py"), timeout=60, flags=LIVE_ON["openmpi"])
    assert again.stdout.endswith(PRINTED.replace("3 ranks", "2 ranks")), again.stdout + again.stderr  # nothing to do


def test_links():
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
