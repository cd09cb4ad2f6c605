"""Programs that are written in their tests: run on all ranks, with a communicator made."""

import textwrap
import time

from jobs import mpiexec

#: What a rank says that ends by MPI_Abort, since MPI_Finalize might hang.
ABORT = "MPI_Abort instead of MPI_Finalize"
PREAMBLE = """
import os, signal, sys, threading, time
import numpy as np
from mpi4py import MPI
import collectives
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
def report(*words):
    print(f"rank {rank}:", *words, flush=True)
MPI.COMM_WORLD.Barrier()  # all are about to make it, on slow machines, too
comm = collectives.Communicator(MPI.COMM_WORLD)
"""


def run(mpi, program, ranks=2, env=None, preamble=PREAMBLE, flags=()):
    """The exit code and all output of a program on all ranks; it must end by itself."""
    begin = time.monotonic()
    done = mpiexec(mpi, ranks, "-c", preamble + textwrap.dedent(program), timeout=60, env=env, flags=flags)
    assert time.monotonic() - begin < 55, "hangs\n" + done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr
