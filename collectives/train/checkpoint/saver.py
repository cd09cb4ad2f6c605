"""Checkpoints written in the background, while steps go on.

A thread of each rank writes the rank's file. It does not call MPI. What ranks must tell each other, the main thread
tells: by `Saver.vote`, whose values a run reduces along with other news of a step, and by one gather for each
checkpoint once all ranks have written.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..agree import is_own, raise_on_all
from .folder import Folder
from .manifest import Part
from .snapshot import Snapshot
from .writing import beside, commit, remove, write_part

AT_MOST = 2  # snapshots in memory


class Vote(NamedTuple):
    """This rank's news: whether it has failed, and how many checkpoints it has written so far."""

    failed: bool
    written: int


@dataclass
class _Job:
    """A checkpoint under way: on this rank its snapshot, its file, and on rank 0 the rest of it."""

    step: int
    best: int | None
    snapshot: Snapshot
    part: Future[Part]
    committed: Future[None] | None = None


class Saver:
    """Writes checkpoints of a run into a `Folder` that all ranks share, in the background.

    The last `keep` are kept, and the best. The methods `save`, `advance` and `finish` are called by all ranks alike.
    """

    def __init__(self, folder: Folder, comm: Any, keep: int) -> None:
        self.folder, self.comm, self.keep = folder, comm, keep
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._jobs: list[_Job] = []
        self._written = 0  # checkpoints before those in _jobs
        self._error: Exception | None = None  # of a snapshot that could not be taken

    def save(self, step: int, best: int | None, take: Callable[[], Snapshot]) -> None:
        """Begin to write what ``take()`` copies. `best` is the step of the best checkpoint so far, which is kept.

        Waits while two snapshots are in memory. Errors are raised on all ranks by a later call of `advance`, or by
        `finish`.
        """
        waiting = [job for job in self._jobs if not job.part.done()]
        if len(waiting) >= AT_MOST:
            waiting[0].part.exception()  # waits
        try:
            snapshot = take()
        except Exception as error:
            if not is_own(error):
                raise
            self._error = self._error or error
            snapshot = Snapshot(step, {})
        part = self._thread.submit(_known, write_part, self.folder.path(step), self.comm.rank, snapshot)
        self._jobs.append(_Job(step, best, snapshot, part))

    def vote(self) -> Vote:
        """What this rank has to tell the others; see `advance`."""
        futures = [job.part for job in self._jobs] + [job.committed for job in self._jobs if job.committed is not None]
        failed = any(future.done() and future.exception() is not None for future in futures)
        written = sum(job.part.done() and job.part.exception() is None for job in self._jobs)
        return Vote(failed or self._error is not None, self._written + written)

    def advance(self, failed: bool, written: int) -> None:
        """Go on by what all ranks have told: whether any has `failed`, and how many checkpoints all have `written`.

        Collective if there is something to do, which all ranks know from these values. Raises on all ranks what failed
        on any: OSError, TypeError or ValueError. The checkpoints under way are then given up; earlier ones stay.
        """
        if failed:
            self._give_up()
        for job in self._jobs[: max(0, written - self._written)]:
            if job.committed is None:
                self._commit(job)
        while self._jobs and (done := self._jobs[0].committed) is not None and done.done() and not done.exception():
            self._jobs.pop(0)
            self._written += 1

    def _commit(self, job: _Job) -> None:
        parts = self.comm.gather(job.part.result(), root=0)
        if self.comm.rank == 0:
            job.committed = self._thread.submit(_known, self._commit_and_tidy, job, parts)
        else:
            job.committed = Future()
            job.committed.set_result(None)

    def _commit_and_tidy(self, job: _Job, parts: list[Part]) -> None:
        commit(self.folder.path(job.step), job.snapshot, parts)
        self.folder.retain(self.keep, job.best, job.step)

    def _give_up(self) -> None:
        """Wait for the thread, remove what is half done, and raise on all ranks."""
        errors = [self._error, *map(_error_of, self._jobs)]
        self.comm.allgather(None)  # nobody writes any more
        if self.comm.rank == 0:
            for job in self._jobs:
                remove(beside(self.folder.path(job.step)))
        self._written, self._jobs, self._error = self._written + len(self._jobs), [], None
        raise_on_all(self.comm, next(filter(None, errors), None))

    def finish(self) -> None:
        """Wait until all checkpoints are complete on the disk. Collective; raises like `advance`."""
        for _ in range(2):  # first what the ranks write, then what rank 0 does with it
            for job in self._jobs:
                _error_of(job)
            votes = [Vote(*vote) for vote in self.comm.allgather(tuple(self.vote()))]
            self.advance(any(vote.failed for vote in votes), min(vote.written for vote in votes))

    def settle(self) -> None:
        """Wait for what this rank is writing. Not collective."""
        for job in self._jobs:
            _error_of(job)

    def move(self, comm: Any) -> None:
        """Go on with the ranks of `comm`, after others were lost: give up what is not complete.

        Waits for what this rank is writing. Not collective; what the ranks leave half done, `Folder.prepare` removes.
        """
        self.settle()
        self.comm, self._jobs, self._written, self._error = comm, [], 0, None


def _known(work: Callable[..., Any], *args: Any) -> Any:
    """The result of ``work(*args)``; errors of kinds that other ranks do not know become OSError."""
    try:
        return work(*args)
    except (OSError, TypeError, ValueError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _error_of(job: _Job) -> Exception | None:
    """The error of a job, None if it has none; waits until it is over."""
    for future in (job.part, job.committed):
        error = None if future is None else future.exception()
        if error is not None:
            return error if isinstance(error, Exception) else OSError(str(error))
    return None
