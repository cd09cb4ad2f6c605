"""The checkpoints of one run: folders named after their steps."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...files import made_folder
from .writing import remove

_ASIDE = "corrupt-"
_STEP = re.compile(r"step-(\d+)")


class Folder:
    """A folder with the checkpoints of a run. Its methods are for one rank, which is the one that commits them.

    `digits`: the least digits of a step in a checkpoint's name.
    """

    def __init__(self, root: Path, digits: int = 9) -> None:
        self.root, self._digits = root, digits

    def path(self, step: int) -> Path:
        """The folder of the checkpoint of `step`."""
        return self.root / f"step-{step:0{self._digits}d}"

    def prepare(self) -> None:
        """Make the folder, and remove what a process that ended has left half done. OSError if it cannot be written."""
        made_folder(self.root)
        for name in os.listdir(self.root):
            if name.startswith((".writing-", ".removing-")):
                remove(self.root / name)

    def steps(self) -> list[int]:
        """The steps whose checkpoints are complete, newest first."""
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return []
        found = [int(match[1]) for name in names if (match := _STEP.fullmatch(name))]
        return [step for step in sorted(found, reverse=True) if self.path(step).is_dir()]

    def complete(self) -> list[Path]:
        """The checkpoints that are complete, newest first."""
        return [self.path(step) for step in self.steps()]

    def only_corrupt(self) -> bool:
        """Whether all checkpoints that are here have been set aside as corrupt."""
        return not self.steps() and any(self.root.glob(f"{_ASIDE}*"))

    def set_aside(self, checkpoint: Path) -> Path:
        """Rename a corrupt checkpoint, so that it is no longer one; its new place."""
        number = 0
        while (place := self.root / f"{_ASIDE}{checkpoint.name}-{number}").exists():
            number += 1
        os.rename(checkpoint, place)
        return place

    def retain(self, keep: int, best: int | None, last: int) -> None:
        """Remove all checkpoints but the `keep` newest ones, the one of step `best`, and that of step `last`.

        `last` was written last. Its step is not the highest one if an elastic run has gone back.
        """
        for step in self.steps()[keep:]:
            if step not in (best, last):
                checkpoint = self.path(step)
                place = self.root / f".removing-{checkpoint.name}"
                os.rename(checkpoint, place)  # at once, so that no half of it is taken for a checkpoint
                remove(place)
