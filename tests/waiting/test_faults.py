"""The faults themselves, and what a collective makes of them."""

import contextlib
import itertools
import re
import socket
import subprocess
import sys
import threading
import time

import pytest
from faults import Hosts, delay, kill
from jobs import start


@pytest.fixture
def clock():
    """A process that prints the time as fast as it can."""
    process = subprocess.Popen(
        [sys.executable, "-uc", "import time\nwhile True: print(time.monotonic()); time.sleep(0.01)"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.kill()
    process.wait()


def test_delay_and_kill(clock):
    clock.stdout.readline()
    with delay(clock.pid):
        begin = time.monotonic()
        time.sleep(0.3)
    times = [float(clock.stdout.readline()) for _ in range(60)]
    assert not any(begin + 0.05 < t < begin + 0.3 for t in times)
    assert times[-1] > begin + 0.3
    kill(clock.pid)
    assert clock.wait(10) == -9


def test_drop_of_a_link():
    with Hosts(2) as hosts:
        assert hosts.reaches(0, 1)
        hosts.drop(1)
        assert not hosts.reaches(0, 1, seconds=1)
        hosts.restore(1)
        assert hosts.reaches(0, 1, seconds=20)
    assert hosts.address(0) not in subprocess.run(["ip", "addr"], capture_output=True, text=True).stdout


def test_one_after_another():
    """Nothing of the first is left when the next with the same names begins, even if its network lives on."""
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            with Hosts(1) as hosts:
                stack.enter_context(open(f"/run/netns/{hosts.bridge[:-1]}n0"))
            assert not [name for _, name in socket.if_nameindex() if name.startswith(hosts.bridge[:-1])]


def test_nothing_leaves_a_host_without_a_link():
    """Not even to this machine, which has every link's other end."""
    with Hosts(2) as hosts, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as machine:
        machine.bind((hosts.address(253), 0))
        machine.settimeout(5)
        send = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto({}, {})"
        for host, dropped in itertools.product((0, 1), (False, True)):
            if dropped:
                hosts.drop(host)
            line = send.format(str(dropped).encode(), machine.getsockname())
            subprocess.run([*hosts.command(host), sys.executable, "-c", line], check=True)
        assert [machine.recv(8) for _ in range(2)] == [b"False"] * 2
        machine.settimeout(0.5)
        with pytest.raises(TimeoutError):
            machine.recv(8)


def test_without_root(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(RuntimeError, match="need root, and ip"):
        Hosts(2)


PROGRAM = """
import numpy as np, time
from mpi4py import MPI
import collectives
comm = collectives.Communicator(MPI.COMM_WORLD)
x = np.ones(1000)
comm.Allreduce(MPI.IN_PLACE, x)
assert comm.last.algorithm not in ("shm", "mpi"), comm.last
print("ready", flush=True)
try:
    while True:
        comm.Allreduce(np.ones(1000), x, timeout=1)
        time.sleep(0.01)
except collectives.CollectiveTimeout as e:
    print("timeout:", e, flush=True)
"""


def test_a_timeout_when_a_link_drops(tmp_path):
    """One rank on each of two hosts; the one that still has a link says whom it waits for."""
    with Hosts(2) as hosts:
        with start("mpich", 2, "-c", PROGRAM, flags=hosts.flags("mpich", tmp_path, 1)) as process:
            end = threading.Timer(40, process.kill)
            end.start()
            lines = [process.stdout.readline(), process.stdout.readline()]
            assert lines == ["ready\n"] * 2, lines + [process.stdout.read()]
            hosts.drop(1)
            for line in process.stdout:
                lines.append(line)
                if "timeout:" in line:
                    break
            process.kill()
            end.cancel()
    assert "timeout: allreduce" in lines[-1], lines
    assert "on rank 0 of 2: not complete after 1 s; waiting for rank 1" in lines[-1]


LATE = """
import gc, sys, time
from mpi4py import MPI
import collectives
comm = collectives.Communicator(MPI.COMM_WORLD)
comm.barrier()
time.sleep(2.5 * comm.rank)
comm.barrier()
if sys.argv[1] == "freed":
    comm.Free()
if sys.argv[1] == "collected":  # and freed as the next one is made; what waits for that may refer to the first
    kept, comm = comm._context, comm.Dup()
    gc.collect()
    comm = comm.Dup()
    assert kept.internal == MPI.COMM_NULL
"""


@pytest.mark.parametrize("how", ["freed", "left", "collected"])
def test_questions_to_a_late_rank_leave_nothing_behind(mpi, tmp_path, how):
    """MPICH (UCX) warns of messages that nobody received; Open MPI ends a job that looks for some too late."""
    with Hosts(2) as hosts:
        flags = hosts.flags(mpi, tmp_path, 1)
        with start(mpi, 2, "-c", LATE, how, flags=flags) as process:
            end = threading.Timer(40, process.kill)
            end.start()
            printed = process.stdout.read()
        end.cancel()
    assert process.returncode == 0, printed
    assert not re.search("UCX|error|Traceback", printed), printed
