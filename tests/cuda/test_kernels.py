"""The files of the kernels: found, missing, or of another version than the library."""

import json

import pytest

from collectives.core import _cuda
from collectives.cuda import kernels


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "FOLDER", tmp_path)
    kernels._found.cache_clear()
    return tmp_path


def write(folder, **given):
    index = {"arguments": _cuda.ARGUMENTS, "kernels": _cuda.kernel_names(), "architectures": ["sm_90"], **given}
    (folder / "kernels.json").write_text(json.dumps(index))
    (folder / "kernels.fatbin").write_bytes(b"image")


def test_kernels_that_are_built(folder):
    write(folder)
    assert kernels.not_built() is None
    assert kernels.built()["architectures"] == ["sm_90"]
    assert len(kernels.built()["kernels"]) == 88


def test_kernels_that_are_not_built(folder):
    assert kernels.not_built() == "the CUDA kernels are not built: make cuda"
    assert kernels.built() == {}


@pytest.mark.parametrize("given", [{"arguments": 1}, {"kernels": ["coll_copy"]}])
def test_kernels_of_another_version(folder, given):
    write(folder, **given)
    assert kernels.not_built() == "the CUDA kernels are of another version: make cuda"
    assert kernels.load(None) == kernels.not_built()
