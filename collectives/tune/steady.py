"""Checks whether ranks are as far apart as before; on other cores they would measure another machine.

Virtual machines move their processors between caches, and the system moves ranks that are not bound. Measurements from
different places must not be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

__all__ = ["Steady"]

T = TypeVar("T")

LIKE = 1.5  # the largest ratio of two distances that count as equal
PAUSE = 0.1  # seconds between probes
LOOKS, SHARE = 21, 0.03  # first probes, whose median is the distance; and the share of the patience that they take


class Steady:
    """Repeats measurements taken while ranks were nearer or farther apart than ``apart`` seconds. Collective.

    ``probe`` returns the seconds of the shortest call now, equal on all ranks. The default of ``apart`` is the median
    of the first probes. ``patience``: seconds of waiting in all; after that every measurement is accepted. ``taken``
    counts the measurements, ``strayed`` those accepted at another distance; ``lost`` is the seconds spent on waiting
    and on measurements that were dropped.
    """

    def __init__(self, probe: Callable[[], float], patience: float, apart: float | None = None):
        self._probe, self._looks = probe, int(patience / PAUSE)
        self.apart = self._most(SHARE * patience / LOOKS) if apart is None else apart
        self.taken = self.strayed = 0
        self.lost = 0.0

    def _most(self, pause: float) -> float:
        found = []
        for _ in range(LOOKS):
            time.sleep(pause)
            found.append(self._probe())
        return float(np.median(found))

    def _there(self) -> bool:
        return self.apart / LIKE < self._probe() < self.apart * LIKE

    def measured(self, take: Callable[[], T]) -> T:
        """The result of ``take``, repeated until the ranks were as far apart as they should be."""
        self.taken += 1
        first = time.monotonic()
        while True:
            begin = time.monotonic()
            found = take()
            if self._there():
                self.lost += begin - first
                return found
            waited = False
            while self._looks > 0 and not self._there():
                self._looks -= 1
                time.sleep(PAUSE)
                waited = True
            if self._looks <= 0:
                self.strayed += 1
                self.lost += begin - first
                return found
            self._looks -= 1
            if waited:
                take()  # fills the caches again, which the waiting has emptied

    def text(self) -> str:
        """The distance and the counts as a line of the report."""
        return (
            f"ranks {self.apart * 1e6:.2f} us apart, by a barrier; "
            f"of {self.taken} measurements {self.strayed} were taken while they were not within a factor of {LIKE}"
        )
