"""The programs of three ranks on three hosts end seconds apart, as where rank 0 saves results."""

import json
import os
import time

from mpi4py import MPI

import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
comm.Barrier()
time.sleep([9, 0, 1][comm.rank])
results = os.open(os.environ["RESULTS"], os.O_WRONLY | os.O_APPEND)
os.write(results, (json.dumps({"rank": comm.rank, "ended": True}) + "\n").encode())
