"""Elastic runs: ranks die by kill -9, and the run ends as if none had."""

import os
import random
import re
import shutil
import signal
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest
from jobs import (
    ELASTIC,
    LIVE_ON,
    OPEN_MPI_CRASHED,
    RANK,
    REPLACING,
    descendants,
    environment,
    mpiexec,
    start,
    torch_for,
)
from mpi4py import MPI
from scripts import ABORT

from collectives import PeerFailure, train
from collectives.train import threads
from collectives.train.run.elastic import Elastic
from collectives.train.run.states import Member

PROGRAM = "tests/train/programs/elastic.py"
UNDISTURBED = 0.607484  # the loss of a run on one rank, to 6 digits


def forget(folder):
    """Begin once more in a folder that a job has used."""
    for file in folder.iterdir():
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    (folder / "again").touch()


def started(folder, kills, *args, ranks=4, timeout=60):
    """The program's end: what it printed."""
    begin = time.monotonic()
    how = REPLACING if "--replace" in args else ELASTIC
    timeout = 150 if "--out" in args else timeout  # a disk that others write to can take a minute
    how = {**how, "env": {**how["env"], "COLLECTIVES_TIMEOUT": str(timeout)}}
    done = mpiexec("openmpi", ranks, PROGRAM, str(folder), str(kills), *args, timeout=250, **how)
    assert time.monotonic() - begin < 200, "does not end"
    if OPEN_MPI_CRASHED.search(done.stderr) and not (folder / "again").exists():
        forget(folder)
        return started(folder, kills, *args, ranks=ranks, timeout=timeout)
    print(done.stdout, done.stderr)  # for the report of a failure
    return done


def run(folder, kills, *args, ranks=4):
    """Loss, number of ranks at the end, and the kills as (rank, whether it was a replacement)."""
    done = started(folder, kills, *args, ranks=ranks)
    aborted = ABORT in done.stderr or "MPI_ABORT was invoked" in done.stderr
    assert "--stumble" in args or not aborted, done.stdout + done.stderr
    files = [file for file in folder.iterdir() if " rank " in file.name]
    killed = re.findall(r"\d+ rank (\d+) step \d+( new)?", done.stdout)
    assert len(killed) == kills == len(files), done.stdout + done.stderr
    loss, ranks = result(done.stdout, done.stderr)
    return loss, ranks, [(int(rank), bool(new)) for rank, new in killed]


def result(printed, errors=""):
    """Loss and number of ranks at the end."""
    found = re.search(r"^loss (\S+) ranks (\d+) recoveries (\d+)$", printed, re.MULTILINE)
    assert found, printed + errors
    return float(found[1]), int(found[2])


@pytest.mark.quick("4")
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_run_without_a_death(ranks, tmp_path):
    assert run(tmp_path, 0, ranks=ranks) == (pytest.approx(UNDISTURBED, abs=1e-6), ranks, [])


