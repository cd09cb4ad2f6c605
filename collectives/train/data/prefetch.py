"""A thread that makes the next items of an iterator while the last one is in use."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """The items of `items`, of which a thread makes up to `depth` in advance.

    An exception of `items` is raised after the items before it. The thread ends with the iterator, with `close` and
    with the process. A forked child has no such thread: there, `lost` is true.
    """

    def __init__(self, items: Iterator[T], depth: int) -> None:
        self._items, self._depth, self._process = items, depth, os.getpid()
        self._changed = threading.Condition()
        self._made: deque[T] = deque()
        self._error: BaseException | None = None
        self._ended = self._closed = False
        self._thread = threading.Thread(target=self._make, name="collectives.train.Loader", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether this is a forked child, where nothing makes items."""
        return os.getpid() != self._process

    def __iter__(self) -> Prefetch[T]:
        return self

    def __next__(self) -> T:
        with self._changed:
            while not self._made and not self._ended:
                self._changed.wait()
            if self._made:
                item = self._made.popleft()
                self._changed.notify_all()
                return item
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self) -> None:
        """End the thread, and wait until it has ended: it may be making an item.

        In a forked child and at the end of the process, where the thread no longer runs, nothing is done.
        """
        if self.lost or sys.is_finalizing():
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:  # a garbage collector may run there
            self._thread.join()

    def _make(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    self._made.append(item)
                    self._changed.notify_all()
                    while len(self._made) >= self._depth and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        break
        except BaseException as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()
