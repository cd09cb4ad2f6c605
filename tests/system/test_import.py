"""Without MPI or without a compiler's output, schedules still work; the rest says what is missing and how to get it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from jobs import ROOT

PURE = """
import sys
import collectives
from collectives.analysis import cost, draw, verify
from collectives.schedules import build, registry
assert "ring" in collectives.algorithms("allreduce")
ring = registry.find("allreduce", "ring")
assert verify.verify(ring, 5).rounds == 8
assert len(build.build(ring, 0, 5).steps) == 16
"""


def python(*arguments: str, path: Path = ROOT) -> subprocess.CompletedProcess:
    """Run Python on the package in a folder; an environment without an installed copy, which would be found instead."""
    env = {**os.environ, "PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [ROOT / ".venvs/openmpi/bin/python", *arguments], capture_output=True, text=True, env=env, cwd=path
    )


def refuses(setup: str, path: Path) -> str:
    """What asking for the Communicator raises."""
    script = f"{setup}\nimport collectives\ntry:\n    collectives.Communicator\nexcept ImportError as e:\n    print(e)"
    done = python("-c", script, path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def uncompiled(tmp_path) -> Path:
    """The package as it is before a compiler has run."""
    shutil.copytree(
        ROOT / "collectives", tmp_path / "collectives", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    return tmp_path


@pytest.mark.parametrize("hidden", ["mpi4py", "mpi4py.MPI", "collectives.core._core"])
def test_schedules_need_numpy_only(hidden):
    done = python("-c", f"import sys\nsys.modules[{hidden!r}] = None\n{PURE}")
    assert done.returncode == 0, done.stderr


def test_without_a_compiler(uncompiled):
    done = python("-c", PURE, path=uncompiled)
    assert done.returncode == 0, done.stderr
    for command in (["list"], ["show", "ring", "-p", "4"], ["verify", "ring", "-p", "1:4"]):
        done = python("-m", "collectives", *command, path=uncompiled)
        assert done.returncode == 0, done.stderr
        assert "ring" in done.stdout
    message = refuses("", uncompiled)
    assert "make build" in message
    assert "outside of the checkout" in message


def test_without_mpi4py():
    message = refuses("import sys; sys.modules['mpi4py'] = None", ROOT)
    assert "needs mpi4py" in message
    assert "pip install" in message


def test_the_wrong_transport_is_a_sentence(uncompiled):
    """The other ABI's library under this one's name, then none at all."""
    core = next((ROOT / "collectives/core").glob("_core*.so"))
    shutil.copy(core, uncompiled / "collectives/core")
    message = refuses("", uncompiled)
    assert "without a transport for that ABI" in message
    assert "COLLECTIVES_MPICC" in message
    names = {"openmpi": "mpich", "mpich": "openmpi"}
    for right, wrong in names.items():
        shutil.copy(
            ROOT / f"collectives/core/transport_{wrong}.so", uncompiled / f"collectives/core/transport_{right}.so"
        )
    message = refuses("", uncompiled)
    assert "does not load" in message or "was linked to another MPI library" in message
    assert message.count("\n") == 1


def test_dir_shows_what_is_public():
    script = """
import collectives
import collectives.train
assert dir(collectives) == sorted({*collectives.__all__, "__version__"}), dir(collectives)
assert all(hasattr(collectives, name) for name in dir(collectives))
"""
    done = python("-c", script)
    assert done.returncode == 0, done.stderr
