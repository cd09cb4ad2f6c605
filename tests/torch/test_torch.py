"""The backend for torch.distributed: over Open MPI, and without MPI under torchrun; when calls cannot end."""

import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from jobs import ROOT, mpiexec
from torch_jobs import BACKEND, FAILING, PASSED, hold_calls_that_differ, place

BIN = ROOT / ".venvs/torch/bin"
ALONE = "tests/torch/programs/alone.py"


def torchrun(ranks, *command, timeout=120):
    """Run `python COMMAND` as torchrun does, on one node."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    line = [BIN / "python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *command]
    return subprocess.run(
        ["timeout", "-k", "5", str(timeout), *line], capture_output=True, text=True, cwd=ROOT, env=env,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_over_mpi(ranks):
    done = mpiexec("torch", ranks, BACKEND, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["mpi4py is there", PASSED]


@pytest.mark.slow
@pytest.mark.parametrize(
    "env",
    [
        {"MPI4PY_RC_THREAD_LEVEL": "serialized"},
        {"COLLECTIVES_ALGORITHM": "ring,allgather=ring,bcast=binomial,reduce_scatter=ring,alltoall=pairwise"},
    ],
)
def test_over_mpi_without_threads_and_without_shared_memory(env):
    done = mpiexec("torch", 3, BACKEND, timeout=200, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == PASSED


def test_tensors_on_gpus_over_mpi(stand_in_driver):
    done = mpiexec("torch", 2, "tests/torch/programs/gpu_tensors.py", timeout=100, env=stand_in_driver)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all calls on GPU tensors are right") == 2, done.stdout


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_without_mpi(ranks):
    done = torchrun(ranks, BACKEND, "without-mpi4py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == PASSED


@pytest.mark.long
def test_started_by_torch_multiprocessing():
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}", "OMP_NUM_THREADS": "1"}
    line = ["timeout", "-k", "5", "100", BIN / "python", "tests/torch/programs/spawned.py"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["spawn, file", "spawn, tcp", "fork, file", "fork, tcp", "rank 1 replaced twice"]


def test_what_needs_no_other_rank():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = ["timeout", "-k", "5", "100", BIN / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", ALONE]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr


MESSAGES = "tests/torch/programs/messages.py"


def test_waits_for_messages_over_mpi():
    done = mpiexec("torch", 2, MESSAGES, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["13 passed"]


def test_waits_for_messages_without_mpi():
    done = torchrun(2, MESSAGES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["13 passed"]


@pytest.mark.parametrize("launched", [lambda *command: mpiexec("torch", 2, *command), lambda *c: torchrun(2, *c)])
def test_several_waits_for_a_message_that_does_not_come(launched):
    done = launched(MESSAGES, "lost")  # over MPI it does not return 0: a communicator is broken
    assert done.stdout.splitlines() == ["2 passed"], done.stderr


@pytest.mark.long
def test_messages_that_are_dropped():
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/torch/programs/dropped.py")
    done = mpiexec("torch", 1, *words, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


ABORTED = "tests/torch/programs/aborted.py"


@pytest.mark.parametrize("launched", [lambda: mpiexec("torch", 2, ABORTED), lambda: torchrun(2, ABORTED)])
def test_calls_end_when_a_group_is_aborted(launched):
    calls = "blocking", "scattered", "work", "future", "message", "any"
    calls += "awaited", "later", "awaited any", "later any"
    expected = [f"{rank} {call} True" for rank in range(2) for call in calls]
    expected += ["1 idle None", "1 told True", "1 told any True"]
    done = launched()  # over MPI it does not return 0: ranks end without MPI_Finalize
    assert sorted(done.stdout.splitlines()) == sorted(expected), done.stderr


def test_two_mpi_programs_are_no_single_one(tmp_path):
    """Though a group of ranks of both has each rank of such a program once."""
    command = "tests/torch/programs/two_programs.py", str(tmp_path / "meeting")
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(mpiexec, "torch", 2, *command, str(first), timeout=60) for first in (0, 2)]
        for job in jobs:
            done = job.result()
            assert done.returncode == 0, done.stderr
            assert sorted(done.stdout.splitlines()) == [
                "MPIEngine",
                "MPIEngine",
                "StoreEngine",
                "StoreEngine",
                "StoreEngine",
            ]


def test_receives_from_any_rank_between_hosts():
    done = mpiexec("torch", 3, "tests/torch/programs/any_source.py", timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["6 passed"]


@pytest.mark.parametrize("hosts", ["a,b,b", pytest.param("a,a,b,b", marks=pytest.mark.slow)])
def test_all_gathers_in_place_and_elsewhere(hosts):
    """On ranks that take themselves for those of several hosts."""
    env = {"COLLECTIVES_ALGORITHM": "hierarchical"}
    done = mpiexec("torch", hosts.count(",") + 1, "tests/torch/programs/in_place.py", hosts, timeout=100, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 passed"]


@pytest.mark.long
def test_loading_by_forked_workers():
    done = torchrun(2, "tests/torch/programs/loading.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == 2 * ["800 rows, 0 wrong"]


@pytest.mark.slow
def test_started_anew_by_torchrun():
    """It keeps its store, in which the ranks before have written."""
    done = torchrun(2, "--max-restarts", "3", "tests/torch/programs/restarted.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["attempt 2: [8.0, 8.0, 8.0]"]


def errors(case, tmp_path, ranks=3):
    """Per rank: seconds, error, words."""
    torchrun(ranks, str(FAILING), case, str(tmp_path / case), timeout=60)
    return {rank: told for rank, *told in map(json.loads, (tmp_path / case).read_text().splitlines())}


@pytest.mark.parametrize(
    "case",
    [
        "timeout",
        "of_the_call_sparse",
        *(pytest.param(c, marks=pytest.mark.slow) for c in ("asynchronous", "future", "of_the_call")),
    ],
)
def test_a_missing_rank_is_named_in_time(case, tmp_path):
    found = errors(case, tmp_path)
    assert sorted(found) == [0, 1]
    for rank, (seconds, kind, words) in found.items():
        assert kind in ("CollectiveTimeout", "RuntimeError")  # a torch future has but the words
        assert "CollectiveTimeout" in kind + words
        assert (0.5 if "of_the_call" in case else 1) <= seconds < 4
        assert f"on rank {rank} of 3" in words or "failed: CollectiveTimeout" in words
        assert "rank 2: in no collective" in words
        assert place("where it is instead") in words


SMALL = """
import torch
from collectives.torch import gradients
gradients._free_of = lambda path: 1 << 40  # as each process sees it before the others take their part
x = torch.arange(8 << 20)
address = x.data_ptr()
print(gradients.place(x))
print(x.data_ptr() == address and bool((x == torch.arange(8 << 20)).all()))
"""


def test_a_tensor_for_which_shared_memory_has_no_room_stays_where_it_is():
    small = f"mount -t tmpfs -o size=20m tmpfs /dev/shm && {BIN / 'python'} -c '{SMALL}'"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["unshare", "-m", "sh", "-c", small], capture_output=True, text=True, env=env, timeout=100)
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no small /dev/shm can be mounted here: {done.stderr}")
    told, same = done.stdout.splitlines()
    assert "unable to allocate shared memory" in told, done.stderr
    assert same == "True"


LATE = """
import datetime, os, time
from mpi4py import MPI
import torch.distributed as dist
import collectives.torch
if MPI.COMM_WORLD.rank:
    time.sleep(30)
