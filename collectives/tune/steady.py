"""Whether ranks are as far apart as before: those that are moved to other cores make another machine of it.

Virtual machines move their processors between caches that are shared and caches that are not, and ranks that are not
bound move by themselves. What was measured in one place is compared with nothing that was measured in another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

__all__ = ["Steady"]

T = TypeVar("T")

LIKE = 1.5  # times as far apart, or less: the same place
PAUSE = 0.1  # seconds between looks
LOOKS, SHARE = 21, 0.03  # whose median is where the ranks are, and the share of the patience that they take


class Steady:
    """Repeats what was measured while ranks were nearer or farther apart than ``apart`` seconds; on all together.

    ``probe`` gives the time of the shortest call now, seconds, the same on all ranks. Without ``apart`` it is what most
    of the first looks find. ``patience``: seconds of waiting in all, after which whatever was measured is taken.
    ``taken`` counts the measurements, ``strayed`` those of them that were taken elsewhere; ``lost`` are the seconds in
    which nothing was measured that counts.
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
        """What ``take`` finds, where the ranks belong."""
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
                take()  # the caches are no longer those of ranks that work

    def text(self) -> str:
        """As a line of the report."""
        return (
            f"ranks {self.apart * 1e6:.2f} us apart, by a barrier; "
            f"of {self.taken} measurements {self.strayed} were taken while they were not within a factor of {LIKE}"
        )
