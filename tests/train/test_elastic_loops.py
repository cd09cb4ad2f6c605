"""Loops of elastic runs: errors in them, what they may call, and what is refused."""

import re
import textwrap

import numpy as np
import pytest
from jobs import ELASTIC, mpiexec

from collectives import train

LOOP = """
import os, signal, sys
import numpy as np
import collectives
from collectives import train

class PerRank(train.Loader):
    # Its global batch is 10 samples for each rank.
    def redeal(self, comm):
        super().redeal(comm)
        self.batch = 10 * comm.size

comm = train.communicator()
x = np.random.default_rng(0).standard_normal((240, 3))
data = PerRank((x, x.argmax(axis=1)), 10 * comm.size, comm=comm)
net = train.mlp((3,), 3, rng=np.random.default_rng(0))
net, opt = train.distribute(net, train.SGD(net.parameters(), 0.4), train.AllReduce(), comm=comm)
run = train.Run(comm=comm, state={"net": net, "opt": opt, "data": data}, lr=lambda samples: 0.4, elastic=True,
                progress="lines", evaluate=lambda: evaluate())
evaluate, each = lambda: {}, lambda: None
def die(): os.kill(os.getpid(), signal.SIGKILL)
def loop():
    for a, b in run.steps(data, epochs=4):
        if run.step == 15 and run.comm.size == 4 and run.comm.rank == 1:
            die()
        each()
        opt.zero_grad()
        loss = train.CrossEntropyLoss()(net(a), b)
        loss.backward()
        opt.step()
        run.log(loss=loss)
"""


def told(program, ranks=4):
    """The lines that the ranks print."""
    done = mpiexec("openmpi", ranks, "-c", LOOP + textwrap.dedent(program), timeout=120, **ELASTIC)
    return sorted(done.stdout.splitlines()), done.stderr


def test_the_rate_follows_the_global_batch():
    lines, errors = told("""
        loop()
        print(run.comm.size, data.batch, round(opt.lr, 6), run.samples, flush=True)
    """)
    assert [line for line in lines if "epoch" not in line] == ["3 30 0.3 960"] * 3, errors


def test_own_collectives_of_the_loop():
    """A rank that catches the error, and gives up the step, goes on with the others."""
    program = """
        for a, b in run.steps(data, epochs=4):
            if run.step == 15 and run.comm.size == 4 and run.comm.rank == 1:
                die()
            try:
                used = run.comm.allreduce(len(a))
            except collectives.CollectiveError:
                continue
            opt.zero_grad()
            train.CrossEntropyLoss()(net(a), b).backward()
            opt.step()
        print(run.comm.size, used, run.samples, flush=True)
    """
    lines, errors = told(program)
    assert [line for line in lines if "epoch" not in line] == ["3 30 960"] * 3, errors


def test_the_old_communicator_is_named_as_the_cause():
    lines, errors = told("""
        evaluate = lambda: train.evaluate(net, x, x.argmax(axis=1), comm=comm)
        try:
            loop()
        except RuntimeError as error:
            print(error, flush=True)
            os._exit(0)
    """)
    how = "no rank has died; rank 0: .*; after a loss of ranks only run.comm can be used"
    assert [bool(re.search(how, line)) for line in lines if "epoch" not in line] == [True] * 3, (lines, errors)


@pytest.mark.parametrize("raised", [0, 2])
def test_a_rank_that_an_exception_ends_counts_as_dead(raised):
    lines, errors = told(f"""
        def each():
            if run.step == 12 and run.comm.size == 4 and run.comm.rank == {raised}:
                raise KeyError("mine")
        loop()
        print(run.comm.size, run.samples, flush=True)
    """)
    assert [line for line in lines if "epoch" not in line] == ["3 960"] * 3, errors
    assert errors.count("KeyError: 'mine'") == 1
    assert "3 of 4 go on from step 10" in errors


@pytest.mark.slow
def test_a_rank_that_leaves_the_loop_alone_ends_all():
    """Also if one of the others learns of it later than they: it does not take their end for deaths."""
    lines, errors = told("""
        import time
        agree = run._elastic._agree
        def late(well):
            if not well and run.comm.rank == 3:
                time.sleep(2)
            return agree(well)
        run._elastic._agree = late
        def each():
            if run.step == 12 and run.comm.rank == 2:
                sys.exit(0)
        try:
            loop()
        except RuntimeError as error:
            print(error, flush=True)
            os._exit(0)
    """)
    how = "the run ends, although no rank has died; .*rank 2 .*ended"
    assert [bool(re.search(how, line)) for line in lines if "epoch" not in line] == [True] * 3, (lines, errors)


REFUSED = """
import sys
import numpy as np
from mpi4py import MPI
from collectives import train
comm = train.communicator() if sys.argv[1] == "ours" else MPI.COMM_WORLD
net = train.mlp((3,), 3, rng=np.random.default_rng(0))
opt = train.SGD(net.parameters(), 0.1)
if sys.argv[2] == "NoComm":
    train.distribute(net, opt, train.NoComm(), comm=comm)
try:
    run = train.Run(comm=comm, state={"opt": opt}, elastic=True)
    next(run.steps(train.Loader((np.zeros((4, 3)), np.zeros(4)), 2, comm=comm), epochs=1))
except ValueError as error:
    print(error, flush=True)
"""


@pytest.mark.in_turn
def test_what_cannot_be_elastic(mpi):
    done = mpiexec(mpi, 2, "-c", REFUSED, "ours", "-", timeout=60)
    how = "mpiexec --with-ft ulfm.*; without elastic, the same command goes on from the newest checkpoint"
    assert [bool(re.search(how, line)) for line in done.stdout.splitlines()] == [True] * 2, done.stdout + done.stderr
    done = mpiexec(mpi, 1, "-c", REFUSED, "theirs", "-", timeout=60)
    assert "this is no collectives.Communicator" in done.stdout, done.stdout + done.stderr


def test_new_ranks_have_no_samples_that_others_had_for_themselves():
    def on_rank(comm):
        data = train.Loader((np.zeros((4, 2)),), 2, comm=comm, placement="local")
        train.Run(comm=comm, state={"mine": data}, elastic=True, replace_ranks=True)

    with pytest.raises(ValueError, match=r'replace_ranks: state\["mine"\] has placement="local"'):
        train.threads.run(2, on_rank)


def test_a_strategy_that_keeps_its_ranks_cannot_be_elastic():
    done = mpiexec("openmpi", 1, "-c", REFUSED, "ours", "NoComm", timeout=120, **ELASTIC)
    assert done.stdout == "elastic: NoComm cannot go on with other ranks than it began with\n", done.stderr


def test_a_loader_that_is_in_no_commit_cannot_be_elastic():
    done = mpiexec("openmpi", 1, "-c", REFUSED, "ours", "-", timeout=120, **ELASTIC)
    assert "a run that goes back needs the position in the data: put the loader into state" in done.stdout, done.stderr


@pytest.mark.parametrize("strategy", ["PushSum", pytest.param("NeighborAveraging", marks=pytest.mark.slow)])
def test_who_waits_for_a_neighbour_that_gave_up_the_step(strategy):
    """In a ring of four the rank opposite to the dead one hears of the death by its neighbours only."""
    program = LOOP.replace("train.AllReduce()", f"train.{strategy}('ring')")
    program += "\nloop()\nprint('ended', run.comm.size, run.step, flush=True)"
    done = mpiexec("openmpi", 4, "-c", program, timeout=90, **ELASTIC)
    assert done.stdout.splitlines().count("ended 3 29") == 3, done.stdout + done.stderr
