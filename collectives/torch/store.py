"""Data that ranks exchange over torch's store: before there is an engine, and in a monitored barrier."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..errors import CollectiveError, CollectiveTimeout
from . import records

__all__ = ["Exchange", "MonitoredBarrier", "connection_to"]


GRACE = timedelta(seconds=1)  # in which rank 0 says which ranks did not come in time


def connection_to(store: dist.Store) -> dist.Store:
    """Another connection to the same store, if it can make one, for use by another thread.

    While one thread waits for a key, all others that use the same connection wait, too.
    """
    try:
        return store.clone()
    except (AttributeError, NotImplementedError, RuntimeError):
        return store


class Exchange:
    """Gathers a record from all ranks on all ranks, any number of times; all ranks call it in the same order.

    CollectiveTimeout names the ranks that did not come in time. CollectiveError names a rank whose record is not of the
    same class: a store has no authentication, and keeps what any process writes. A rank deletes its record from the
    store when all ranks have read it.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta):
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self._rounds = 0

    def __call__(self, record: Any) -> list[Any]:
        """The records of all ranks, in the order of the ranks. A record is a named tuple, as in
        :func:`.records.encode`."""
        if self.size == 1:  # torch gives groups of one rank the same name and store, if each rank makes its own
            return [record]
        this, self._rounds = self._rounds, self._rounds + 1
        keys = [f"exchange/{this}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], records.encode(record))
        try:
            self.store.wait(keys, self.timeout)
        except RuntimeError as e:  # DistStoreError, of most stores
            raise self._failed(keys, e) from e
        found = [self._read(type(record), *of) for of in enumerate(self.store.multi_get(keys))]
        if this > 0:  # a rank that wrote in this round has read the round before
            _delete(self.store, f"exchange/{this - 1}/{self.rank}")
        return found

    def _read(self, kind: type, rank: int, data: bytes) -> Any:
        try:
            return records.decode(kind, data)
        except ValueError as e:
            raise CollectiveError(f"{self._where()}: torch's store has no record of rank {rank}'s: {e}") from None

    def _where(self) -> str:
        return f"making a group on rank {self.rank} of {self.size}"

    def _failed(self, keys: list[str], error: RuntimeError) -> CollectiveError:
        where = self._where()
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


def _delete(store: dist.Store, key: str) -> None:
    """Delete a key, if the store can."""
    with contextlib.suppress(RuntimeError):
        store.delete_key(key)


class MonitoredBarrier:
    """A barrier in which rank 0 says which ranks did not come. It does not use the group's collectives or break them.

    A rank deletes its keys when it knows that no rank reads them any more. Rank 0 has read those of the others when it
    says that all came. The others have read rank 0's when they have come to a later barrier. Keys of a barrier that has
    failed stay until a later one succeeds.
    """

    def __init__(self, store: dist.Store, rank: int, size: int):
        self._store, self._rank, self._size = store, rank, size
        self._calls = 0
        self._keys: list[str] = []  # this rank's, in the store

    def __call__(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Wait for all ranks. CollectiveTimeout names the first rank that did not come, with ``wait_all_ranks`` all of
        them, if rank 0 came."""
        this, self._calls = self._calls, self._calls + 1
        if this == 0:
            self._store = connection_to(self._store)
        key = f"monitored/{this}"
        if self._rank:
            self._set(f"{key}/{self._rank}", "here")
            if not self._came(f"{key}/all", timeout):
                lost = self._store.get(f"{key}/missing") if self._came(f"{key}/missing", GRACE) else b""
                why = f"{lost.decode(errors='replace')} did not come" if lost else "rank 0 did not say that all came"
                raise CollectiveTimeout(
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for "
                    f"send/recv from rank 0: in {timeout.total_seconds():g} s {why}"
                )
            self._clear()
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
            self._set(f"{key}/missing", words)
            raise CollectiveTimeout(
                f"[Rank 0]: {words} failed to pass monitoredBarrier in {timeout.total_seconds() * 1e3:g} ms"
            )
        self._clear()
        self._set(f"{key}/all", "here")

    def _set(self, key: str, value: str) -> None:
        self._keys.append(key)
        self._store.set(key, value)

    def _clear(self) -> None:
        for key in self._keys:
            _delete(self._store, key)
        self._keys.clear()

    def _came(self, key: str, timeout: timedelta) -> bool:
        try:
            self._store.wait([key], timeout)
        except RuntimeError:  # DistStoreError, of most stores
            return self._store.check([key])
        return True
