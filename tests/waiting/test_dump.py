"""The report of what a process waits for."""

import re
import subprocess
import sys

import pytest
from jobs import mpiexec

PROGRAM = """
import io
import numpy as np
from mpi4py import MPI
import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
begin = lambda: [comm.Iallreduce(np.ones(n), np.empty(n)) for n in (1, 2, 3)]
if comm.rank == 0:
    requests = begin()
    told = io.StringIO()
    collectives.dump(told)
    print(told.getvalue(), end="", flush=True)
    MPI.COMM_WORLD.Barrier()
else:
    MPI.COMM_WORLD.Barrier()
    requests = begin()
MPI.Request.Waitall(requests)
"""


def test_every_call_under_way_is_told():
    done = mpiexec("openmpi", 2, "-c", PROGRAM, timeout=60)
    assert done.returncode == 0, done.stderr
    for n, line in zip((1, 2, 3), done.stdout.splitlines(), strict=True):
        told = rf": call {n}, allreduce of {n} float64, SUM \(\w+\), non-blocking, under way, waits for "
        assert re.search(told, line), line


SIGNALS = """
import faulthandler, os, signal, sys, tempfile
from collectives.waiting import dump

def ask():
    os.kill(os.getpid(), signal.SIGUSR2)
    for _ in range(1000):
        pass

out = os.dup(1)
CASE
os.write(out, b"went on\\n")
os._exit(0)
"""
WITHOUT = """
dump.dump_on_signal()
given = sys.stderr
sys.stderr = None
ask()
sys.stderr = given
given.close()
ask()
end, pipe = os.pipe()
os.dup2(pipe, 2)
os.close(pipe)
os.close(end)
ask()
os.close(2)
ask()
"""
REPLACED = """
dump.dump_on_signal()
ours = signal.signal(signal.SIGUSR2, lambda *_: None)
ask()
signal.signal(signal.SIGUSR2, ours)
ask()
ask()
"""
IN_C = """
written = tempfile.TemporaryFile()
faulthandler.register(signal.SIGUSR2, file=written)
dump.dump_on_signal()
ask()
os.write(out, b"%d lines\\n" % (os.fstat(written.fileno()).st_size > 0))
"""


@pytest.mark.parametrize(
    ("case", "printed", "reports"),
    [(WITHOUT, "", 2), (REPLACED, "", 2), (IN_C, "1 lines\n", 0)],
    ids=["no standard error", "a handler of the program for a while", "a handler in C"],
)
def test_signals_reach_whom_they_should(case, printed, reports):
    """They never raise in the program. A closed object of Python's leaves the descriptor open, or not."""
    program = SIGNALS.replace("CASE", case)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{printed}went on\n", done.stderr
    assert done.stderr.count("in no collective") == reports
