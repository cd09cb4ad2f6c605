"""TCP ports for the servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

FIRST = 20_000


def free_port() -> int:
    """A TCP port that is free. The system gives it to no other process that does not name its number.

    A port that the system has chosen may be given to another process before the server of the test takes it.
    """
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.SystemRandom().randrange(FIRST, max(end, FIRST + 1))
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise OSError("no free port was found")
