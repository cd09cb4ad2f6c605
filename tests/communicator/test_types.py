"""Types: the stub of the methods says what they take, and type checkers find wrong calls and no others."""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import signatures
from jobs import ROOT

import collectives
from collectives import communicator
from collectives.communicator import Communicator

TYPED = Path(__file__).with_name("typed")
FILES = [*sorted((ROOT / "examples").glob("*.py")), TYPED / "correct.py", TYPED / "wrong.py"]
ABSENT = "torch|cupy|jax"  # packages that are not installed beside the type checkers
MARKED = {i for i, line in enumerate((TYPED / "wrong.py").read_text().splitlines(), 1) if "# wrong: " in line}


def test_the_stub_is_that_of_the_methods():
    """``python tests/support/signatures.py`` writes it anew."""
    assert signatures.STUB.read_text() == signatures.stub()


def declared():
    """What is declared for type checkers only, in the class: methods whose results are classes of the module."""
    tree = ast.parse(Path(communicator.communicator.__file__).read_text())
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Communicator").body
    return [method for node in body if isinstance(node, ast.If) for method in node.body]


@pytest.mark.parametrize("method", declared(), ids=lambda method: method.name)
def test_declared_methods_take_what_the_real_ones_do(method):
    signature = inspect.signature(getattr(Communicator, method.name))
    plain = [(p.name, p.default is not p.empty) for p in signature.parameters.values()]
    first = len(method.args.args) - len(method.args.defaults)
    assert plain == [(argument.arg, i >= first) for i, argument in enumerate(method.args.args)]


def test_the_package_says_that_it_is_typed():
    assert Path(collectives.__file__).with_name("py.typed").exists()
    assert len(MARKED) > 30


def mypy():
    """File and line of each of mypy's errors."""
    words = [sys.executable, "-m", "mypy", *map(str, FILES)]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(.*?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return [(ROOT / file, int(line), text) for file, line, text in found]


def pyright():
    """File and line of each of pyright's errors."""
    program = shutil.which("pyright", path=f"{ROOT}/.venvs/pyright/bin:{os.environ['PATH']}")
    assert program, "pyright is missing: make build-all"
    words = [program, "--outputjson", "--pythonpath", sys.executable, *map(str, FILES)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = [d for d in json.loads(done.stdout)["generalDiagnostics"] if d["severity"] == "error"]
    found = [d for d in found if not re.match(f'Import "({ABSENT})', d["message"])]  # as in mypy's settings
    return [(Path(d["file"]), d["range"]["start"]["line"] + 1, d["message"]) for d in found]


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_wrong_lines_are_found_and_no_others(checker):
    found = checker()
    assert [error for error in found if error[0] != TYPED / "wrong.py"] == []
    assert {line for _, line, _ in found} == MARKED
