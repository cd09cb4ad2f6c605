"""Ports that show whether a process still runs."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest
from between_hosts import hosts_or_skip

from collectives.diagnostics import ports
from collectives.diagnostics.ports import Port, refusing

HERE = ("127.0.0.1",)  # not among the addresses of a machine's devices, which are not tried


def closed_port():
    """A port of this machine that was open a moment ago."""
    made = ports._open()
    number = made.getsockname()[1]
    made.close()
    return number


def waiting_in(listener):
    """Connections that the system keeps for a listening socket (tcpi_unacked of Linux's struct tcp_info)."""
    return struct.unpack_from("I", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 24)[0]


def test_many_connections_leave_nothing_behind():
    """More than the system keeps for a process that takes none."""
    with contextlib.closing(ports._open()) as made:
        there = Port(HERE, made.getsockname()[1], 0)
        for _ in range(20):
            assert refusing({rank: there for rank in range(ports.BACKLOG // 2)}, 5.0) == set()
        assert waiting_in(made) == 0
        made.setblocking(False)
        with pytest.raises(BlockingIOError):
            made.accept()


def test_who_refuses():
    with contextlib.closing(ports._open()) as made:
        here, gone = made.getsockname()[1], closed_port()
        known = {
            3: Port(HERE, here, 0),
            5: Port(HERE, gone, 0),
            7: Port((), gone, 0),
            9: Port((*HERE, "127.0.0.2"), gone, 0),
        }
        assert refusing(known, 5.0) == {5, 9}
    assert refusing(known, 5.0) == {3, 5, 9}


def test_a_port_open_on_one_address_does_not_refuse():
    with socket.socket() as made:
        made.bind(("127.0.0.2", 0))
        made.listen()
        assert refusing({0: Port(("127.0.0.1", "127.0.0.2", "127.0.0.3"), made.getsockname()[1], 0)}, 5.0) == set()


ENDS = """
import ctypes
from collectives.diagnostics import ports
pause = ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p)
ctypes.pythonapi.Py_AtExit(pause)  # as MPI_Finalize, which waits for other ranks
print(*ports.port()[1:], flush=True)
"""


def test_a_process_that_is_in_finalize_has_not_ended():
    with subprocess.Popen([sys.executable, "-c", ENDS], stdout=-1, text=True) as process:
        there = {0: Port(HERE, *map(int, process.stdout.readline().split()))}
        end = time.monotonic() + 30
        while not refusing(there, 5.0) and time.monotonic() < end:
            time.sleep(0.01)
        assert refusing(there, 5.0) == {0}
        assert refusing(there, 5.0, of_process=True) == set()
        process.kill()
        process.wait()
        assert refusing(there, 5.0, of_process=True) == {0}


def test_a_stopped_process_does_not_refuse():
    program = "from collectives.diagnostics import ports; print(ports.port().port, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) as process:
        there = {0: Port(HERE, int(process.stdout.readline()), 0)}
        os.kill(process.pid, signal.SIGSTOP)
        assert refusing(there, 5.0) == set()
        process.kill()
        process.wait()
        assert refusing(there, 5.0) == {0}


def test_nobody_answers():
    """A machine that drops what it is sent costs the time given, and does not refuse."""
    with hosts_or_skip(2) as hosts:
        hosts.drop(1)
        begun = time.monotonic()
        assert on_host(hosts, 0, f"refusing({{0: Port(('{hosts.address(1)}',), 9, 9)}}, 0.5)") == "set()"
        assert time.monotonic() - begun > 0.5


def test_every_refusal_comes():
    """Linux sends few refusals of datagrams a second to one machine; of connections it sends all."""
    with hosts_or_skip(2) as hosts:
        tries = f"sum(refusing({{0: Port(('{hosts.address(1)}',), 9, 9)}}, 5.0) == {{0}} for _ in range(100))"
        assert on_host(hosts, 0, tries) == "100"


def on_host(hosts, host, expression):
    """What an expression is, as text, in a process of a host."""
    program = f"from collectives.diagnostics.ports import Port, refusing; print({expression})"
    done = subprocess.run([*hosts.command(host), sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
