"""How ranks of an MPI program meet: rank and size are MPI's where the environment has none, the store is rank 0's."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers as handlers

from .engines import world

__all__ = ["install"]

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def install() -> None:
    """Have ``env://``, which is the default, ask MPI where the environment does not say who this process is."""
    if handlers["env"] is not _env:
        _torchs.append(handlers["env"])
        handlers["env"] = _env


_torchs: list[Any] = []


def _env(url: str, timeout: timedelta = timedelta(minutes=30), **keywords: Any) -> Iterator[tuple[Any, int, int]]:
    given = parse_qs(urlparse(url).query)
    MPI = None if any(name in os.environ for name in _NEEDED) or given else world()
    if MPI is None:
        return _torchs[0](url, timeout=timeout, **keywords)
    return _by_mpi(MPI, timeout)


def _by_mpi(MPI: Any, timeout: timedelta) -> Iterator[tuple[Any, int, int]]:
    """A store on rank 0 of MPI.COMM_WORLD, all of whose ranks come here; it listens on the loopback device only where
    all of them share a node."""
    everybody = MPI.COMM_WORLD
    rank, size = everybody.rank, everybody.size
    near = everybody.Split_type(MPI.COMM_TYPE_SHARED)
    host = "127.0.0.1" if near.size == size else socket.getfqdn()
    near.Free()
    store = None
    if rank == 0:
        store = dist.TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
    host, port = everybody.bcast((host, store.port) if store is not None else None)
    if store is None:
        store = dist.TCPStore(host, port, size, False, timeout, wait_for_workers=False)
    yield store, rank, size
    raise RuntimeError("the ranks of an MPI program meet once for each init_process_group")
