"""Fixtures for all tests, and which of the three MPIs a test that is marked ``in_turn`` is quick on."""

import os
import re
import zlib
from pathlib import Path

import pytest
from jobs import MPIS
from kernel_lib import FLAGS, SOURCES, Kernels, build, compiling
from slurm import Slurm

os.environ.pop("PYTHONUNBUFFERED", None)  # or a line comes in pieces, between which a launcher puts another rank's
pytest.register_assert_rewrite("torch_jobs")


@pytest.fixture(params=MPIS)
def mpi(request) -> str:
    """Each of the three MPIs in turn."""
    return request.param


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A Slurm of two nodes; where there can be none the test is skipped, with the reason."""
    try:
        made = Slurm(tmp_path_factory.mktemp("slurm"))
    except RuntimeError as e:
        pytest.skip(str(e))
    with made:
        yield made


def pytest_collection_modifyitems(items):
    """Make a test that is marked ``in_turn`` a slow one on two of the MPIs: which of them differs from test to test."""
    for item in items:
        on = getattr(item, "callspec", None) and item.callspec.params.get("mpi")
        if on and item.get_closest_marker("in_turn"):
            name = re.sub("^tests/(?!attack/).*/", "tests/", item.nodeid)  # the same wherever the module lies
            if MPIS[zlib.crc32(name.replace(on, "").encode()) % len(MPIS)] != on:
                item.add_marker("slow")


@pytest.fixture(scope="session", autouse=True)
def kernels_under_way(request, tmp_path_factory):
    """Compiles the kernels while the first tests run, if any test will need them."""
    if not any("kernel_objects" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield None
        return
    wait = compiling(tmp_path_factory.mktemp("kernels"), SOURCES, FLAGS)
    yield wait
    wait()


@pytest.fixture(scope="session")
def kernel_objects(kernels_under_way) -> list[Path]:
    """The kernels, compiled once for their own tests and all drivers in C."""
    return kernels_under_way()


@pytest.fixture(scope="module")
def kernels(tmp_path_factory, kernel_objects) -> Kernels:
    """The kernels in a library of their own."""
    return Kernels(build(tmp_path_factory.mktemp("library"), kernel_objects))


def pytest_terminal_summary(terminalreporter):
    """Say on which instruction sets the kernels ran on ranks (tests/core/test_isas.py)."""
    passed = terminalreporter.stats.get("passed", [])
    sets = [value for report in passed for name, value in report.user_properties if name == "instruction set"]
    if sets:
        terminalreporter.write_line(f"instruction sets on which every type and op ran on ranks: {', '.join(sets)}")
