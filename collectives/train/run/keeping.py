"""When a run saves checkpoints, and from which one it goes on."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..agree import on_rank_0, together
from ..checkpoint.folder import Folder
from ..checkpoint.manifest import Corrupt
from ..checkpoint.reading import Checkpoint, load
from ..checkpoint.saver import Saver, Vote
from ..checkpoint.snapshot import Snapshot, take
from ..counts import count, real
from ..mesh import Mesh
from .states import OWN, RUN, Member, Position, axes_of, check_finite, inherited, members, restore, states


class Keeping:
    """The checkpoints of a run in the folder `root`; none if `root` is None.

    * `objects`: what is saved, by name, beside the `run` itself. See `members`, also for `mesh`.
    * `keep`, `every`, `seconds`: see `Run`. With `best` there is a checkpoint after each call of `want_best`.

    ValueError for a number below 1, or for checkpoints that are asked for without a folder or without objects.
    """

    def __init__(
        self,
        root: Path | None,
        comm: Any,
        objects: Mapping[str, Any],
        run: Position,
        mesh: Mesh | None,
        *,
        keep: int,
        every: int | None,
        seconds: float | None,
        best: bool,
    ) -> None:
        for key, value in {"keep": keep, "checkpoint_every": every}.items():
            if value is not None:
                count(key, value)
        if seconds is not None and not real("checkpoint_seconds", seconds) > 0:
            raise ValueError(f"checkpoint_seconds must be positive, not {seconds}")
        timed = every is not None or seconds is not None
        can = root is not None and bool(objects)
        if timed and not can:
            raise ValueError("checkpoints need a folder and a state: Run(out, state=...)")
        self.saves = can and (timed or best)
        self.wanted = False  # whether a checkpoint is due
        self._best_due = False  # whether it is that of a new best
        self._comm, self._objects, self._run, self._mesh = comm, objects, run, mesh
        self._every, self._seconds = every, seconds
        self._saver = Saver(Folder(root), comm, keep) if root is not None and can else None
        self._members: dict[str, Member] = members(objects, mesh) if can else {}
        self._prepared = False
        self._saved: set[int] = set()  # steps of checkpoints that need not be written again
        self._saved_at = time.monotonic()

    @property
    def late(self) -> bool:
        """Whether a checkpoint is due by this rank's clock; rank 0's decides."""
        passed = time.monotonic() - self._saved_at
        return self.saves and self._seconds is not None and self._comm.rank == 0 and passed >= self._seconds

    def vote(self) -> Vote:
        """What this rank's checkpoints under way have to tell; see `Saver.vote`."""
        return Vote(False, 0) if self._saver is None else self._saver.vote()

    def advance(self, vote: Vote) -> None:
        """See `Saver.advance`."""
        if self._saver is not None:
            with self._looking():
                self._saver.advance(vote.failed, vote.written)

    def counts(self, step: int) -> bool:
        """Whether a checkpoint is due after `step` by the number of steps."""
        return self._every is not None and step % self._every == 0

    def steps_left(self, step: int) -> float:
        """The steps from `step` to the next one after which a checkpoint is due by their number."""
        return math.inf if self._every is None else self._every - step % self._every

    def want_best(self) -> None:
        """There is a new best value: a checkpoint is due, and stays as long as there is no better one."""
        self.wanted = self._best_due = True

    def due(self, step: int, late: bool) -> bool:
        """Whether a checkpoint is due after `step`: by the number of steps, by time (`late`), or as the best."""
        return self.saves and (self.counts(step) or late or self.wanted)

    def save_if_due(self, step: int, late: bool, postpone: bool = False) -> None:
        """Begin a checkpoint after `step` if one is due. With `postpone` it is due after the next step."""
        if self.due(step, late):
            self.wanted = True
            if not postpone:
                self._save(step)

    def end(self, step: int, stopped: str | None) -> None:
        """Save the last step, or that at which the run was stopped; wait until all is on the disk. Collective."""
        if self._saver is not None and (self.saves or stopped is not None):
            self._save(step)
        self.finish()

    def finish(self) -> None:
        """Wait for the checkpoints under way; see `Saver.finish`."""
        if self._saver is not None:
            with self._looking():
                self._saver.finish()

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """Look which checkpoints there are if some could not be written, which all ranks raise."""
        assert self._saver is not None
        try:
            yield
        except (OSError, TypeError, ValueError):
            self._saved = set(on_rank_0(self._comm, self._saver.folder.steps))
            raise

    def settle(self) -> None:
        """Wait for what this rank is writing, so that a run that begins now in the same folder does not meet it."""
        if self._saver is not None:
            self._saver.settle()

    def move(self, comm: Any) -> None:
        """Go on with the ranks of `comm`, after others were lost. Collective.

        Checkpoints that were being written are given up; the next step is saved, and is no best one: a best that was
        wanted is of a step that the run has gone back from.
        """
        self._comm = comm
        if self._saver is not None:
            self._saver.move(comm)
            self._saved = set(on_rank_0(comm, self._saver.folder.steps))
        self._prepared, self.wanted, self._best_due = False, True, False

    def _save(self, step: int) -> None:
        assert self._saver is not None
        if self._best_due:
            self._run.best_is_in(step)
        self.wanted, self._best_due, self._saved_at = False, False, time.monotonic()
        if step in self._saved:
            return
        self._prepare(self._saver.folder)
        self._saved.add(step)
        self._saver.save(step, self._run.best_checkpoint, lambda: self._snapshot(step))

    def _prepare(self, folder: Folder) -> None:
        """Make the folder, once for these ranks."""
        if not self._prepared:
            on_rank_0(self._comm, folder.prepare)
            self._prepared = True

    def _snapshot(self, step: int) -> Snapshot:
        snapshot = self._copies(step)
        check_finite(self._objects, self._comm.rank, step)
        return snapshot

    def _copies(self, step: int) -> Snapshot:
        found, per_rank = states(self._members)
        axes = dict(axes_of(self._mesh, self._comm.size))
        info = {"mesh": axes, "whole": self._mesh is not None}
        return take({**found, **self._run.position()}, {*per_rank, OWN}, self._comm.rank, step, info)

    def resume(self, wanted: bool) -> int | None:
        """Load the newest checkpoint that is whole, if there is any; its step. Collective.

        ValueError if there are checkpoints but no whole one, or if they are not `wanted`. What cannot be saved is an
        error here already, before there is something to lose: TypeError or ValueError for the states, OSError for the
        folder.
        """
        if self._saver is None:
            return None
        comm, folder = self._comm, self._saver.folder
        paths: list[Path] = on_rank_0(comm, folder.complete)
        if paths and not wanted:
            raise ValueError(f"{folder.root} has checkpoints of an earlier run: resume it, or give another folder")
        together(comm, lambda: self._copies(0))
        if self.saves:
            self._prepare(folder)
        for path in paths if wanted else []:
            try:
                checkpoint = load(path, comm)
            except Corrupt as error:
                text = str(error)
                place = on_rank_0(comm, lambda path=path: folder.set_aside(path))  # type: ignore[misc]
                if comm.rank == 0:
                    logging.getLogger("collectives").warning("%s; it is now %s, the one before is used", text, place)
                continue
            self._restore(checkpoint)
            return checkpoint.step
        if paths and wanted:
            raise ValueError(f"all checkpoints in {folder.root} are corrupt")
        if wanted and on_rank_0(comm, folder.only_corrupt) and comm.rank == 0:
            logging.getLogger("collectives").warning(
                "%s has corrupt checkpoints only: the run begins at step 0; to use one again, give it its old name",
                folder.root,
            )
        return None

    def _check_name(self, checkpoint: Checkpoint) -> None:
        """ValueError for a checkpoint of a run whose name differs, but gives the same folder."""
        name = checkpoint.state(RUN).get("name", self._run.name) if RUN in checkpoint.names else self._run.name
        if name != self._run.name:
            raise ValueError(
                f"{checkpoint.folder} is of the run {name!r}; the name {self._run.name!r} gives the same folder, so "
                "choose another one, or another folder"
            )

    def _restore(self, checkpoint: Checkpoint) -> None:
        comm = self._comm
        together(comm, lambda: self._check_name(checkpoint))
        saved, mine = checkpoint.info.get("mesh", {"data": checkpoint.ranks}), axes_of(self._mesh, comm.size)
        with self._readers(checkpoint.info.get("whole", False)) as found:
            restore(found, checkpoint, comm, saved, mine)

        def go_to() -> None:
            ranks = inherited(saved, mine, comm.rank)
            self._run.go_to(checkpoint.state(RUN), [checkpoint.state(OWN, rank) for rank in ranks])

        together(comm, go_to)
        self._saved.add(checkpoint.step)

    @contextlib.contextmanager
    def _readers(self, whole: bool) -> Iterator[dict[str, Member]]:
        """What reads the states of a checkpoint: the members, or such as can read what a run on a mesh has saved, which
        is `whole`. Collective."""
        if not whole or self._mesh is not None:
            yield self._members
            return
        mesh = Mesh(self._comm, data=self._comm.size)
        try:
            yield members(self._objects, mesh)
        finally:
            mesh.free()
