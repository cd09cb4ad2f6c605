"""Detection of ended processes on other machines: each process has a UDP port, which closes when the process ends.

The system that a datagram reaches refuses it if the port is closed. Nothing is read from the ports, which are open on
all addresses of a machine. A refusal may come from a wrong machine that has the same private address, and a network may
drop refusals. So a refusal alone ends no call: it only stops messages to the rank, and decides at a timeout whether
a rank that has not come counts as dead.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable
from typing import NamedTuple

from ..system import machine
from .own_socket import OwnSocket

__all__ = ["Port", "Probes", "port", "note_open", "seen_open"]

RECENT = 0.5  # seconds for which a port that did not refuse counts as open
_seen_open: dict[Port, float] = {}


class Port(NamedTuple):
    """The IP addresses of a process's machine, and the number of the process's UDP port."""

    addresses: tuple[str, ...]
    port: int


def port() -> Port | None:
    """This process's port, which the first call opens; None if the system does not allow it."""
    try:
        return Port(tuple(machine.addresses()), _own.get().getsockname()[1])
    except OSError:
        return None


def _open() -> socket.socket:
    """A UDP socket on a port that the system chooses, on all addresses of the machine."""
    both = socket.has_dualstack_ipv6()
    made = socket.socket(socket.AF_INET6 if both else socket.AF_INET, socket.SOCK_DGRAM)
    if both:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the system's minimum
    made.bind(("", 0))
    return made


_own = OwnSocket(_open)


def seen_open(there: Port) -> bool:
    """Whether this process tried the port within the last 0.5 s, and it did not refuse."""
    return time.monotonic() - _seen_open.get(there, 0.0) < RECENT


def note_open(ports: Iterable[Port]) -> None:
    """Record that ``ports`` do not refuse a datagram now."""
    _seen_open.update(dict.fromkeys(ports, time.monotonic()))


class Probes:
    """Datagrams to the ports of ranks, and the set of ranks that refused theirs."""

    def __init__(self, ports: dict[int, Port]):
        self._ports = ports
        self._sockets: dict[int, list[socket.socket]] = {}
        self.refused: set[int] = set()

    def probe(self, ranks: Iterable[int]) -> None:
        """Send to these ranks' ports; refusals come later."""
        try:
            own = set(machine.addresses())
        except OSError:  # the process has no free descriptor: it will be asked again
            return
        for rank in ranks:
            self.leave(rank)
            self.refused.discard(rank)
            known = self._ports.get(rank, Port((), 0))
            made = (_connected(address, known.port) for address in known.addresses if address not in own)
            self._sockets[rank] = [sock for sock in made if sock is not None]

    def repeat(self, ranks: Iterable[int]) -> bool:
        """Send to the ports of ``ranks`` once more; whether there are any that may refuse."""
        tried = [(rank, sock) for rank in ranks for sock in self._sockets.get(rank, [])]
        for rank, sock in tried:
            try:
                sock.send(b"")
            except ConnectionRefusedError:  # of the datagram before
                self.refused.add(rank)
                self.leave(rank)
            except OSError:
                pass
        return bool(tried)

    def look(self) -> None:
        """Add the ranks whose refusals have arrived to ``refused``."""
        for rank in [rank for rank, socks in self._sockets.items() if any(map(_refused, socks))]:
            self.leave(rank)
            self.refused.add(rank)

    def waiting(self) -> bool:
        """Whether refusals may still come."""
        return any(self._sockets.values())

    def leave(self, rank: int) -> None:
        """Close the sockets to the port of ``rank``."""
        for sock in self._sockets.pop(rank, []):
            sock.close()


def _connected(address: str, port: int) -> socket.socket | None:
    try:
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    except OSError:  # no free descriptor
        return None
    try:
        made.setblocking(False)
        made.connect((address, port))
        made.send(b"")
    except OSError:  # no route
        made.close()
        return None
    return made


def _refused(sock: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        try:
            sock.recv(1)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
