"""Who may speak to the thread that answers other ranks, who is a neighbour, and the handler of the program."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from jobs import ROOT, mpiexec

from collectives.diagnostics import peer_queries
from collectives.runtime import bootstrap
from collectives.system import machine

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


#: Two ranks in one process, one of which has begun a non-blocking call; the other one begins it after the signal.
WAITS_FOR_A_SIGNAL = """
import os, signal
import numpy as np
from node_groups import joined
from collectives.arguments.shape import Shape
from collectives.core import _core
from collectives.diagnostics import peer_queries

peer_queries.address()
x, y = np.ones((2, 1000)), np.empty((2, 1000))
shape = Shape("allreduce", 0, 1000, 8, _core.DTYPES.index("float64"), _core.OPS.index("sum"), False)
calls = []
for i, (context, engine) in enumerate(joined(2)):
    call = _core.Operation(context, _core.NodePlan(engine, shape))
    calls.append(call.bind(_core.address(x[i]), _core.address(y[i]), 0, None, None))
calls[0].queue()
while len(os.listdir("/proc/self/task")) > 3:  # a thread in which a rank joined may end a little after it was joined
    pass
print(len(os.listdir("/proc/self/task")) == 3)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.kill(os.getpid(), signal.SIGTERM)
print(signal.sigtimedwait({signal.SIGTERM}, 10).si_signo == signal.SIGTERM)
calls[1].queue()
while not all(call.wait() for call in calls):
    pass
print((y == 2).all())
"""


def test_a_signal_is_the_programs():
    """The threads that answer and that progress calls would get it, if they did not block it, and end the process."""
    folders = os.pathsep.join(map(str, (ROOT, ROOT / "tests/support")))
    variables = {**os.environ, "PYTHONPATH": folders, "OPENBLAS_NUM_THREADS": "1"}  # whose threads block nothing
    done = subprocess.run(
        [sys.executable, "-c", WAITS_FOR_A_SIGNAL], capture_output=True, text=True, env=variables, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "True"]


def test_a_process_that_was_never_seen_is_no_neighbour():
    """Virtual machines that were cloned while they ran have one boot id, and equal inodes of their namespaces."""
    mine = peer_queries.address()
    assert peer_queries.can_ask(mine, mine)
    assert not peer_queries.can_ask(mine, mine._replace(start="0"))
    assert not peer_queries.can_ask(mine, None)


def test_a_process_that_was_seen_stays_a_neighbour():
    """Its death is told by /proc, also to communicators that are made later."""
    child = os.fork()
    if child == 0:
        signal.pause()
    theirs = peer_queries.address()._replace(pid=child, start=machine.process(child)[1])
    assert peer_queries.can_ask(peer_queries.address(), theirs)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not peer_queries.alive(theirs)
    assert peer_queries.can_ask(peer_queries.address(), theirs)


def test_names_of_communicators_differ_between_containers(monkeypatch):
    """Containers with the host's name, and PIDs of their own, have processes of one name and number."""
    monkeypatch.setattr(bootstrap, "_serial", itertools.repeat(0))
    names = {bootstrap.hello(0, 1, None, b"", False, True, 0).identity for _ in range(2)}
    assert len(names) == 2
