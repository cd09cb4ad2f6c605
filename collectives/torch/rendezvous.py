"""How ranks of an MPI program meet: rank and size are MPI's unless they are given, and rank 0 opens the store."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers as handlers

from ..errors import CollectiveError
from ..system import machine
from .engines import world

__all__ = ["install"]

LOOPBACK = "127.0.0.1"
PROBE = 2.0  # seconds that an address of rank 0's node has to answer
_wrapped: set[Any] = set()
Meeting = Iterator[tuple[Any, int, int]]


def install() -> None:
    """Let torch's rendezvous methods ask MPI for rank and size if neither the call nor the environment gives them.

    Then ``env://``, the default, needs no address either.
    """
    for scheme in ("env", "tcp", "file"):
        if handlers[scheme] not in _wrapped:
            handlers[scheme] = _asking(scheme, handlers[scheme])
            _wrapped.add(handlers[scheme])


def _asking(scheme: str, torchs: Callable[..., Meeting]) -> Callable[..., Meeting]:
    def meet(url: str, timeout: timedelta = timedelta(minutes=30), **keywords: Any) -> Meeting:
        given = parse_qs(urlparse(url).query)
        told = "rank" in given or "world_size" in given
        told |= scheme == "env" and ("RANK" in os.environ or "WORLD_SIZE" in os.environ)
        MPI = None if told else world()
        if MPI is None:
            return torchs(url, timeout=timeout, **keywords)
        if scheme == "env" and not {"MASTER_ADDR", "MASTER_PORT"} & os.environ.keys():
            return _by_mpi(MPI, timeout)
        mark = "&" if given else "?"
        who = f"rank={MPI.COMM_WORLD.rank}&world_size={MPI.COMM_WORLD.size}"
        return torchs(f"{url}{mark}{who}", timeout=timeout, **keywords)

    return meet


def _by_mpi(MPI: Any, timeout: timedelta) -> Meeting:
    """A store on rank 0 of MPI.COMM_WORLD; collective over all its ranks. If all ranks share a node, the store listens
    on the loopback device only."""
    from ..runtime.meeting import meeting

    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    with meeting("init_process_group", comm, timeout=timeout.total_seconds()):
        near = comm.Split_type(MPI.COMM_TYPE_SHARED)
        together = near.size == size
        near.Free()
        store, opened = _opened(together, size, timeout) if rank == 0 else (None, None)
        hosts, port, problem = comm.bcast(opened)
        if problem:
            raise CollectiveError(f"rank 0 has opened no store: {problem}")
        host = LOOPBACK if store is not None else _reachable(hosts, port)
        lost = [peer for peer, found in enumerate(comm.allgather(host)) if found is None]
    if host is None or lost:
        raise CollectiveError(
            f"rank {', '.join(map(str, lost))} reaches rank 0 at none of {', '.join(hosts)}, port {port}: "
            "set MASTER_ADDR and MASTER_PORT to an address of its node"
        )
    yield store or _store(host, port, size, timeout), rank, size
    raise RuntimeError("the ranks of an MPI program meet once for each init_process_group")


def _opened(together: bool, size: int, timeout: timedelta) -> tuple[dist.Store | None, tuple[list[str], int, str]]:
    """Rank 0's store, with the hosts and the port at which it listens, and why there is none."""
    try:
        listening = _listening(together)
        port = listening.getsockname()[1]
        hosts = [LOOPBACK] if together else [*machine.addresses(), socket.gethostname()]
        return _store(LOOPBACK, port, size, timeout, listening.detach()), (hosts, port, "")
    except (OSError, RuntimeError) as e:
        return None, ([], 0, str(e) or type(e).__name__)


def _store(host: str, port: int, size: int, timeout: timedelta, listening: int | None = None) -> dist.TCPStore:
    return dist.TCPStore(
        host, port, size, listening is not None, timeout, wait_for_workers=False, master_listen_fd=listening
    )  # fmt: skip


def _listening(here_only: bool) -> socket.socket:
    """A listening socket on a free port: for connections from this node only, or from anywhere."""
    if here_only:
        return socket.create_server((LOOPBACK, 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _reachable(hosts: list[str], port: int) -> str | None:
    """The first of some addresses that accepts a connection, or None."""
    for host in hosts:
        try:
            socket.create_connection((host, port), PROBE).close()
        except OSError:
            continue
        return host
    return None
