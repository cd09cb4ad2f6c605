"""Non-blocking calls with objects: results of the blocking ones, order, errors, and what is left behind."""

import gc
import pickle
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import collectives

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
SCHEDULES = "bcast=binomial,allgather=ring,allgatherv=ring,gatherv=linear,scatterv=linear,alltoall=linear"


@pytest.fixture(scope="module", params=["node", "schedules", "mpi"])
def comm(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "node":
            patch.setenv("COLLECTIVES_ALGORITHM", SCHEDULES if request.param == "schedules" else "all=mpi")
        made = collectives.Communicator(MPI.COMM_WORLD)
    yield made
    made.Free()


def thing(rank, length=0):
    return {"rank": rank, "text": "x" * (50 * rank), "array": np.arange(float(length * (rank + 1)))}


def same(a, b):
    return (a["rank"], a["text"], a["array"].tolist()) == (b["rank"], b["text"], b["array"].tolist())


def calls(comm, length):
    """Name and arguments of every call, with objects of this rank, and the last rank as the root."""
    root, every = SIZE - 1, [thing(RANK + rank, length) for rank in range(SIZE)]
    return {
        "bcast": (thing(RANK, length), root), "gather": (thing(RANK, length), root),
        "allgather": (thing(RANK, length),), "scatter": (every if root == RANK else None, root), "alltoall": (every,),
        "reduce": (RANK + 1, MPI.PROD, root), "allreduce": ("ab"[RANK % 2], lambda a, b: a + b),
        "scan": ([RANK] * length,), "exscan": ([RANK] * (length + 1),), "barrier": (),
    }  # fmt: skip


def equal(a, b):
    if isinstance(a, dict):
        return same(a, b)
    if isinstance(a, list) and a and isinstance(a[0], dict):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("length", [0, 1000, 300_000])
def test_results_are_those_of_the_blocking_calls(comm, length):
    """All of them under way at once, waited for in another order."""
    given = calls(comm, length)
    started = {name: getattr(comm, f"i{name}")(*arguments) for name, arguments in given.items()}
    found = {name: started[name].wait() for name in reversed(started)}
    for name, arguments in given.items():
        assert equal(found[name], getattr(comm, name)(*arguments)), name


def test_calls_of_the_program_go_on_between(comm):
    """The second step of a call never meets a call of the program, whatever the ranks do in between."""
    requests = []
    for i in range(20):
        requests.append(comm.iallgather((RANK, i)))
        if RANK == i % SIZE:
            time.sleep(0.001)
        assert comm.allreduce(i) == i * SIZE
        total = np.empty(1)
        comm.Allreduce(np.ones(1), total)
        assert total[0] == SIZE
    expected = [[(rank, i) for rank in range(SIZE)] for i in range(20)]
    assert collectives.communicator.ObjectRequest.waitall(requests) == expected


def test_objects_are_sent_as_they_were_at_the_call(comm):
    mine = [RANK]
    request = comm.iallgather(mine)
    mine.append("later")
    assert request.wait() == [[rank] for rank in range(SIZE)]
    assert request.wait() is request.wait()  # a request keeps its result


def test_the_root_of_a_broadcast_has_a_copy_too(comm):
    mine = thing(RANK, 1000)
    found = comm.ibcast(mine, 0).wait()
    assert found is not mine
    found["array"][:] = -1
    assert same(mine, thing(RANK, 1000))


def test_a_call_is_not_complete_before_the_last_rank_comes(comm):
    comm.Barrier()
    if RANK == SIZE - 1:
        time.sleep(0.1)
    request = comm.iallgather(RANK)
    if SIZE > 1 and RANK == 0:
        assert request.test() == (False, None)
    assert request.wait() == list(range(SIZE))
    assert request.test() == (True, list(range(SIZE)))


def test_none_stands_for_an_object_for_each_rank(comm):
    """As in the blocking calls, and in mpi4py."""
    assert comm.ialltoall(None).wait() == comm.alltoall(None) == [None] * SIZE
    assert comm.iscatter(None).wait() is comm.scatter(None) is None


def test_wrong_calls_are_refused_before_anything_is_sent(comm):
    for call, error, why in (
        (lambda: comm.ibcast(1, SIZE), ValueError, "root"),
        (lambda: comm.ialltoall([1] * (SIZE + 1)), ValueError, "one for each rank"),
        (lambda: comm.iallgather(lambda: 0), (pickle.PicklingError, AttributeError), "lambda"),
        (lambda: comm.igather(1, "0"), TypeError, "root"), (lambda: comm.ialltoall(3), TypeError, "iterable"),
    ):  # fmt: skip
        with pytest.raises(error, match=why):
            call()
    with comm.group(), pytest.raises(ValueError, match="within a group"):
        comm.ibcast(1)
    assert comm.iallreduce(1).wait() == SIZE


def test_an_op_that_fails_raises_in_wait(comm):
    def fails(a, b):
        raise ZeroDivisionError

    request = comm.iallreduce(1, fails)
    if SIZE > 1:
        with pytest.raises(ZeroDivisionError):
            request.wait()
    assert comm.iallreduce(2).wait() == 2 * SIZE


def test_threads_end_with_their_communicators():
    before = threading.active_count()
    for _ in range(3):
        made = collectives.Communicator(MPI.COMM_WORLD)
        assert made.iallreduce(1).wait() == SIZE
        made.Free()
    assert threading.active_count() == before
    made = collectives.Communicator(MPI.COMM_WORLD)
    request = made.iallreduce(1)
    del made
    gc.collect()
    assert request.wait() == SIZE
    for _ in range(100):
        if threading.active_count() == before:
            break
        time.sleep(0.01)
    assert threading.active_count() == before
