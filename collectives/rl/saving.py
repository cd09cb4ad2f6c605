"""Checkpoints of a run: one folder for each, of which the newest is kept."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from typing import Any

from ..train import checkpoint
from ..train.agree import on_rank_0, together

_NAME = re.compile(r"step-\d{12}")


def saved(folder: str | Path) -> list[Path]:
    """The complete checkpoints in `folder`, the oldest first."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    return [folder / name for name in sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))]


class Checkpoints:
    """The checkpoints of a run in `folder`. Each rank of a communicator saves a state of its own.

    `described` says what the run is; a checkpoint of another run is refused. A run that does not go on from the
    checkpoints in `folder` must not begin there: see `saved`.
    """

    def __init__(self, folder: str | Path, described: dict[str, Any], *, tensors: bool) -> None:
        self._folder, self._described, self._tensors = Path(folder), described, tensors

    def save(self, comm: Any, step: int, state: Any) -> None:
        """Save this rank's `state`, and remove older checkpoints. Collective; raises as ``checkpoint.save``."""
        before = self._found(comm)
        path = self._folder / f"step-{step:012d}"
        checkpoint.save(path, {"run": state}, comm, step=step, per_rank=("run",), info=self._described)
        if comm.rank == 0:
            for old in before:
                with contextlib.suppress(OSError):
                    shutil.rmtree(old)

    def load(self, comm: Any) -> Any:
        """This rank's state in the newest checkpoint, None without any. Collective.

        ValueError on all ranks for a checkpoint of another run, or of another number of ranks.
        """
        found = self._found(comm)
        if not found:
            return None
        opened = checkpoint.load(found[-1], comm)
        if opened.ranks != comm.size:
            raise ValueError(f"{found[-1]} is of {opened.ranks} ranks, these are {comm.size}")
        for key, value in self._described.items():
            if opened.info.get(key) != value:
                raise ValueError(f"{found[-1]}: {key} is {opened.info.get(key)!r} there, {value!r} here")
        return together(comm, lambda: opened.state("run", tensors=self._tensors))

    def _found(self, comm: Any) -> list[Path]:
        """The complete checkpoints, the oldest first, as rank 0 sees them. Collective."""
        found: list[Path] = on_rank_0(comm, lambda: saved(self._folder))
        return found
