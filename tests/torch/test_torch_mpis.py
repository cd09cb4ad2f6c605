"""The backend for torch.distributed on MPICH and Intel MPI; test_torch.py has Open MPI.

torch is in an environment of its own, and theirs see it behind their own packages."""

import json

import pytest
from jobs import mpiexec, torch_for
from torch_jobs import BACKEND, FAILING, PASSED, hold_calls_that_differ, place


@pytest.fixture(params=["mpich", "impi"])
def mpi(request):
    return request.param


@pytest.mark.slow  # test_torch.py has Open MPI
def test_every_call(mpi):
    done = mpiexec(mpi, 2, BACKEND, timeout=120, env=torch_for(mpi))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["mpi4py is there", PASSED]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "passed"), [("above.py", "9 passed"), ("training.py", "8 passed")])
def test_what_torch_builds_on_groups(mpi, program, passed, tmp_path):
    command = f"tests/torch/programs/{program}", "collectives", str(tmp_path / "meeting")
    done = mpiexec(mpi, 2, *command, timeout=300, env=torch_for(mpi))
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    assert done.stdout.splitlines() == [passed]


def errors(mpi, case, file):
    """Per rank of 2: seconds, error, words. Ranks that say nothing to MPI at their end are a failure to launchers."""
    mpiexec(mpi, 2, str(FAILING), case, str(file), timeout=60, env=torch_for(mpi))
    return {rank: told for rank, *told in map(json.loads, file.read_text().splitlines())}


@pytest.mark.quick("impi-timeout")
@pytest.mark.parametrize("case", ["timeout", *(
    pytest.param(case, marks=pytest.mark.slow) for case in ("message", "asynchronous", "future", "of_the_call")
)])  # fmt: skip
def test_a_missing_rank_is_named_in_time(mpi, case, tmp_path):
    found = errors(mpi, case, tmp_path / case)
    assert list(found) == [0]
    seconds, kind, words = found[0]
    assert kind in ("CollectiveTimeout", "RuntimeError")  # a torch future has but the words
    assert (0.5 if case == "of_the_call" else 1) <= seconds < 4
    assert "rank 0 of 2: Timed out waiting" in words
    assert "; waiting for rank 1\n" in words
    assert f"rank 1: in no collective of this communicator, after 1 calls, at {place('where it is instead')}" in words
    assert ("rank 0: receive from rank 1 of 4000 bytes (message), at " in words) == (case == "message")


@pytest.mark.slow
def test_calls_that_differ(mpi, tmp_path):
    hold_calls_that_differ(errors(mpi, "mismatch", tmp_path / "mismatch"))
