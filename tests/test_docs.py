"""The programs of docs/pitfalls.md, docs/profiling.md and docs/errors.md run, and show what the pages say."""

import re

import pytest
from conftest import ROOT, mpiexec

PROFILING = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/profiling.md").read_text(), re.DOTALL | re.MULTILINE)
PITFALLS = (ROOT / "docs/pitfalls.md").read_text()


@pytest.mark.parametrize("block", PROFILING, ids=range(len(PROFILING)))
def test_profiling(block, tmp_path):
    (tmp_path / "prog.py").write_text(block)
    done = mpiexec("openmpi", 2, str(tmp_path / "prog.py"), timeout=60)
    assert done.returncode == 0, done.stderr


def rows(text):
    """The lines of the table: what, as it is, with ours."""
    return {line[:44].strip(): (line[45:69].strip(), line[70:].strip()) for line in text.splitlines()[2:] if line}


def test_pitfalls(mpi):
    done = mpiexec(mpi, 3, "examples/pitfalls.py", timeout=60)
    assert done.returncode == 0, done.stderr
    found, shown = rows(done.stdout), rows(re.search(r"```text\n(.*?)```", PITFALLS, re.DOTALL)[1])
    assert found.keys() == shown.keys()
    for what, (theirs, ours) in shown.items():
        assert found[what][1] == ours, what
        if mpi == "openmpi" and "bits" not in what and what:
            assert found[what][0] == theirs, what


def test_errors():
    """Sorted, for ranks may wait for each other in another order, and see an error before others have raised it."""
    page = (ROOT / "docs/errors.md").read_text()
    done = mpiexec("openmpi", 3, "examples/errors.py", timeout=60)
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1]
    plain = [
        [re.sub(r"; raised \w+$", "", line) for line in sorted(text.splitlines()) if line.strip("\0 ")]
        for text in (done.stdout.split("-----")[0].replace(f"{ROOT}/", ""), shown)
    ]
    assert plain[0] == plain[1]


def test_the_command_on_the_page():
    assert "mpiexec -n 3 python examples/pitfalls.py" in PITFALLS
    assert (ROOT / "examples/pitfalls.py").exists()
