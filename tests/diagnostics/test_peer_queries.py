"""Who may speak to the thread that answers other ranks, and how the program keeps its own handler."""

import contextlib
import json
import os
import socket

import pytest
from jobs import mpiexec

from collectives.diagnostics import peer_queries

NOBODY = 65534  # a user who owns nothing


def send_as(user, text, address):
    """Send a message from a child that is this user's; the child."""
    child = os.fork()
    if child == 0:
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
            os.setuid(user)
            sock.sendto(text.encode(), address)
            os._exit(0)
    return child


@pytest.mark.parametrize("user", [os.geteuid(), NOBODY])
def test_other_users_are_not_heard(user):
    if os.geteuid() != 0 and user == NOBODY:
        pytest.skip("only root can send as another user")
    question = {"communicator": "any"}
    with peer_queries._open() as desk:
        desk.settimeout(10)
        child = send_as(user, json.dumps(question), desk.getsockname())
        heard, pid, _ = peer_queries._receive(desk)
        assert os.waitpid(child, 0)[1] == 0
    assert (heard, pid) == ((question, child) if user != NOBODY else (None, 0))


@pytest.mark.parametrize("own", [True, False])
def test_a_handler_of_the_program_is_kept(own):
    program = f"""
import os, signal
from mpi4py import MPI
import collectives
if {own}:
    signal.signal(signal.SIGUSR2, lambda *_: print("the program's"))
comm = collectives.Communicator(MPI.COMM_WORLD)
os.kill(os.getpid(), signal.SIGUSR2)
print("goes on")
"""
    done = mpiexec("openmpi", 1, "-c", program, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == (["the program's", "goes on"] if own else ["goes on"])
    assert ("[rank 0] in no collective" in done.stderr) != own
