"""Ranks that are threads: the same results as on the ranks of a job, and errors that name ranks."""

import subprocess
import sys
import time

import numpy as np
import pytest
from jobs import ROOT, mpiexec, variables
from mpi4py import MPI

import collectives
from collectives import train
from collectives.train import threads


def arrays(comm, n=101, dtype=np.float64):
    return (np.random.default_rng(comm.rank).standard_normal(n) * 10).astype(dtype)


def same_on_all(results):
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    return results[0]


OPS = {"SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_reductions(name, ranks):
    op = getattr(MPI, name)

    def on_rank(comm):
        x, y = arrays(comm), np.empty(101)
        comm.Allreduce(x, y, op=op)
        in_place = x.copy()
        comm.Iallreduce(MPI.IN_PLACE, in_place, op=op).Wait()
        np.testing.assert_array_equal(y, in_place)
        at_root = np.empty(101)
        comm.Reduce(x, at_root, op=op, root=comm.size - 1)
        if comm.rank == comm.size - 1:
            np.testing.assert_array_equal(y, at_root)
        counts = [101 // comm.size + (r < 101 % comm.size) for r in range(comm.size)]
        part = np.empty(counts[comm.rank])
        comm.Reduce_scatter(x, part, counts, op=op)
        start = sum(counts[: comm.rank])
        np.testing.assert_array_equal(part, y[start : start + len(part)])
        return y

    total = same_on_all(threads.run(ranks, on_rank))
    expected = OPS[name].reduce([np.random.default_rng(r).standard_normal(101) * 10 for r in range(ranks)])
    np.testing.assert_allclose(total, expected, rtol=1e-14)


def test_integers_and_bits():
    ops = (MPI.LAND, MPI.LOR, MPI.LXOR, MPI.BAND, MPI.BOR, MPI.BXOR)

    def on_rank(comm):
        results = []
        for op in ops:
            x = np.array([comm.rank + 1], np.int32)
            comm.Allreduce(MPI.IN_PLACE, x, op=op)
            results.append(int(x[0]))
        return results

    assert threads.run(2, on_rank) == [[1, 1, 0, 0, 3, 3]] * 2


def test_moves():
    def on_rank(comm):
        r, p = comm.rank, comm.size
        x = np.full(4, float(r))
        comm.Bcast(x, root=p - 1)
        assert (x == p - 1).all()
        y = np.empty((p, 2))
        comm.Allgather(np.full(2, float(r)), y)
        assert (y == np.arange(p)[:, None]).all()
        y[r], y[:r], y[r + 1 :] = r, -1, -1
        comm.Iallgather(MPI.IN_PLACE, y).Wait()
        assert (y == np.arange(p)[:, None]).all()
        counts = list(range(1, p + 1))
        z = np.empty(sum(counts), np.int64)
        comm.Allgatherv(np.full(r + 1, r), [z, counts])
        assert z.tolist() == [q for q in range(p) for _ in range(q + 1)]
        out = np.empty(p, np.int64)
        comm.Alltoall(np.arange(p) + 10 * r, out)
        assert out.tolist() == [10 * q + r for q in range(p)]
        sent = np.repeat(np.arange(p), r + 1)  # r + 1 elements to each rank
        got = np.empty(sum(counts), np.int64)
        comm.Alltoallv([sent, [r + 1] * p], [got, (counts, None), MPI.INT64_T])
        assert (got == r).all()
        comm.Barrier()
        return True

    assert all(threads.run(3, on_rank))


def test_objects_are_copies():
    def on_rank(comm):
        mine = {"rank": comm.rank, "list": [comm.rank]}
        every = comm.allgather(mine)
        every[0]["list"].append("changed")
        comm.Barrier()
        assert mine == {"rank": comm.rank, "list": [comm.rank]}
        assert comm.bcast(mine if comm.rank == 1 else None, root=1)["rank"] == 1
        assert comm.gather(comm.rank, root=2) == ([0, 1, 2] if comm.rank == 2 else None)
        assert comm.scatter([5, 6, 7] if comm.rank == 0 else None) == 5 + comm.rank
        assert comm.alltoall([(comm.rank, q) for q in range(3)]) == [(q, comm.rank) for q in range(3)]
        assert comm.allreduce([comm.rank]) == [0, 1, 2]
        assert comm.allreduce(comm.rank, MPI.MAX) == comm.allreduce(comm.rank, max) == 2
        return True

    assert all(threads.run(3, on_rank))


def test_messages():
    def on_rank(comm):
        r, p = comm.rank, comm.size
        x = np.empty(3)
        request = comm.Irecv(x, source=(r - 1) % p, tag=7)
        comm.Send(np.full(3, -1.0), (r + 1) % p, tag=6)
        comm.Isend(np.full(3, float(r)), (r + 1) % p, tag=7).Wait()
        request.Wait()
        assert (x == (r - 1) % p).all()
        comm.Recv(x, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
        assert (x == -1).all()
        comm.Barrier()
        comm.send({"from": r}, (r + 2) % p)
        assert comm.recv(source=(r - 2) % p) == {"from": (r - 2) % p}
        comm.Sendrecv(np.array([r]), (r + 1) % p, recvbuf=(got := np.empty(1, int)), source=(r - 1) % p)
        assert got[0] == (r - 1) % p
        comm.Send(x, MPI.PROC_NULL)
        comm.Recv(x, MPI.PROC_NULL)
        return True

    assert all(threads.run(4, on_rank))


def test_order_of_requests_and_test():
    def on_rank(comm):
        a, b = np.ones(3), np.full(3, 2.0)
        first, second = comm.Iallreduce(MPI.IN_PLACE, a), comm.Iallreduce(MPI.IN_PLACE, b)
        second.Wait()
        while not first.Test():
            pass
        return a[0], b[0]

    assert threads.run(3, on_rank) == [(3, 6)] * 3


def test_a_part_of_the_ranks():
    def on_rank(comm):
        half = comm.Split(comm.rank % 2, -comm.rank)
        assert half.size == 2
        assert half.allgather(comm.rank) == ([2, 0] if comm.rank % 2 == 0 else [3, 1])
        none = comm.Split(0 if comm.rank == 3 else None)
        assert (none is None) == (comm.rank != 3)
        assert comm.Dup().allreduce(1) == comm.Split_type(MPI.COMM_TYPE_SHARED).size == 4
        return True

    assert all(threads.run(4, on_rank))


@pytest.mark.quick("3")
@pytest.mark.parametrize("ranks", [3, 4])
def test_bits_are_those_of_the_ranks_of_a_job(ranks):
    path = "tests/train/programs/train_steps.py"
    done = mpiexec("openmpi", ranks, path)
    assert done.returncode == 0, done.stdout + done.stderr
    alone = subprocess.run(
        [sys.executable, "-m", "collectives.train.threads", "-n", str(ranks), path], capture_output=True,
        text=True, check=False, env=variables(), cwd=ROOT,
    )  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    job, own = done.stdout.splitlines()[-1], alone.stdout.splitlines()[-1]
    assert job.startswith(f"{ranks} ranks"), done.stdout
    assert own == job


class OurError(Exception):
    pass


def test_an_exception_ends_all_ranks():
    told = {}

    def on_rank(comm):
        if comm.rank == 2:
            raise OurError("here")
        try:
            comm.Barrier()
        except collectives.PeerFailure as error:
            told[comm.rank] = str(error)
            raise

    with pytest.raises(OurError, match="here"):
        threads.run(4, on_rank)
    assert sorted(told) == [0, 1, 3]
    assert all("rank 2 ended by OurError: here" in text for text in told.values()), told


def test_a_rank_that_returned_is_named():
    def on_rank(comm):
        if comm.rank:
            comm.allreduce(1)

    with pytest.raises(collectives.PeerFailure, match=r"allgather \(call 1\) on rank . of 3: the function of rank 0"):
        threads.run(3, on_rank)


def test_a_timeout_names_who_is_missing():
    def on_rank(comm):
        if comm.rank == 1:
            time.sleep(0.6)
        else:
            comm.Barrier()

    with pytest.raises(collectives.CollectiveTimeout, match=r"not complete after 0.2 s; waiting for rank 1$"):
        threads.run(3, on_rank, timeout=0.2)


def test_calls_that_differ():
    def on_rank(comm):
        x = np.ones(3 + comm.rank)
        comm.Allreduce(MPI.IN_PLACE, x)

    with pytest.raises(collectives.CollectiveMismatch, match=r"rank \d: Allreduce of [34] float64, SUM; rank \d: A"):
        threads.run(2, on_rank)


def test_wrong_arguments_are_refused_before_anything_is_sent():
    def on_rank(comm):
        with pytest.raises(TypeError, match="gaps"):
            comm.Allreduce(np.ones(8)[::2], np.ones(4))
        with pytest.raises(ValueError, match="algorithm 'ring'"):
            comm.Allreduce(MPI.IN_PLACE, np.ones(4), algorithm="ring")
        with pytest.raises(ValueError, match="rank 5 is not one of 2"):
            comm.bcast(1, root=5)
        with pytest.raises(TypeError, match="read-only"):
            comm.Allgather(np.ones(1), np.frombuffer(bytes(16)))
        return comm.allreduce(1)

    assert threads.run(2, on_rank) == [2, 2]


def test_the_default_communicator_is_the_threads():
    inner = threads.run(2, lambda comm: train.communicator() is comm)
    assert inner == [True, True]
    assert threads.current() is None
    with pytest.raises(ValueError, match="size"):
        threads.run(0, lambda comm: None)


def test_functions_without_a_communicator(tmp_path):
    def on_rank(comm):
        train.checkpoint.save(tmp_path / "one", {"own": {"rank": comm.rank}}, per_rank=["own"])
        net = train.mlp((4,), 2, rng=np.random.default_rng(comm.rank))
        with pytest.raises(train.WeightsDiverged):
            train.check_weights(net)
        return train.checkpoint.load(tmp_path / "one").state("own")["rank"], train.same_bits(net)

    assert threads.run(2, on_rank) == [(0, False), (1, False)]


def test_errors_of_scripts(tmp_path):
    script = tmp_path / "prog.py"
    script.write_text(
        "import sys\nfrom collectives import train\ncomm = train.communicator()\nsys.exit(comm.rank == 1)"
    )
    command = [sys.executable, "-m", "collectives.train.threads", "-n"]
    done = subprocess.run([*command, "2", str(script)], capture_output=True, env=variables(), check=False)
    assert done.returncode == 1
    done = subprocess.run([*command, "0", str(script)], capture_output=True, env=variables(), check=False)
    assert done.returncode == 2
    assert b"-n must be at least 1" in done.stderr
