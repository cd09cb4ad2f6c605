"""Ranks whose machines differ make equally many calls, and each gets the samples of its own pair."""

import argparse
import queue
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import mpiexec
from mpi4py import MPI

from collectives.bench import engine, pairs, settings
from collectives.bench.cli import add_arguments
from collectives.bench.pairs import Pair
from collectives.bench.programs import find

LARGE = 64 << 20  # the cache of another rank


def arguments(name, *words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([name, *words])


class Job(MPI.Intracomm):
    """A communicator with another rank, which has a larger cache."""

    def allreduce(self, mine, op=MPI.SUM):
        assert op == MPI.MAX
        return max(mine, LARGE)


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    monkeypatch.setattr(settings, "last_level_cache", lambda: 1 << 20)


@pytest.mark.parametrize("name", ["allreduce", "alltoallw"])
def test_sets_of_buffers_suit_the_largest_cache(name):
    args = arguments(name, "--off-cache", "--algorithm", "mpi", "-M", "8GiB")
    (setting,) = settings.settings(find(name), args, Job(MPI.COMM_SELF))
    assert setting.sets(1 << 20, 1) == 2 * LARGE // (2 << 20)


def test_sets_of_buffers_between_pairs_suit_the_largest_cache(monkeypatch):
    args, records = arguments("multi_lat", "--off-cache", "-m", "1MiB:1MiB", "-M", "8GiB"), []
    values = {"avg": 1.0, "iterations": 1, "validation": None}
    monkeypatch.setattr(engine, "Pair", lambda comm, nbytes, dtype, slots: slots)
    monkeypatch.setattr(engine, "_pair", lambda setting, slots, nbytes: ({**values, "p50": slots}, None))
    engine._pairs(find("multi_lat"), args, Job(MPI.COMM_SELF), records)
    assert [(record["sets"], record["us"]["p50"]) for record in records] == [(2 * LARGE // (2 << 20),) * 2]


DIFFERENT = """
import sys
from mpi4py import MPI
import collectives.bench.settings as settings
from collectives.cli.commands import main

settings.last_level_cache = lambda: 1 << (16 + 4 * MPI.COMM_WORLD.rank)
sys.exit(main())
"""


@pytest.mark.parametrize("name", ["allreduce", "alltoallw", "latency"])
def test_ranks_with_different_caches(name):
    words = ("bench", name, "-m", "4096:4096", "-i", "2", "-x", "1", "-u", "1", "-c", "--off-cache")
    done = mpiexec("mpich", 2, "-c", DIFFERENT, *words, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Pass") == 1


class Mail(SimpleNamespace):
    """A rank of several threads that send each other copies of arrays."""

    def Barrier(self):
        pass

    def Send(self, array, rank, tag):
        self.boxes[self.rank, rank].put((tag, array.copy()))

    def Recv(self, array, rank, tag):
        came, array[:] = self.boxes[rank, self.rank].get(timeout=10)
        assert came == tag


def test_both_ranks_of_a_pair_get_its_samples_and_no_others(monkeypatch):
    """The clock of rank r goes on by 1000 (r + 1) ns at each reading, so each pair has times of its own."""
    own, found = threading.local(), {}

    def now():
        own.clock += 1000 * (own.rank + 1)
        return own.clock

    def work(rank):
        own.rank, own.clock = rank, 0
        found[rank] = Pair(Mail(rank=rank, size=4, boxes=boxes), 8, np.int8).latency(5, 2).tolist()

    monkeypatch.setattr(pairs, "time", SimpleNamespace(perf_counter_ns=now))
    monkeypatch.setattr(pairs, "clock_overhead", lambda: 0)
    boxes = {(a, b): queue.Queue() for a in range(4) for b in range(4)}
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {rank: pytest.approx([0.5e-6 * (rank % 2 + 1)] * 5) for rank in range(4)}


def test_bandwidths_of_all_pairs():
    """Two pairs, whose windows of 4 messages of 1000 bytes take 1 to 4 ms."""
    values = engine._rates([np.array([1e-3, 2e-3]), np.array([3e-3, 4e-3])], 4, 1000, [50])
    assert values == pytest.approx({"rate": 3200, "bandwidth": 3.2, "p50": 3.2})
