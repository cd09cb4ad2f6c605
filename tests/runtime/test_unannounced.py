"""Between hosts a message is no longer than what MPI sends without the receiver's answer, where that is known."""

import pytest
from jobs import mpiexec

PROGRAM = "tests/runtime/programs/unannounced.py"
LIMIT = ["--mca", "btl_tcp_eager_limit"]


@pytest.mark.quick("default", "short", "mpich")
@pytest.mark.parametrize(
    ("mpi", "flags", "most"),
    [
        ("openmpi", [], 65536 - 256),
        ("openmpi", [*LIMIT, "4096"], 4096 - 256),
        ("openmpi", [*LIMIT, "300"], 1 << 30),  # too short to be worth it
        ("openmpi", [*LIMIT, "-1"], 1 << 30),  # which Open MPI takes for the longest, more than MPI can count
        ("openmpi", ["--mca", "btl", "self,sm"], 1 << 30),
        ("mpich", [], 1 << 30),
    ],
    ids=["default", "short", "too short", "none", "no TCP", "mpich"],
)
def test_long_messages_are_cut(mpi, flags, most):
    done = mpiexec(mpi, 3, PROGRAM, str(most), flags=flags, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right on rank") == 3, done.stdout


def test_a_late_rank_does_not_keep_the_messages_of_many_calls():
    """MPI takes whatever is sent at once, and the memory of a root that waits for one rank grew by all calls' messages
    of the others."""
    # TCP takes long messages at once on one machine, too. It uses all interfaces, also those that other tests remove.
    flags = ["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]
    done = mpiexec("openmpi", 3, "tests/runtime/programs/run_ahead.py", flags=flags, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right on rank") == 3, done.stdout
