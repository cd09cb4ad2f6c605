"""What goes on beside a call that fails, and after it: other communicators, requests that are tested, descriptors."""

import os
import time

import numpy as np
from mpi4py import MPI

import collectives

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
ELEMENTS = 1000


def made(timeout):
    comm = collectives.Communicator(world)
    comm.timeout = timeout
    return comm


def raised(make):
    """The error's class, by name, and its words."""
    try:
        make()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return ""


def new_communicators_do_not_fail_for_old_ones():
    """One rank gave up a call of an old communicator, whose other ranks have made none since."""
    old = made(0.3)
    if rank == 1:
        assert raised(lambda: old.Barrier()).startswith("CollectiveTimeout")
    world.Barrier()
    if rank == 2:
        time.sleep(2.5)
    return raised(lambda: made(20).Barrier())


def requests_tested_in_turn_are_both_looked_at():
    """The second one never ends: the others make another call."""
    first, second = made(60), made(60)
    x, y = np.ones(ELEMENTS), np.empty(ELEMENTS)
    if rank:
        found = raised(lambda: second.Bcast(x, 1)) or raised(lambda: second.Barrier())
        first.Iallreduce(x, y).Wait()
        return "" if "Mismatch" in found else found or "nobody told this rank"
    requests = [first.Iallreduce(x, y), second.Iallreduce(x, y.copy())]
    end = time.monotonic() + 15
    while time.monotonic() < end:
        found = raised(lambda: [request.Test() for request in requests])
        if found:
            requests[0].Wait()
            return "" if "Mismatch" in found else found
    return "nobody told this rank"


def persistent_requests_say_that_they_are_broken():
    comm = made(0.3)
    request = comm.Allreduce_init(np.ones(ELEMENTS), np.empty(ELEMENTS))
    if rank:
        world.Barrier()
        request.Free()
        return ""
    request.Start()
    found = [raised(request.Wait), raised(request.Start)]
    freed = raised(request.Free)
    world.Barrier()
    if freed or "CollectiveTimeout" not in found[0] or "broken" not in found[1]:
        return f"{found}, {freed}"
    return ""


def persistent_requests_start_together():
    comm = made(20)
    targets = [np.empty(ELEMENTS), np.empty(ELEMENTS)]
    requests = [comm.Allreduce_init(np.ones(ELEMENTS), target) for target in targets]
    type(requests[0]).Startall(requests)
    for request in requests:
        request.Wait()
        request.Free()
    return "" if all((target == size).all() for target in targets) else f"{targets}"


def tests_leave_no_descriptors():
    """Nor do calls that end in ``Wait`` after some tests, whether they wait there or have ended by then."""
    counts = []
    for _ in range(12):
        comm = made(20)
        world.Barrier()
        if rank:
            time.sleep(0.05)
        request = comm.Iallreduce(np.ones(ELEMENTS), np.empty(ELEMENTS))
        if rank == 0:
            end = time.monotonic() + 0.03
            while not request.Test() and time.monotonic() < end:
                pass
        time.sleep(0.05 * (rank == 0))
        request.Wait()
        comm.Free()
        counts.append(len(os.listdir("/proc/self/fd")))
    end = time.monotonic() + 5  # what watched the last call is closed at the next look, which comes each second
    while counts[-1] > counts[2] and time.monotonic() < end:
        time.sleep(0.1)
        counts.append(len(os.listdir("/proc/self/fd")))
    return "" if counts[-1] <= counts[2] else f"descriptors: {counts}"


CASES = [
    new_communicators_do_not_fail_for_old_ones, requests_tested_in_turn_are_both_looked_at,
    persistent_requests_say_that_they_are_broken, persistent_requests_start_together, tests_leave_no_descriptors,
]  # fmt: skip

wrong = 0
for case in CASES:
    found = world.allgather(case())
    wrong += any(found)
    if any(found) and rank == 0:
        print(f"{case.__name__}: {found}", flush=True)
if rank == 0:
    print(f"attack: {len(CASES)} trials, {wrong} wrong", flush=True)
world.Barrier()