try:
    dist.init_process_group("collectives", timeout=datetime.timedelta(seconds=1))
except Exception as error:
    print(type(error).__name__, error, flush=True)
os._exit(0)
"""


def test_a_rank_that_does_not_come_to_init_process_group():
    done = mpiexec("torch", 2, "-c", LATE, timeout=25)
    told = "CollectiveTimeout init_process_group on rank 0 of 2: not complete after 1 s"
    assert done.stdout.startswith(told), done.stdout + done.stderr


def test_a_receive_that_nobody_answers_does_not_delay_the_end():
    done = torchrun(2, "tests/torch/programs/unanswered.py")
    found = re.findall(r"the end took ([\d.]+) s", done.stdout)
    assert len(found) == 2
    assert max(map(float, found)) < 3


def test_calls_that_differ(tmp_path):
    hold_calls_that_differ(errors("mismatch", tmp_path, ranks=2))


def test_a_group_is_destroyed_although_a_call_fails(tmp_path):
    [(seconds, kind, words)] = errors("destroyed", tmp_path, ranks=2).values()
    assert kind == "RuntimeError"  # not that of the call, which destroy_process_group would have raised
    assert words.startswith("False, CollectiveTimeout, while the process group '0' was destroyed, a call "), words
    assert "rank 1: in no collective" in words


def test_split_sizes_on_one_rank_only(tmp_path):
    for _, kind, words in errors("splits", tmp_path, ranks=2).values():
        assert kind == "CollectiveMismatch"
        assert "rank 0: call 2, alltoall of 4000 bytes" in words
        assert "rank 1: call 2, alltoallv of 4000 bytes" in words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "ranks"),
    [
        ("death", 3),
        ("death_polled", 3),
        ("death_of_a_sender_polled", 3),
        ("death_in_a_message", 2),
        ("death_of_all_senders", 2),
    ],
)
def test_a_death_is_named(case, ranks, tmp_path):
    """Long before the timeout."""
    found = errors(case, tmp_path, ranks)
    assert sorted(found) == list(range(ranks - 1))
    for seconds, kind, words in found.values():
        assert kind == "PeerFailure"
        assert f"rank {ranks - 1} died" in words
        assert seconds < 5


@pytest.mark.slow
def test_a_message_that_does_not_come(tmp_path):
    found = errors("message", tmp_path, ranks=2)
    assert found[0][1] == "CollectiveTimeout"
    assert (
        "receive from rank 1 (4000 bytes) on rank 0 of 2: Timed out waiting 1000ms; waiting for rank 1" in found[0][2]
    )


@pytest.mark.slow
def test_a_monitored_barrier_names_all_and_breaks_nothing(tmp_path):
    found = errors("monitored", tmp_path)
    assert sorted(found) == [0, 1]
    assert "Rank 2 failed to pass monitoredBarrier in 1000 ms" in found[0][2]
    assert "Rank 1 successfully reached monitoredBarrier" in found[1][2]
