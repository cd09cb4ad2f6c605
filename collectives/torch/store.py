"""What ranks tell each other over torch's store: before there is an engine, and in a monitored barrier."""

from __future__ import annotations

import contextlib
import pickle
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..errors import CollectiveError, CollectiveTimeout

__all__ = ["Exchange", "MonitoredBarrier"]


class Exchange:
    """Gathers an object from all ranks on all ranks, any number of times; all ranks call it in the same order.

    CollectiveTimeout names the ranks that did not come in time. What it wrote is taken out of the store when all ranks
    have read it.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta):
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self._rounds = 0

    def __call__(self, obj: Any) -> list[Any]:
        """The objects of all ranks, in their order."""
        if self.size == 1:  # torch gives groups of one the same name and store, where each rank makes its own
            return [obj]
        this, self._rounds = self._rounds, self._rounds + 1
        keys = [f"exchange/{this}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], pickle.dumps(obj))
        try:
            self.store.wait(keys, self.timeout)
        except RuntimeError as e:  # DistStoreError, of most stores
            raise self._failed(keys, e) from e
        objects = [pickle.loads(found) for found in self.store.multi_get(keys)]
        if this > 0:  # whoever wrote in this round has read the one before
            with contextlib.suppress(RuntimeError):  # some stores cannot
                self.store.delete_key(f"exchange/{this - 1}/{self.rank}")
        return objects

    def _failed(self, keys: list[str], error: RuntimeError) -> CollectiveError:
        where = f"making a group on rank {self.rank} of {self.size}"
        try:
            late = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
        except RuntimeError:
            late = []
        if not late:
            return CollectiveError(f"{where}: torch's store failed: {error}")
        return CollectiveTimeout(
            f"{where}: not complete after {self.timeout.total_seconds():g} s; "
            f"waiting for rank {', '.join(map(str, late))}"
        )


class MonitoredBarrier:
    """A barrier whose first rank says who did not come; apart from the group's collectives, which it does not break."""

    def __init__(self, store: dist.Store, rank: int, size: int):
        self._store, self._rank, self._size = store, rank, size
        self._calls = 0

    def __call__(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Wait for all ranks; CollectiveTimeout on rank 0 names the first that did not come, or all, and on the others
        says to look there."""
        this, self._calls = self._calls, self._calls + 1
        key = f"monitored/{this}"
        if self._rank:
            self._store.set(f"{key}/{self._rank}", "here")
            if not self._came(f"{key}/all", timeout):
                raise CollectiveTimeout(
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for "
                    f"send/recv from rank 0: it did not say in {timeout.total_seconds():g} s that all did; its error "
                    "names who is missing"
                )
            return
        if timeout <= timedelta(0):
            raise CollectiveTimeout(f"Rank 0 timed out in monitoredBarrier: a timeout of {timeout.total_seconds():g} s")
        deadline, missing = time.monotonic() + timeout.total_seconds(), []
        for rank in range(1, self._size):
            left = timedelta(seconds=max(0.001, deadline - time.monotonic()))
            if not self._came(f"{key}/{rank}", left):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if missing:
            words = f"Rank {missing[0]}" if len(missing) == 1 else f"Ranks {', '.join(map(str, missing))}"
            raise CollectiveTimeout(
                f"[Rank 0]: {words} failed to pass monitoredBarrier in {timeout.total_seconds() * 1e3:g} ms"
            )
        self._store.set(f"{key}/all", "here")

    def _came(self, key: str, timeout: timedelta) -> bool:
        try:
            self._store.wait([key], timeout)
        except RuntimeError:  # DistStoreError, of most stores
            return self._store.check([key])
        return True
