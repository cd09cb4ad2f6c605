"""Checkpoints of a run: one folder for each, of which the newest is kept."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from ..train import checkpoint
from ..train.agree import on_rank_0, together

DIGITS = 12  # of a step in the name of its folder


def prepare(folder: str | Path) -> None:
    """Make `folder`, and remove what a run that was killed has left half done there. OSError if it cannot be written.

    For one process, while no run saves there.
    """
    checkpoint.Folder(Path(folder), DIGITS).prepare()


def saved(folder: str | Path) -> list[Path]:
    """The complete checkpoints in `folder`, the newest first."""
    return checkpoint.Folder(Path(folder), DIGITS).complete()


class Checkpoints:
    """The checkpoints of a run in `folder`. Each rank of a communicator saves a state of its own.

    `described` says what the run is; a checkpoint of another run is refused. A run that does not go on from the
    checkpoints in `folder` must not begin there: see `saved`.
    """

    def __init__(self, folder: str | Path, described: dict[str, Any], *, tensors: bool) -> None:
        self._folder, self._described, self._tensors = checkpoint.Folder(Path(folder), DIGITS), described, tensors

    def save(self, comm: Any, step: int, state: Any) -> None:
        """Save this rank's `state`, and remove older checkpoints. Collective; raises as ``checkpoint.save``."""
        path = self._folder.path(step)
        checkpoint.save(path, {"run": state}, comm, step=step, per_rank=("run",), info=self._described)
        if comm.rank == 0:
            with contextlib.suppress(OSError):  # one that cannot be removed stays
                self._folder.retain(1, None, step)

    def load(self, comm: Any) -> Any:
        """This rank's state in the newest checkpoint, None without any. Collective.

        ValueError on all ranks for a checkpoint of another run, or of another number of ranks.
        """
        found: list[Path] = on_rank_0(comm, self._folder.complete)
        if not found:
            return None
        opened = checkpoint.load(found[0], comm)
        if opened.ranks != comm.size:
            raise ValueError(f"{found[0]} is of {opened.ranks} ranks, these are {comm.size}")
        for key, value in self._described.items():
            if opened.info.get(key) != value:
                raise ValueError(f"{found[0]}: {key} is {opened.info.get(key)!r} there, {value!r} here")
        return together(comm, lambda: opened.state("run", tensors=self._tensors))
