"""One rank of a job that runs torch's distributed tests one after the other; started by ``manifest.py``.

    mpiexec -n 3 python tests/torch/programs/suite.py FOLDER BACKEND FIRST
    python tests/torch/programs/suite.py names                 prints the names of all tests, as JSON

FOLDER has ``tests.json``, the names; FIRST is the index of the first one to run. Each test has a process group of its
own. What a rank finds is a line of JSON in FOLDER/RANK.jsonl: when it begins a test, and how that ended. Ranks go on
together; where one has failed, nothing is known about the others' state, and the job waits to be ended.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import tempfile
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

DEFAULT_TIMEOUT = 30  # seconds of a process group, unless the test has one of its own
HANGS = 200  # seconds after which a test that has not ended says where it is


def launched(names: tuple[str, ...], otherwise: int) -> int:
    """This process's rank or number of ranks, as its launcher gives it."""
    return next((int(os.environ[name]) for name in names if name in os.environ), otherwise)


RANK = launched(("OMPI_COMM_WORLD_RANK", "PMI_RANK"), 0)
SIZE = launched(("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), 3)


def all_ended(folder: Path, state: str) -> bool:
    """Say how a test ended on this rank; whether all ranks have ended it without a failure, once they have."""
    (folder / f"{RANK}.{state}").touch()
    while True:
        ends = [*folder.glob("*.passed"), *folder.glob("*.skipped")]
        if any(folder.glob("*.failed")):
            return False
        if len(ends) == SIZE:
            return True
        time.sleep(0.005)


def case_of(module):
    """The class of tests, with what its own launchers would give it."""
    from torch.testing._internal.common_utils import TestCase

    class Tests(TestCase, module.DistributedTest._DistTestBase):
        """The tests on ranks that are there already."""

        rank, world_size = RANK, SIZE
        skip_return_code_checks: list = []

        @property
        def init_method(self):
            """Where the ranks of the test under way meet."""
            return os.environ["INIT_METHOD"]

    return Tests


def prepare(module, folder: Path) -> str:
    """A test's own folder, as torch's launchers lay it out; where its ranks meet."""
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
    os.environ["INIT_METHOD"] = module.INIT_METHOD = f"file://{folder}/init_dir/again"
    module.Barrier.barrier_id = 0
    return f"file://{folder}/init_dir/first"


def run(module, case, folder: Path, backend: str, name: str) -> tuple[str, str]:
    """Run a test in a new process group: passed, skipped or failed, and why."""
    import torch.distributed as dist

    meeting = prepare(module, folder)
    test = getattr(case, name)
    if getattr(test, "__unittest_skip__", False):
        return "skipped", test.__unittest_skip_why__
    seconds = module.CUSTOM_PG_TIMEOUT.get(name, DEFAULT_TIMEOUT)
    instance = case(name)
    try:
        dist.init_process_group(
            backend, init_method=meeting, world_size=SIZE, rank=RANK, timeout=timedelta(seconds=seconds)
        )
        instance.setUp()
        getattr(instance, name)()
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        messages = {skip.exit_code: skip.message for skip in module.TEST_SKIPS.values()}
        return ("skipped", messages[end.code]) if end.code in messages else ("failed", f"exit {end.code}")
    except BaseException as error:
        try:
            return "failed", traceback.format_exc()
        except Exception:  # mpi4py's own exceptions cannot always be printed
            return "failed", f"{type(error).__name__}: {traceback.format_tb(error.__traceback__)[-1]}"
    return "passed", ""


def leave() -> None:
    """Destroy the test's process groups, unless it has done so."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def main() -> None:
    """Run the tests from the first one on, as long as all ranks pass or skip them."""
    faulthandler.enable()
    if sys.argv[1] == "names":
        sys.argv[1:] = [tempfile.gettempdir(), "gloo", "-1"]
    folder, backend, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    os.environ.update(
        WORLD_SIZE=str(SIZE), RANK=str(RANK), BACKEND=backend, INIT_METHOD="file://", MASTER_ADDR="127.0.0.1",
        TEMP_DIR=str(folder),
    )  # fmt: skip
    if backend == "collectives":
        import collectives.torch  # noqa: F401
    import torch
    from adapted import load

    module = load(backend)
    case = case_of(module)
    if first < 0:
        print(json.dumps([name for name in dir(case) if name.startswith("test_")]))
        return
    log = (folder / f"{RANK}.jsonl").open("a", buffering=1)
    for index, name in list(enumerate(json.loads((folder / "tests.json").read_text())))[first:]:
        environment = dict(os.environ)
        print(json.dumps({"index": index, "state": "begun"}), file=log)
        began = time.monotonic()
        faulthandler.dump_traceback_later(HANGS)
        state, why = run(module, case, folder / str(index), backend, name)
        found = dict(why=why[-4000:], marked=getattr(case, name).marked, seconds=time.monotonic() - began)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"index": index, "state": state, **found}), file=log)
        if not all_ended(folder / str(index), state):
            time.sleep(600)  # until the driver ends the job
        leave()
        os.environ.clear()
        os.environ.update(environment)
        torch.distributed.set_debug_level_from_env()


if __name__ == "__main__":
    main()
