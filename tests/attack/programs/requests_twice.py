"""Requests started twice, waited for by several threads, freed while they are under way, started after that."""

import threading
import time

import numpy as np
from mpi4py import MPI

import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
comm.timeout = 60
rank, size = comm.rank, comm.size
trials, wrong = 0, []


def note(what, right):
    global trials
    trials += 1
    if not right:
        wrong.append(f"rank {rank}: {what}")


def refused(use, words):
    try:
        use()
    except ValueError as e:
        return words in str(e)
    return False


for count, algorithm in ((1, None), (1, "ring"), (100_000, None), (100_000, "ring")):
    x, y = np.ones(count), np.zeros(count)
    plan = comm.Allreduce_init(x, y, algorithm=algorithm)
    for late in (0, 0.02):  # whether the first run has ended when the second is started
        plan.Start()
        time.sleep(late)
        if rank == 0:
            note(f"a second Start of {count}, {algorithm}", refused(plan.Start, "under way already"))
        plan.Wait()
        note("the first run", (y == size).all())
    plan.Start()
    MPI.Request.Waitall([plan])
    plan.Start()
    plan.Free()  # waits
    note("Free of a run under way", (y == size).all())
    note("Start after Free", refused(plan.Start, "has been freed"))
    plan.Free()

    for _ in range(30):
        request, together, failed = comm.Iallreduce(x, y, algorithm=algorithm), threading.Barrier(3), []

        def wait(request=request, together=together, failed=failed):
            together.wait()
            try:
                request.Wait()
                while not request.Test():
                    pass
            except BaseException as e:
                failed.append(e)

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        note(f"three threads wait for one request: {failed}", not failed and request == MPI.REQUEST_NULL)

print(*wrong, f"attack: {trials} trials, {len(wrong)} wrong", sep="\n", flush=True)
