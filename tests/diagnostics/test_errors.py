"""Calls that cannot end: each kind provoked on real ranks, on each MPI; when, where, and what the message says.

A job makes many of them, each on a communicator of its own (programs/failing_calls.py).
"""

import json
import re

import pytest
from jobs import LIVE_ON, ROOT, mpiexec

pytestmark = pytest.mark.in_turn

PROGRAM = ROOT / "tests/diagnostics/programs/failing_calls.py"
LINES = PROGRAM.read_text().splitlines()
MISMATCHES = [
    "collective_differs", "op_differs", "count_differs", "op_differs_between_processes",
    "type_differs_between_processes", "root_differs_between_processes", "collective_differs_between_processes",
    "unequal_blocks_differ", "far_away",
]  # fmt: skip
#: Where not all cases run: one of each kind.
FEW = ["op_differs", "count_differs", "op_differs_between_processes", "far_away"]
TIMEOUTS = ["shm", "ring", "mpi", "attribute", "objects", "grouped", "handed_over", "persistent"]
EIGHT = pytest.param(8, marks=pytest.mark.slow)


def line_of(words):
    """Number of the line of the program that has these words."""
    return next(i for i, line in enumerate(LINES, 1) if words in line)


@pytest.fixture
def run(tmp_path):
    """Per case and rank: seconds, error, message; and the job's output."""

    def job(mpi, ranks, cases, env=None):
        results = tmp_path / "results"
        results.touch()
        env = {**(env or {}), "RESULTS": str(results)}
        done = mpiexec(mpi, ranks, str(PROGRAM), *cases, timeout=100, env=env, flags=LIVE_ON[mpi])
        output = done.stdout + done.stderr
        assert done.returncode != 124, output  # Open MPI with ULFM returns 0 after MPI_Abort
        assert mpi == "mpich" or "MPI_Abort instead of MPI_Finalize" in output  # its launcher drops what comes late
        told = {case: {} for case in cases}
        for line in results.read_text().splitlines():
            case, rank, *outcome = json.loads(line)
            told[case][rank] = outcome
        return told, output

    return job


def check_mismatch(case, told, ranks, everybody):
    """Named on the ranks still inside, with the calls of all ranks."""
    errors = {rank: message for rank, (_, raised, message) in told.items() if raised == "CollectiveMismatch"}
    assert len(told) == ranks
    assert all(raised in ("", "CollectiveMismatch") for _, raised, _ in told.values()), told
    assert errors, told
    assert not everybody or len(errors) == ranks
    assert all(seconds < 5 for seconds, *_ in told.values())
    if case.startswith(("collective", "op", "type", "far")):
        assert len(errors) == ranks if "collective" not in case else errors
    words = {"op": "MAX", "far": "MAX", "type": "int64", "count": "11 float64"}.get(case.partition("_")[0], "")
    for rank, message in errors.items():
        assert len(re.findall(rf"^  rank \d: .*, at {PROGRAM}:\d+", message, re.MULTILINE)) == ranks, message
        assert f"on rank {rank} of {ranks}" in message
        assert re.search(rf"^  rank 1: .*{words}", message, re.MULTILINE), message


@pytest.mark.quick("mpich-4")
@pytest.mark.parametrize("ranks", [2, 4, EIGHT])
def test_calls_that_differ_and_ranks_that_do_not_come(run, mpi, ranks):
    everything = ranks == 8 or (mpi, ranks) == ("openmpi", 4)
    mismatches, timeouts = (MISMATCHES, TIMEOUTS) if everything else (FEW, TIMEOUTS[:3])
    told, output = run(mpi, ranks, [*mismatches, *(f"timeout_{name}" for name in timeouts), "dumped", "death"])
    for case in mismatches:
        check_mismatch(case, told[case], ranks, everybody=False)
    for name in timeouts:
        check_timeout(told[f"timeout_{name}"], name, ranks)
    check_dump(output, ranks)
    check_death(told["death"], ranks, mpi)


def check_timeout(told, name, ranks):
    """In time, on all ranks that came; the absent one is named with its place."""
    absent = ranks - 1
    place = f"{PROGRAM}:{line_of('the place where it is')}"
    assert told.pop(absent)[1] == ""
    assert len(told) == ranks - 1
    # Ranks that share a core take turns: one may come when another has waited in vain already, and hears of that one.
    least, most = (0.25, 2.5) if ranks < 8 else (0, 5)
    for rank, (seconds, raised, message) in told.items():
        assert raised == "CollectiveTimeout", message
        assert least <= seconds < most
        assert f" on rank {rank} of {ranks}: " in message
        waited = re.search(rf" on rank (\d) of {ranks}: not complete after 0.25 s; waiting for rank \d", message)
        assert waited, message
        assert told[int(waited[1])][0] >= 0.25
        assert re.search(rf"^  rank {absent}: in no collective of this communicator, after \d+ calls, at {place}$",
                         message, re.MULTILINE), message  # fmt: skip
        number = "a persistent call" if name == "persistent" else r"call \d+"
        what = "allgather of" if name == "objects" else "allreduce of [12]0 float64, SUM"
        assert re.search(rf"^  rank {rank}: {number}, {what}.*, at {PROGRAM}:\d+$", message, re.MULTILINE), message


def check_dump(output, ranks):
    place = f"{PROGRAM}:{line_of('where it is dumped')}"
    told = (
        r"^\[rank 0\] rank 0 of \d \(communicator \S+\): call \d+, allreduce of 10 float64, SUM "
        rf"\(recursive_doubling\), at {place}, waits \d+\.\d s for rank \d"
    )
    assert re.search(told, output, re.MULTILINE), output
    assert "[rank 0] in no collective" not in output.split(" s for rank ")[0]


def check_death(told, ranks, mpi):
    absent = ranks - 1
    assert sorted(told) == list(range(ranks - 1)) or mpi == "mpich"  # whose launcher may end them first all the same
    for rank, (seconds, raised, message) in told.items():
        assert raised == "PeerFailure", message
        assert seconds < 2
        assert re.search(rf"rank {absent} died", message), message
        assert f"allreduce (shm, 80 bytes) on rank {rank} of {ranks}: " in message
        assert re.search(rf"^  rank {absent}: its process \d+ has ended$", message, re.MULTILINE), message


@pytest.mark.slow  # the launchers take up to two minutes to end
def test_a_death_between_processes(run, mpi):
    told, _ = run(mpi, 3, ["death_between_processes"])
    told = told["death_between_processes"]
    assert sorted(told) == [0, 1] or mpi == "mpich"
    for _, raised, message in told.values():
        assert raised == "PeerFailure", message
        assert "rank 2" in message


@pytest.mark.parametrize("ranks", [3, EIGHT])
def test_checked_calls(run, mpi, ranks):
    """COLLECTIVES_CHECK=1: a difference is raised on all ranks, at once."""
    cases = [name for name in MISMATCHES if name != "far_away"] + ["timeout_shm", "timeout_mpi"]
    told, _ = run(mpi, ranks, cases, env={"COLLECTIVES_CHECK": "1"})
    for case in MISMATCHES[:-1]:
        check_mismatch(case, told[case], ranks, everybody=True)
    for case in cases[-2:]:
        check_timeout(told[case], case, ranks)
