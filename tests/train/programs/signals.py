"""Tells which signals ranks get: ``mpiexec -n P python signals.py OUT``.

Every rank writes lines to ``OUT/rank-<rank>``: the name of each signal, and "alive" ten times a second. It ends when
there is a file ``OUT/end``, or after a minute.
"""

import os
import signal
import sys
import time
from pathlib import Path

from mpi4py import MPI

OUT = Path(sys.argv[1])
FILE = os.open(OUT / f"rank-{MPI.COMM_WORLD.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(number, frame):
    os.write(FILE, f"{signal.Signals(number).name}\n".encode())


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, note)
    end = time.monotonic() + 60
    while not (OUT / "end").exists() and time.monotonic() < end:
        os.write(FILE, b"alive\n")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