@pytest.mark.long("more3")
@pytest.mark.quick("more1", "more3")
@pytest.mark.parametrize("more", [("--algorithm", "shm"), ("--algorithm", "ring"), ("--shard", "1"), ("--shard", "2")])
def test_a_death_costs_the_steps_since_the_last_commit(more, tmp_path):
    loss, ranks, killed = run(tmp_path, 1, *more)
    assert (ranks, len(killed)) == (3, 1)
    assert loss == pytest.approx(UNDISTURBED, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("more", [("--algorithm", "shm"), ("--algorithm", "ring"), ("--shard", "1"), ("--shard", "2")])
@pytest.mark.parametrize("every", [1, 7])
def test_all_ranks_but_one_may_die(more, every, tmp_path):
    loss, ranks, killed = run(tmp_path, 3, *more, "--every", str(every))
    assert (ranks, len(killed)) == (1, 3)
    assert loss == pytest.approx(UNDISTURBED, rel=0.02)


@pytest.mark.quick("more1")
@pytest.mark.parametrize("more", [(), ("--shard", "1")])
def test_a_dead_rank_is_replaced(more, tmp_path):
    loss, ranks, killed = run(tmp_path, 1, "--replace", *more)
    assert (ranks, len(killed)) == (4, 1)
    assert loss == pytest.approx(UNDISTURBED, rel=0.02)


@pytest.mark.quick("more0")
@pytest.mark.parametrize("more", [(), ("--replace",)])
def test_a_recovery_that_fails_is_repeated_without_replacements(more, tmp_path):
    loss, ranks, killed = run(tmp_path, 1, "--stumble", *more)
    assert (ranks, len(killed)) == (3, 1)
    assert loss == pytest.approx(UNDISTURBED, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hinder", "told", "left"),
    [
        ("start", "no new ranks after 20 s: 1 new process did not start", 3),
        ("join", "no new ranks after 20 s: 1 new process did not come to Run.steps", 3),
        ("last", "no new ranks.*died", 2),
        ("first", "no new ranks", 2),
    ],
)
def test_new_ranks_that_do_not_come(hinder, told, left, tmp_path):
    """Or whose start a survivor does not live to see: the others go on without, and say who is missing."""
    done = started(tmp_path, 1, "--replace", "--hinder", hinder, timeout=20)
    assert result(done.stdout, done.stderr) == (pytest.approx(UNDISTURBED, rel=0.02), left)
    assert re.search(told, done.stderr), done.stderr
    assert "NBC_Progress" not in done.stderr  # what Open MPI says, without end, of a merge with a dead process


@pytest.mark.slow
def test_ten_deaths_in_a_run_of_four_ranks(tmp_path):
    loss, ranks, killed = run(tmp_path, 10, "--replace")
    assert (ranks, len(killed)) == (4, 10)
    assert any(new for _, new in killed)  # replacements die, too
    assert any(rank == 0 for rank, _ in killed)
    assert loss == pytest.approx(UNDISTURBED, rel=0.02)


@pytest.mark.long
def test_checkpoints_and_records_of_an_elastic_run(tmp_path):
    """They are as usual after deaths, rank 0's among them; another job, which is not elastic, goes on from them."""
    out, first, second = tmp_path / "out", tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    loss, ranks, killed = run(first, 2, "--out", str(out), "--seed", "3")
    assert ranks == 2
    assert 0 in [rank for rank, _ in killed]
    assert not list(out.glob("checkpoints/train/.writing-*"))
    steps = sorted(int(path.name[5:]) for path in out.glob("checkpoints/train/step-*"))
    assert steps[-1] == 150
    assert run(second, 0, "--out", str(out), ranks=1) == (pytest.approx(loss, abs=1e-6), 1, [])


def test_a_commit_counts_once_the_neighbours_parts_have_come():
    """A rank that dies meanwhile would take its parts with it; those of the commit before are on its neighbour."""
    elastic = Elastic.__new__(Elastic)
    elastic._number, elastic._steps, elastic._members, elastic._commits, elastic._neighbour = 0, 7, {}, {}, {}
    comm = Mock(rank=0, size=2, allreduce=Mock(return_value=1), alltoall=Mock(side_effect=PeerFailure("rank 1 died")))
    with pytest.raises(PeerFailure):
        elastic._commit(comm)
    assert elastic._commits == {}


def test_samples_that_stay_on_ranks_go_back_with_the_commit():
    """Also where nothing tells the data sets of the ranks apart, here of two that are left of three."""

    def elastic_of(data):
        elastic = Elastic.__new__(Elastic)
        elastic._number = elastic._steps = 0
        elastic._members = {"data": Member(data, False, False)}
        elastic._commits, elastic._neighbour, elastic._strategies, elastic.rate = {}, {}, [], 1.0
        return elastic

    def begin(comm):
        data = train.Loader((np.zeros((12, 2)),), 9, comm=comm, placement="local")
        elastic, batches = elastic_of(data), iter(data)
        next(batches)
        elastic._commit(comm)
        next(batches)
        return elastic

    begun = threads.run(3, begin)

    def restore(comm):
        elastic = begun[[0, 2][comm.rank]]
        elastic._restore(comm)
        data = elastic._members["data"].thing
        return data.position, sum(len(x) for (x,) in data)

    assert threads.run(2, restore) == [(6, 9), (6, 9)]


LONG = ("--epochs", "30", "--sleep", "0.02")


def kill_at_random(job, folder, kills, rng):
    """Kill ranks of a job, wherever they are, as long as more than two have made steps. How many it were."""
    done = 0
    while done < kills and job.poll() is None:
        time.sleep(rng.uniform(0, 2.5))
        ranks = [pid for pid in descendants(job.pid) if RANK.search(environment(pid))]
        at_work = [pid for pid in ranks if (folder / f"at work {pid}").exists()]
        if ranks and len(at_work) > 2:
            os.kill(rng.choice(ranks), signal.SIGKILL)
            done += 1
    return done


def killed_at_random(folder, seed, ranks, *more):
    """What a job prints whose ranks are killed, and the number of kills."""
    job = start("openmpi", ranks, PROGRAM, str(folder), "0", *LONG, *more, **(REPLACING if more else ELASTIC))
    try:
        with ThreadPoolExecutor() as beside:  # what the job prints is read meanwhile, or its pipe fills and it waits
            killing = beside.submit(kill_at_random, job, folder, 5, random.Random(seed))
            printed, _ = job.communicate(timeout=150)
            return printed, killing.result()
    finally:
        job.kill()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("more", "ranks"), [((), 8), (("--replace",), 4)])
