"""A rank asks another one, which is late, what it does, and is killed before the answer.

Some MPIs crash in a send to a dead process, so the late rank may not answer it. There are three ranks on three hosts.
Rank 1 waits for rank 2 and dies. Rank 2 comes late, and then waits for rank 0, which never comes.
"""

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives

signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # which MPICH's launcher sends when a rank dies
comm = collectives.Communicator(MPI.COMM_WORLD)
comm.timeout = float(os.environ["TIMEOUT"])
x = np.ones(4)
results = os.open(os.environ["RESULTS"], os.O_WRONLY | os.O_APPEND)


def say(**words):
    os.write(results, (json.dumps({"rank": comm.rank, **words}) + "\n").encode())


comm.Barrier()
if comm.rank == 1:
    threading.Timer(1.6, os.kill, (os.getpid(), signal.SIGKILL)).start()
    comm.Bcast(x, 2)
elif comm.rank == 2:
    time.sleep(2.5)  # the question has been here for long by then
    try:
        comm.Bcast(x, 0)
    except collectives.CollectiveError as e:
        say(raised=type(e).__name__, text=str(e))
else:
    end = time.monotonic() + 10
    while time.monotonic() < end and b'"rank": 2' not in Path(os.environ["RESULTS"]).read_bytes():
        time.sleep(0.05)
os._exit(0)
