"""Weight stashing: old versions of a stage's weights, for the micro-batches that began with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .instructions import Instruction, Kind
from .stage import Stage

__all__ = ["Versions"]


class Versions:
    """The versions of one stage's weights that a program uses (Narayanan et al., SOSP 2019, section 3.3).

    Version v is the weights after v steps. `program` says which instruction uses which. A copy is made before the step
    that changes the weights, if a later instruction needs them, and dropped after the last one that does. With `early`
    it is made before the first use instead, which costs one copy more. ``peak`` is the most versions that were held at
    once, the newest one included.
    """

    def __init__(self, stage: Stage, program: Sequence[Instruction], early: bool) -> None:
        self._stage, self._early = stage, early
        self._now, self.peak = 0, 1
        self._last: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        for index, instruction in enumerate(program):
            if instruction.kind is Kind.STEP:
                self._ends[instruction.version - 1] = index
            elif instruction.peer is None:  # a computation
                self._last[instruction.version] = index
        self._copies: dict[int, dict[str, Any]] = {}

    def _outlives(self, version: int) -> bool:
        end = self._ends.get(version)
        return end is not None and self._last.get(version, -1) > end

    def weights(self, version: int) -> Mapping[str, Any] | None:
        """The weights of a version; None if they are those of the parameters now."""
        if self._early and version == self._now and self._outlives(version):
            self._stash(version)
        return self._copies.get(version)

    def before_step(self) -> None:
        """Keep what a step is about to change."""
        if self._outlives(self._now):
            self._stash(self._now)
        self._now += 1

    def _stash(self, version: int) -> None:
        if version not in self._copies:
            self._copies[version] = self._stage.copy_weights()
            self.peak = max(self.peak, len(self._copies) + 1)

    def after(self, index: int) -> None:
        """Drop the versions that no instruction after number `index` uses."""
        for version in [v for v in self._copies if self._last[v] <= index]:
            del self._copies[version]
