"""The backend ``collectives`` for torch.distributed. ``import collectives.torch`` registers it; see docs/torch.md."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..diagnostics.diagnosis import libraries
from . import devices, rendezvous
from .engines import engine_for
from .gradients import heap_hook
from .group import NAME, ProcessGroup
from .store import Exchange
from .work import Future

__all__ = ["ProcessGroup", "heap_hook", "monitored_barrier", "wait_all"]


def _create(options: Any, backend_options: Any) -> ProcessGroup:
    """A process group. torch calls this on the members of the group. ValueError for ``pg_options``."""
    if backend_options is not None:
        raise ValueError(f"pg_options: the backend {NAME!r} takes none")
    rank, size, name, timeout = options.group_rank, options.group_size, options.group_id, options.timeout
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun keeps its store when it starts ranks anew
    kept = dist.PrefixStore(f"attempt{attempt}", options.store)
    made = kept.add(f"made/{rank}", 1)  # groups of this name: the store outlives them. Processes may be new to it
    store = dist.PrefixStore(f"group{made}", kept)
    exchange = Exchange(store, rank, size, timeout)
    return ProcessGroup(engine_for(exchange, name, timeout), store, rank, size, name, timeout)


_torchs_monitored_barrier = dist.monitored_barrier


def monitored_barrier(
    group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:  # fmt: skip
    """``torch.distributed.monitored_barrier``, also for groups of this backend; torch's own refuses all but Gloo's.

    Importing this package replaces torch's function. ``timeout``: seconds or a timedelta, by default the group's.
    Raises CollectiveTimeout, which names the first rank that did not come, or, with ``wait_all_ranks``, all of them.
    """
    group = group or dist.GroupMember.WORLD
    if not isinstance(group, ProcessGroup):
        return _torchs_monitored_barrier(group, timeout, wait_all_ranks)
    limit = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
    group.monitored_barrier(limit, wait_all_ranks)


_torchs_wait_all = torch.futures.wait_all


def wait_all(futures: list[Any]) -> list[Any]:
    """``torch.futures.wait_all``, also in a callback: then callbacks of later futures among these run within it.

    Importing this package replaces torch's function, which waits in C++ and knows of no callbacks.
    """
    for future in futures:
        if isinstance(future, Future):
            try:
                future.wait()
            except Exception:  # torch's function raises the first
                if not future.done():
                    raise
    return _torchs_wait_all(futures)


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=devices.SERVED)
dist.monitored_barrier = distributed_c10d.monitored_barrier = monitored_barrier
torch.futures.wait_all = wait_all
rendezvous.install()
libraries.append(os.path.dirname(torch.__file__) + os.sep)  # errors name the lines of the program
