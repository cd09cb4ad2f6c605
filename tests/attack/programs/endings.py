"""Rank 0 ends its program in some way; the others wait for it, each kind of wait in turn being one argument.

What the others raise is written to the file RESULTS: rank, seconds, error, message.
"""

import json
import os
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

import collectives

how, what = sys.argv[1:]
comm = collectives.Communicator(MPI.COMM_WORLD)
a, b = np.ones(10), np.ones(10)


def exit_in_a_thread():
    thread = threading.Thread(target=sys.exit)
    thread.start()
    thread.join()


ENDS = {
    "return": lambda: None,
    "raise": lambda: 1 / 0,  # the place where it raises
    "exit_0": lambda: sys.exit(0),
    "exit_3": lambda: sys.exit(3),
    "os_exit": lambda: os._exit(0),
    "exit_in_a_thread": exit_in_a_thread,
    "finalize": MPI.Finalize,
    "abort": lambda: MPI.COMM_WORLD.Abort(3),
    "exec": lambda: os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(20)"]),
}


def persistent(**options):
    request = made[0]
    request.Start()
    request.Wait()


WAITS = {
    "blocking": lambda: comm.Allreduce(a, b),
    "ring": lambda: comm.Allreduce(a, b, algorithm="ring"),
    "nonblocking": lambda: comm.Iallreduce(a, b).Wait(),
    "nonblocking_ring": lambda: comm.Iallreduce(a, b, algorithm="ring").Wait(),
    "persistent": persistent,
    "persistent_ring": persistent,
    "objects": lambda: comm.allgather({"rank": comm.rank}),
    "python": lambda: comm.Allreduce(a, b, engine="python"),
    "init": lambda: comm.Allreduce_init(a, b),
    "dup": comm.Dup,
    "split": lambda: comm.Split(0, comm.rank),
    "create": lambda: comm.Create(comm.Get_group()),
    "create_group": lambda: comm.Create_group(comm.Get_group()),
    "free": comm.Free,
    "new": lambda: collectives.Communicator(MPI.COMM_WORLD),
}
made = []
if what.startswith("persistent"):
    made.append(comm.Allreduce_init(a, b, **({"algorithm": "ring"} if what.endswith("ring") else {})))
for _ in range(3):
    comm.Allreduce(a, b)
if comm.rank == 0:
    time.sleep(0.3)
    ENDS[how]()  # the place where it ends
else:
    begin = time.monotonic()
    try:
        WAITS[what]()
        found = ["", ""]
    except collectives.CollectiveError as e:
        found = [type(e).__name__, str(e)]
    line = json.dumps([comm.rank, time.monotonic() - begin - 0.3, *found])
    with open(os.environ["RESULTS"], "a+") as file:
        file.write(line + "\n")
        end = time.monotonic() + 2
        told = 0
        while told < comm.size - 1 and time.monotonic() < end:  # who ends first aborts, and keeps others from raising
            time.sleep(0.01)
            file.seek(0)
            told = len(file.readlines())
