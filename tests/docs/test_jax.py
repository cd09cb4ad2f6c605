"""docs/jax.md: its programs run and print what it says, and its tables are complete."""

import json
import re

import pytest
from jobs import ROOT, mpiexec
from pages import IN_TURN

PAGE = (ROOT / "docs/jax.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PROGRAMS = {re.match(r"# (.*)\n", block)[1]: i for i, (language, block) in enumerate(BLOCKS) if language == "python"}
INSTALL = "pip install '.[mpi,jax]'\n"
LISTED = re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE, re.MULTILINE)
SIGNATURES = """
import inspect, json
import collectives.jax as cj
parameters = {name: inspect.signature(getattr(cj, name)).parameters.values() for name in cj.__all__}
print(json.dumps({name: {p.name: repr(p.default) for p in theirs} for name, theirs in parameters.items()}))
"""
needs_jax = pytest.mark.skipif(
    not (ROOT / ".venvs/jax/ready").exists(), reason="there is no .venvs/jax, which make build-all makes"
)


def test_every_block_is_executed():
    """All are programs, commands that run these, what they print, and the installation of the extra."""
    kinds = [language for language, _ in BLOCKS]
    assert len(BLOCKS) == PAGE.count("```") / 2
    assert kinds.count("python") == len(PROGRAMS)
    commands = {block for language, block in BLOCKS if language == "sh"}
    assert commands - {INSTALL} == {f"mpiexec -n 2 python {name}\n" for name in PROGRAMS} & commands
    assert kinds.count("text") == len(PROGRAMS)
    assert re.search(r"^jax = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


@pytest.mark.long
@needs_jax
@pytest.mark.parametrize("names", [[name for name in PROGRAMS if name != "late.py"], ["late.py"]], ids=len)
def test_programs(names, tmp_path):
    """One after the other in a job; the communicator of late.py is broken, so its job ends by MPI_Abort."""
    printed = ""
    for name in names:
        (tmp_path / name).write_text(BLOCKS[PROGRAMS[name]][1])
        printed += next(block for language, block in BLOCKS[PROGRAMS[name] :] if language == "text")
    done = mpiexec("jax", 2, "-c", IN_TURN, *(str(tmp_path / name) for name in names), timeout=60)
    assert done.stdout == printed, done.stderr
    assert names == ["late.py"] or done.returncode == 0, done.stderr


@needs_jax
def test_the_table_is_complete():
    done = mpiexec("jax", 1, "-c", SIGNATURES, timeout=60)
    functions = json.loads(done.stdout)
    assert {name for name, _ in LISTED} == functions.keys() - {"failure"}
    for name, shown in LISTED:
        for argument, default in re.findall(r"(\w+)(?:=([^,]*))?", shown):
            assert argument in functions[name], (name, argument)
            assert default in ("", functions[name][argument].replace("'", '"')), (name, argument)


def test_links():
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
    for path in re.findall(r"`((?:csrc|core|collectives|examples|benchmarks)/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists() or (ROOT / "collectives" / path).exists(), path
