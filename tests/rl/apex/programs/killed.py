"""Ape-X, of which ranks are killed.

``mpiexec --with-ft ulfm -n RANKS python tests/rl/apex/programs/killed.py WHERE VICTIMS [OPTION...]`` kills the ranks
VICTIMS (1,2), each when it comes to WHERE: "play", "learn", "draw" or "evaluate", for the third time; a number is that
of seconds after it has begun to play. The options are those of ``python -m collectives rl``.
"""

import argparse
import os
import signal
import sys

from mpi4py import MPI

from collectives.rl import acting, cli, course, learning, memory

PLACES = {
    "play": (acting.Actor, "play"),
    "learn": (learning.Learner, "update"),
    "draw": (memory.Memory, "draw"),
    "evaluate": (course, "evaluate"),
}


def timed(method, seconds):
    """`method`, whose first call lets this process end so many seconds later, also within MPI."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    left = [seconds]

    def call(*args):
        if left:
            signal.setitimer(signal.ITIMER_REAL, left.pop())
        return method(*args)

    return call


def deadly(method):
    """`method`, whose third call ends this process."""
    calls = 0

    def call(*args):
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args)

    return call


where, victims, *options = sys.argv[1:]
if MPI.COMM_WORLD.rank in map(int, victims.split(",")):
    owner, name = PLACES.get(where, PLACES["play"])
    method = getattr(owner, name)
    setattr(owner, name, deadly(method) if where in PLACES else timed(method, float(where)))
parser = argparse.ArgumentParser()
cli.add_arguments(parser)
sys.exit(cli.main(parser.parse_args(options)))
