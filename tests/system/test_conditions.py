"""What rank 0 says of a start that wastes the machine, and that it is silent about ordinary ones."""

import itertools
import os
import subprocess
import sys
import threading
import time

import pytest
from jobs import launch, mpiexec

from collectives.system import conditions

PROGRAM = """
import os, sys
cores = [{int(c) for c in word.split("+")} for word in sys.argv[1:]]
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
if cores:
    os.sched_setaffinity(0, cores[rank % len(cores)])
from mpi4py import MPI
import collectives
comm = collectives.Communicator(MPI.COMM_WORLD)
comm.Dup()
"""
CORES = sorted(os.sched_getaffinity(0))
SEVERAL = pytest.mark.skipif(len(CORES) < 2, reason="cores cannot be free on a machine with one core")


def said(ranks=2, *cores, env=None, ahead=()):
    """What is written to standard error by a job whose ranks bind themselves to these cores."""
    line, how = launch("openmpi", ranks, ["-c", PROGRAM, *map(str, cores)], env, ["--bind-to", "none"])
    done = subprocess.run([*ahead, *line], capture_output=True, timeout=120, **how)
    assert done.returncode == 0, done.stderr
    return done.stderr


def runs(sets):
    """How many ranks can run at a time, by trial of all choices."""
    return max(len(set(choice)) for choice in itertools.product(*sets)) if sets else 0


def test_crowd_is_found_exactly():
    """Against all choices of a core for each rank, for all sets of up to 4 ranks on 3 cores."""
    masks = range(1, 8)
    for ranks in range(1, 5):
        for chosen in itertools.product(masks, repeat=ranks):
            possible = runs([[bit for bit in range(3) if mask >> bit & 1] for mask in chosen])
            for allowed in (1, 2, 3, 4):
                shared = conditions.crowd(chosen, allowed)
                assert bool(shared) == (possible < min(ranks, allowed)), (chosen, allowed)
                if shared:
                    assert sum(not mask & ~shared for mask in chosen) > shared.bit_count(), (chosen, allowed)


def test_crowd_of_many_ranks_takes_little_time():
    begin = time.process_time()
    assert conditions.crowd([(1 << 256) - 1] * 1000, 256) == 0
    assert conditions.crowd([1 << core for core in range(256)], 256) == 0
    assert time.process_time() - begin < 1


@SEVERAL
def test_ranks_that_share_a_core():
    """By their own binding, and by that of the whole job; once, by one rank."""
    for words in (said(2, CORES[0]), said(2, ahead=["taskset", "-c", str(CORES[0])])):
        assert words.count(f"ranks 0, 1 may run on core {CORES[0]} only, although the system has {len(CORES)}") == 1
        assert "--bind-to none" in words
        assert words.count("may run on") == 1, words


@pytest.mark.alone
@SEVERAL
def test_cores_that_another_job_is_bound_to():
    busy = subprocess.Popen(["taskset", "-c", str(CORES[1]), sys.executable, "-c", "while True: pass"])
    try:
        words = said(2, CORES[0], CORES[1])
    finally:
        busy.kill()
        busy.wait()
    assert f"other processes that are bound to core {CORES[1]} keep rank 1 from running there" in words


@SEVERAL
@pytest.mark.parametrize("variable", conditions.THREADS)
def test_fewer_cores_than_threads(variable):
    words = said(2, CORES[0], CORES[1], env={"OMP_NUM_THREADS": "1", variable: "2"})
    assert f"rank 0 may run on core {CORES[0]} only, although {variable} is 2, and 1 more ranks" in words


def test_files():
    assert "more files, and may need 18" in said(2, ahead=["prlimit", "--nofile=36:36"])


def test_memory_that_the_network_needs():
    """The limit is read, and counts if there is such a network and several machines."""
    limits = "from collectives.system import conditions as c; print(c._pinned(), c._may_lock())"
    done = subprocess.run(
        ["setpriv", "--bounding-set=-ipc_lock", "prlimit", "--memlock=65536", sys.executable, "-c", limits],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split()[1] == "False", done.stderr
    network = conditions.Conditions(2, 0, 0, 0, 1000, 65536)
    (text,) = conditions.advice([0, 1], [1, 2], [network] * 2, 4)
    assert text.startswith("a rank may lock 64 KiB of memory, which the network between the machines needs. ")
    assert not list(conditions.advice([0, 1], [1, 2], [network] * 2, 2))
    assert not list(conditions.advice([0, 1], [1, 2], [network._replace(pinned=-1)] * 2, 4))


#: Starts of which nothing is said: ranks for which there are too few cores, and ranks that are bound well. What runs
#: beside the tests may be bound to these cores, too.
ORDINARY = {
    "more ranks than cores": (2 * len(CORES) + 1,),
    "each bound to a core": (min(2, len(CORES)), *CORES[:2]),
    "more ranks than cores, each bound to one": (2 * len(CORES), *CORES),
}


@pytest.mark.parametrize("case", ORDINARY)
def test_ordinary_starts(case):
    ranks, *cores = ORDINARY[case]
    words = said(ranks, *cores)
    assert "may run on" not in words
    assert cores or words == ""


@pytest.mark.parametrize("threads", ["8", *(pytest.param(t, marks=pytest.mark.slow) for t in ("", "8,2", "many"))])
def test_threads_on_all_cores(threads):
    """More threads than the machine has cores: no other command would give more."""
    assert said(2, env={"OMP_NUM_THREADS": threads}) == ""


def test_the_default_of_each_launcher(mpi):
    """Two ranks, as each MPI's mpiexec binds them."""
    code = "from mpi4py import MPI; import collectives; collectives.Communicator(MPI.COMM_WORLD)"
    words = mpiexec(mpi, 2, "-c", code, timeout=60).stderr
    assert "may run on" not in words


@pytest.mark.parametrize(
    ("text", "number"), [("8", 8), ("4,2", 4), ("", 0), ("many", 0), ("²", 0), ("9" * 5000, 0), ("-1", 0)]
)
def test_threads_that_are_asked_for(monkeypatch, text, number):
    """A variable with anything in it must not keep one rank from a communicator for which the others wait."""
    for name in conditions.THREADS:
        monkeypatch.setenv(name, text)
    assert conditions.collect().threads == number


def test_without_room_for_a_thread(monkeypatch):
    def full(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    assert conditions.collect().allowed == len(CORES)
