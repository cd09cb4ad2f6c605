"""Fixtures for all tests, and which tests belong to make test, make test-long and make attack."""

import collections
import fcntl
import functools
import itertools
import os
import re
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import stand_in
from jobs import MPIS
from kernel_lib import FLAGS, SOURCES, Kernels, build, compiling, objects_of
from slurm import Slurm

os.environ.pop("PYTHONUNBUFFERED", None)  # or a line comes in pieces, between which a launcher puts another rank's
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every rank of every job compiles all that it imports
os.environ.pop("PYTEST_ADDOPTS", None)  # what tests start has options of its own
os.environ.setdefault("OMPI_MCA_btl", "^ofi")  # which Open MPI, where it has no use for it, closes after a sleep of 1 s
pytest.register_assert_rewrite("torch_jobs")
HELD = pytest.StashKey()  # the lock, as long as this worker has it
LOCK, TURN = (Path(tempfile.gettempdir()) / f"collectives-tests-{os.getuid()}{end}" for end in (".lock", ".turn"))


@pytest.fixture(scope="session", autouse=True)
def openmpi_segments():
    """A folder for the shared memory of this worker's jobs of Open MPI.

    Open MPI names a segment by the 16 bits to which it hashes the launcher's PID. If two jobs on a node have the same
    16 bits at the same time, one crashes and the other one hangs.
    """
    name = "OMPI_MCA_btl_sm_backing_directory"
    if name in os.environ or not os.path.isdir("/dev/shm"):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="openmpi-", dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        os.environ[name] = folder
        yield
        del os.environ[name]


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


@functools.cache
def uses_torch(module: Path) -> bool:
    """Whether a module's tests import torch, or run programs in its environment."""
    return re.search(r"""import torch\b|torch_(for|jobs|training)|\.venvs/torch|\(\s*"torch"|"torch": |= "torch"$""",
                     module.read_text(), re.MULTILINE) is not None  # fmt: skip


def pytest_collection_modifyitems(config, items):
    """Divide the tests between make test, make test-long, make attack and make test-all, the same way each time.

    A test that is marked ``in_turn`` is a slow one on two of the MPIs; which of them differs from test to test. Of one
    that is marked ``quick`` all other cases are slow, and of one that is marked ``long`` with some cases all others are
    not long. One that is marked ``sampled`` is slow, and ``left_out`` of make attack but for one case in so many. A
    module that uses torch, or its environment, is marked ``torch``.
    """
    unmet = {}  # test and mark -> the cases that the mark names, but no case so far has been
    for item in items:
        if uses_torch(item.path):
            item.add_marker("torch")
        name = re.sub("^tests/(?!attack/).*/", "tests/", item.nodeid)  # the same wherever the module lies
        on = getattr(item, "callspec", None) and item.callspec.params.get("mpi")
        if on and item.get_closest_marker("in_turn"):
            if MPIS[zlib.crc32(name.replace(on, "").encode()) % len(MPIS)] != on:
                item.add_marker("slow")
        if quick := item.get_closest_marker("quick"):
            if not names(quick, item, unmet):
                item.add_marker("slow")
        if (long := item.get_closest_marker("long")) and long.args and not names(long, item, unmet):
            item.own_markers.remove(long)
        if sampled := item.get_closest_marker("sampled"):
            item.add_marker("slow")
            if zlib.crc32(name.encode()) % sampled.args[0]:
                item.add_marker("left_out")
    if any(unmet.values()) and not any("[" in word for word in config.args):
        raise pytest.UsageError(f"marked as quick or long, but there is no such case: {unmet}")


def names(mark, item, unmet) -> bool:
    """Whether a mark names this case of a test; `unmet` is kept."""
    unmet.setdefault((item.nodeid.partition("[")[0], mark.name), set(mark.args)).discard(item.callspec.id)
    return item.callspec.id in mark.args


def worker_of(config) -> str | None:
    """The name of this worker of pytest-xdist, "gw0" for the first; None where there are none."""
    return getattr(config, "workerinput", {}).get("workerid")


def alone(item) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Of several workers, one runs tests that are to be ``alone``, all of them in a row, while the others run none."""
    if worker_of(item.config) is None:
        return (yield)
    if item.config.stash.get(HELD, None) is None:
        with TURN.open("w") as turn:
            file = item.config.stash[HELD] = LOCK.open("w")
            fcntl.flock(turn, fcntl.LOCK_EX)  # while one waits to be alone, no other test begins: locks are not fair
            fcntl.flock(file, fcntl.LOCK_EX if alone(item) else fcntl.LOCK_SH)
    try:
        return (yield)
    finally:
        if not (alone(item) and alone(nextitem)):
            item.config.stash[HELD].close()
            item.config.stash[HELD] = None


@pytest.fixture(scope="session", autouse=True)
def kernels_under_way(request, tmp_path_factory):
    """Compiles the kernels while the first tests run, if any test will need them; of several workers the first does."""
    if not any("kernel_objects" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield None
        return
    worker, base = worker_of(request.config), tmp_path_factory.getbasetemp()
    folder = (base.parent if worker else base) / "kernels"
    if worker in (None, "gw0"):
        folder.mkdir()
        wait = compiling(folder, SOURCES, FLAGS)
        yield wait
        wait()
    else:
        yield lambda: compiled_elsewhere(objects_of(folder, SOURCES))


def compiled_elsewhere(objects: list[Path]) -> list[Path]:
    """The object files, once another worker has made them all."""
    end = time.monotonic() + 600
    while not all(made.exists() for made in objects):
        if time.monotonic() > end:
            raise TimeoutError(f"the first worker has not compiled the kernels: {objects[0].parent}")
        time.sleep(0.1)
    return objects


@pytest.fixture(scope="session")
def kernel_objects(kernels_under_way) -> list[Path]:
    """The kernels, compiled once for their own tests and all drivers in C."""
    return kernels_under_way()


@pytest.fixture(scope="module")
def kernels(tmp_path_factory, kernel_objects) -> Kernels:
    """The kernels in a library of their own."""
    return Kernels(build(tmp_path_factory.mktemp("library"), kernel_objects))


def pytest_terminal_summary(terminalreporter, config):
    """Say which files took longest, and on which instruction sets kernels ran on ranks (tests/core/test_isas.py)."""
    seconds = collections.Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        seconds[getattr(report, "nodeid", "").partition("::")[0]] += getattr(report, "duration", 0)
    if config.option.durations:
        terminalreporter.write_line(f"the tests took {seconds.total():.0f} s, of which in single files")
        for file, took in seconds.most_common(12):
            terminalreporter.write_line(f"{took:7.1f}s {file}")
    passed = terminalreporter.stats.get("passed", [])
    sets = [value for report in passed for name, value in report.user_properties if name == "instruction set"]
    if sets:
        terminalreporter.write_line(f"instruction sets on which every type and op ran on ranks: {', '.join(sets)}")


@pytest.fixture(scope="session")
def stand_in_driver(tmp_path_factory) -> dict[str, str]:
    """The variables of programs that use the stand-in for NVIDIA's driver, which is compiled once."""
    return stand_in.build(tmp_path_factory.mktemp("stand_in"))


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> str:
    """scikit-learn's digits in a file, for environments without scikit-learn."""
    from sklearn.datasets import load_digits

    data = load_digits()
    file = tmp_path_factory.mktemp("data") / "digits.npz"
    np.savez(file, x=data.images / 16, y=data.target)
    return str(file)