def test_kills_at_random_moments(more, ranks, seed, tmp_path):
    """Also within recoveries, and while new ranks start."""
    undisturbed, _, _ = run(tmp_path, 0, *LONG[:2], ranks=1)
    for _ in range(3):
        printed, kills = killed_at_random(tmp_path, seed, ranks, *more)
        if not OPEN_MPI_CRASHED.search(printed):
            break
        forget(tmp_path)
    loss, left = result(printed)
    assert loss == pytest.approx(undisturbed, rel=0.02)
    # Open MPI may start no processes any more once one was killed as it started: then few ranks are left to kill.
    assert kills == 5 or (more and kills >= 2 and left <= 2), printed


SHARDED = """
import os, signal, sys
import numpy as np
import collectives
from collectives import train
from collectives.train.checkpoint import Shard
from collectives.train.run.commits import LostState
from collectives.train.run.elastic import Elastic

TOTAL, VICTIMS = 103, {victims}

class Sharded:
    # Numbers of which each rank has its part; a step adds 1 to each.
    def __init__(self, comm):
        self.done = 0
        self.deal(comm)
        self.part = np.arange(self.start, self.stop, dtype=float)
    def deal(self, comm):
        self.start, self.stop = TOTAL * comm.rank // comm.size, TOTAL * (comm.rank + 1) // comm.size
    def state_dict(self):
        return {{"inner": [Shard(self.part, self.start, TOTAL)], "text": "as it is", "done": self.done}}
    def load_state_dict(self, state):
        self.done = state["done"]
        assert state["text"] == "as it is" and state["inner"][0].shape == (TOTAL,)
        self.deal(elastic_comm[-1])
        self.part = state["inner"][0].read(self.start, self.stop)

class Deal:
    batch = 8
    def state_dict(self): return {{}}
    def load_state_dict(self, state): pass
    def redeal(self, comm): elastic_comm.append(comm)

comm = train.communicator()
elastic_comm = [comm]
things = Sharded(comm)
elastic = Elastic(comm, {{"deal": Deal(), "things": things}}, every=2)

def steps():
    while things.done < 10:
        yield things.done
        elastic.raise_failure()
        elastic.comm.allreduce(1)
        things.part += 1
        things.done += 1
        elastic.end_step()

try:
    for step in elastic.steps(steps):
        if step == 5 and elastic.comm is comm and comm.rank in VICTIMS:
            os.kill(os.getpid(), signal.SIGKILL)
except LostState as error:
    print("lost:", error, flush=True)
    os._exit(0)
whole = np.concatenate(elastic.comm.allgather(things.part))
assert (whole == np.arange(TOTAL) + 10).all(), whole
print("well on", elastic.comm.size, flush=True)
"""


@pytest.mark.quick("victims1", "victims3")
@pytest.mark.parametrize("victims", [[0], [2], [3], [0, 2]])
def test_shards_of_the_dead_are_on_their_neighbours(victims):
    program = textwrap.dedent(SHARDED.format(victims=victims))
    done = mpiexec("openmpi", 4, "-c", program, timeout=120, **ELASTIC)
    left = 4 - len(victims)
    assert done.stdout.count(f"well on {left}") == left, done.stdout + done.stderr


