"""Detection of ended processes on other machines: each process has two TCP ports, of which one closes when its program
ends, before MPI_Finalize, and the other one when the process ends.

The system that a connection reaches accepts it for the process, or refuses it if the port is closed. The process takes
no connection and reads nothing; the ports are open on all addresses of a machine. A refusal may come from a wrong
machine that has the same private address, and a network may drop it. So a refusal alone ends no call: it only stops
messages to the rank, and decides at a timeout whether a rank that has not come counts as dead.

UDP would not do: Linux sends a machine one refusal of a datagram per second (icmp_ratelimit), however many ranks ask.
"""

from __future__ import annotations

import ctypes
import errno
import select
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..system import machine
from .own_socket import OwnSocket

__all__ = ["Port", "note_open", "port", "refusing", "seen_open"]

RECENT = 0.5  # seconds for which a port that did not refuse counts as open
BACKLOG = 128  # connections at a time whose beginning a port answers
UNREAD = 30  # seconds for which the system keeps a connection without data from the process; it then drops it
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing a connection resets it, so that neither side keeps anything
_seen_open: dict[Port, float] = {}


class Port(NamedTuple):
    """The IP addresses of a process's machine, and the numbers of two TCP ports: that of the process's program, which
    closes with it, and that of the process."""

    addresses: tuple[str, ...]
    port: int
    of_process: int


def port() -> Port | None:
    """This process's ports, which the first call opens; None if the system does not allow it."""
    try:
        numbers = (own.get().getsockname()[1] for own in (_of_program, _of_process))
        return Port(tuple(machine.addresses()), *numbers)
    except OSError:
        return None


def _open() -> socket.socket:
    """A TCP socket that listens on a port that the system chooses, on all addresses of the machine."""
    both = socket.has_dualstack_ipv6()
    made = socket.socket(socket.AF_INET6 if both else socket.AF_INET, socket.SOCK_STREAM)
    if both:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, UNREAD)
    made.bind(("", 0))
    made.listen(BACKLOG)
    return made


def _open_to_the_end() -> socket.socket:
    """Such a socket, which stays open when the interpreter has ended, as long as the process is in MPI_Finalize."""
    made = _open()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made


_of_program, _of_process = OwnSocket(_open), OwnSocket(_open_to_the_end)


def seen_open(there: Port) -> bool:
    """Whether this process tried the port within the last 0.5 s, and it did not refuse."""
    return time.monotonic() - _seen_open.get(there, 0.0) < RECENT


def note_open(ports: Iterable[Port]) -> None:
    """Record that ``ports`` do not refuse a connection now."""
    _seen_open.update(dict.fromkeys(ports, time.monotonic()))


def refusing(ports: Mapping[int, Port], seconds: float, of_process: bool = False) -> set[int]:
    """The ranks whose ports refuse a connection now; ranks whose machines do not answer within ``seconds`` do not.

    A port that is open on one of its addresses does not refuse. ``of_process``: the processes' ports are meant, not
    those of their programs.
    """
    try:
        own = set(machine.addresses())
    except OSError:  # the process has no free descriptor
        return set()
    probes = _Probes()
    for rank, there in ports.items():
        for address in there.addresses:
            if address not in own:
                probes.begin(rank, address, there.of_process if of_process else there.port)
    return probes.result(time.monotonic() + seconds)


class _Probes:
    """Connections that have been begun, each to one address of a rank's machine."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._begun: dict[int, tuple[int, socket.socket]] = {}  # rank and socket, by file descriptor
        self._open: set[int] = set()
        self._refused: set[int] = set()

    def begin(self, rank: int, address: str, port: int) -> None:
        try:
            made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        except OSError:  # no free descriptor
            return
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        code = made.connect_ex((address, port))
        if code == errno.EINPROGRESS:
            self._begun[made.fileno()] = rank, made
            self._poll.register(made, select.POLLOUT)
        else:
            self._end(rank, made, code)

    def _end(self, rank: int, made: socket.socket, code: int) -> None:
        made.close()
        if code == 0:
            self._open.add(rank)
        elif code == errno.ECONNREFUSED:
            self._refused.add(rank)

    def result(self, end: float) -> set[int]:
        """The ranks that refuse, at the monotonic time ``end`` at the latest; closes all connections."""
        while any(rank not in self._open for rank, _ in self._begun.values()):
            found = self._poll.poll(max(0.0, end - time.monotonic()) * 1e3)
            for descriptor, _ in found:
                self._poll.unregister(descriptor)
                rank, made = self._begun.pop(descriptor)
                self._end(rank, made, made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            if not found:
                break
        for _, made in self._begun.values():
            made.close()
        return self._refused - self._open