def test_neighbours_that_die_together_lose_their_shards():
    program = textwrap.dedent(SHARDED.format(victims=[1, 2]))
    done = mpiexec("openmpi", 4, "-c", program, timeout=120, **ELASTIC)
    told = "lost: things.inner.0: elements from 25 on were on ranks that died together"
    assert done.stdout.count(told) == 2, done.stdout + done.stderr


FAILS = """
import numpy as np
import collectives
from collectives import train
from collectives.train.run.elastic import Elastic
comm = train.communicator()
elastic = Elastic(comm, {})
def steps():
    yield 1
    if comm.rank == 1:
        raise KeyError("mine") if FAILURE == "own" else collectives.CollectiveError("nobody died")
    elastic.raise_failure()
    elastic.end_step()
try:
    for _ in elastic.steps(steps):
        pass
except (KeyError, RuntimeError) as error:
    print(comm.rank, type(error).__name__, error, flush=True)
"""


def test_runs_one_after_the_other_guard_a_strategy(monkeypatch):
    """The first one is over: it must not hear of failures in the second one, which it would wait to hear the end of."""
    net = train.mlp((2,), 2, rng=np.random.default_rng(0))
    _, opt = train.distribute(net, train.SGD(net.parameters(), 0.1), train.AllReduce(), comm=MPI.COMM_SELF)
    comm = Mock(why_no_shrink=None, timeout=None)
    first, second = Elastic(comm, {"opt": opt}), Elastic(comm, {"opt": opt})
    monkeypatch.setattr(train.AllReduce, "before_step", Mock(side_effect=PeerFailure("rank 1 died")))
    with first._guarding():
        pass
    with second._guarding():
        assert opt.strategy.before_step() is False
    assert (first.failure, str(second.failure)) == (None, "rank 1 died")
    with pytest.raises(PeerFailure):
        opt.strategy.before_step()


def test_an_error_without_a_death_ends_the_run():
    done = mpiexec("openmpi", 2, "-c", "FAILURE = 'none'\n" + FAILS, flags=LIVE_ON["openmpi"], timeout=60)
    told = "RuntimeError the run ends, although no rank has died; rank 1: CollectiveError: nobody died"
    assert done.stdout.count(told) == 2, done.stdout + done.stderr


def test_other_errors_are_the_programs():
    done = mpiexec("openmpi", 1, "-c", "FAILURE = 'own'\n" + FAILS.replace("== 1", "== 0"), timeout=120, **ELASTIC)
    assert done.stdout == "0 KeyError 'mine'\n", done.stdout + done.stderr


def test_state_of_torch_comes_back():
    """Without a strategy, and with one that cuts nothing, the optimizer's state, and the gradients as well."""
    program = """
import torch
from collectives import train
from collectives.train.run.elastic import Elastic
comm = train.communicator()
for shard in (None, 0, 1, 2):
    net = torch.nn.Linear(3, 4)
    opt = torch.optim.Adam(net.parameters(), 0.1)
    if shard is not None:
        train.distribute(net, opt, train.AllReduce(shard=shard), comm=comm)
    def step():
        opt.zero_grad()
        net(torch.ones(2, 3)).square().sum().backward()
        opt.step()
        return [p.detach().clone() for p in net.parameters()]
    step()
    elastic = Elastic(comm, {"net": net, "opt": opt})
    elastic._commit(comm)
    expected = [step() for _ in range(3)]
    for _ in range(2):
        elastic._restore(comm)
        found = [step() for _ in range(3)]
        assert all(torch.equal(a, b) for x, y in zip(expected, found) for a, b in zip(x, y)), (shard, expected, found)
    print("well with", shard)
"""
    done = mpiexec("openmpi", 1, "-c", program, env=torch_for("openmpi"), flags=LIVE_ON["openmpi"])
    told = [f"well with {shard}" for shard in (None, 0, 1, 2)]
    assert done.stdout.splitlines() == told, done.stdout + done.stderr
