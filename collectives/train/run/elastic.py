"""Elastic runs: the death of a rank costs the steps since the last commit in memory, not the run.

That needs a launcher that lets the other ranks live: Open MPI's ``mpiexec --with-ft ulfm`` (docs/errors.md).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import collectives
from collectives import CollectiveError, CollectiveMismatch, CollectiveTimeout

from .commits import copied, loadable, put_together, shards

T = TypeVar("T")
LOG = logging.getLogger("collectives")
# Methods of a strategy that the code of a program calls by way of hooks.
GUARDED = ("on_bucket", "before_step", "after_step", "discard")


class Elastic:
    """Commits the state of a run in memory, and brings the run back to the last commit after the death of ranks.

    * `comm`: a ``collectives.Communicator``. The current one is ``comm``, after a loss that of the survivors.
    * `state`: the objects of the run by name, as in `Run`. An object with ``redeal(comm)``, such as a `Loader`, deals
      its data anew after a loss. The strategy of "opt", if it has one, must have ``resize(comm)``; its state must be in
      the optimizer's, or in `state`.
    * `every`: steps between commits (default 10). A commit copies the state, and waits for all ranks once.
    * `replace`: start a new process for each dead rank (MPI_Comm_spawn). It runs the program from the beginning with a
      world of its own, up to its first `steps`; there it joins, as one of the last ranks, and gets the state of the
      others. Until then it must write no files: see `joining`. A program can have one such run. If MPI cannot start
      it, or a rank dies meanwhile, the survivors go on alone.

    If a rank dies, the user's loop is not interrupted: the strategy's methods end, do nothing until the step is over,
    and ``before_step`` returns False, so that the step is skipped. What is left of the step has no effect, since the
    generator of the run (`steps`) then lets all survivors go back to the last commit that all of them have. ``losses``
    counts how often that happened. Parts of the state that only one rank has (`Shard`) are committed twice, on this
    rank and on the next one. If ranks that are neighbours die at the same time, `LostState` says so. State of one rank
    for itself (``per_rank``) is the survivors' own after a loss; that of the dead is gone.

    ``rate`` is the factor by which the rate follows the global batch (Goyal et al. 2017, sec. 2.1): 1 as long as
    the loader keeps its batch, as it does unless ``redeal`` changes it.

    Raises ValueError for `every` below 1, and for a strategy without ``resize``.
    """

    def __init__(self, comm: Any, state: dict[str, Any], *, every: int = 10, replace: bool = False) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every}")
        self.comm, self.every, self.replace = comm, every, replace
        self.rate, self.losses = 1.0, 0
        self.failure: Exception | None = None
        self._state, self._steps = dict(state), 0
        self._commits: dict[int, dict[str, Any]] = {}  # by step; two while a commit is under way
        self._neighbour: dict[int, list[Any]] = {}  # by step: what the rank before this one has alone
        self._strategy = getattr(state.get("opt"), "strategy", None)
        if self._strategy is not None:
            if not hasattr(self._strategy, "resize"):
                raise ValueError(f"an elastic run needs a strategy with resize, which {self._strategy} has not")
            for name in GUARDED:
                setattr(self._strategy, name, self._guarded(getattr(self._strategy, name)))

    def _guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method`, which takes note of failures and does nothing after one; it returns False then."""

        def guarded(*args: Any) -> Any:
            if self.failure is not None:
                return False
            try:
                return method(*args)
            except Exception as error:
                if not is_loss(error):
                    raise
                self.failure = error
                return False

        return guarded

    def steps(self, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Yield what ``begin()`` yields, to its end on all ranks. Collective.

        ``begin`` returns the batches from the current position of the run on. It is called again after each recovery.
        Its iterator calls `end_step` after each step. Raises the error of a failure if no rank has died, LostState.
        """
        begun = False
        while True:
            try:
                if not begun:
                    self._join() if joining() else self._commit(self.comm)
                    begun = True
                yield from begin()
                self._raise_failure()
            except Exception as error:
                if not is_loss(error):
                    raise
                self.failure = error
            if self._agree(self.failure is None):
                return
            self._recover()

    def end_step(self) -> None:
        """End a step, and commit if that is due. Collective. Raises the failure of this step, if there was one."""
        self._raise_failure()
        self._steps += 1
        if self._steps % self.every == 0:
            self._commit(self.comm)

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _commit(self, comm: Any) -> None:
        """Copy the state. Once a rank has passed this, every rank of `comm` has the copy. Collective."""
        step = self._steps
        state = {name: copied(thing.state_dict()) for name, thing in self._state.items()}
        self._commits[step] = state
        mine = list(shards(state))
        if comm.allreduce(len(mine)):
            to_next = [mine if rank == (comm.rank + 1) % comm.size else None for rank in range(comm.size)]
            self._neighbour[step] = comm.alltoall(to_next)[comm.rank - 1]
        comm.Barrier()
        self._commits, self._neighbour = {step: state}, {s: p for s, p in self._neighbour.items() if s == step}

    def _agree(self, well: bool) -> bool:
        """Whether all live ranks are `well`; all get the same answer, also if ranks die meanwhile. Collective."""
        import numpy as np
        from mpi4py import MPI

        flag = np.array([int(well)], np.int32)
        try:
            MPI.Intracomm(self.comm).Iagree(flag).Wait()  # the flag is set, too, if the wait raises
        except MPI.Exception as error:
            if not is_loss(error):
                raise
        return bool(flag[0])

    def _recover(self) -> None:
        """Go on with a communicator of the survivors, from the last commit that all of them have. Collective."""
        size, cause = self.comm.size, self.failure
        again, replace = True, self.replace
        while again:
            comm, self.failure = None, None
            try:
                comm = self.comm.shrink()
                if comm.size == size:
                    raise RuntimeError(f"the run ends, although no rank has died: {cause}")
                if replace:
                    comm = self._with_new_ranks(comm, size - comm.size)
                self._restore(comm)
            except Exception as error:
                self._note(error)
            if not self._agree(self.failure is None):
                if comm is not None:
                    comm.Revoke()  # new ranks that wait there end
                replace = False
                continue
            assert comm is not None
            self.comm, self.losses = comm, self.losses + 1
            again = not self._together()
        if self.comm.rank == 0:
            LOG.warning("ranks died; %d of %d go on from step %d", self.comm.size, size, self._steps)

    def _together(self) -> bool:
        """Whether all ranks have come to the new communicator. Collective."""
        try:
            self.comm.Barrier()
        except Exception as error:
            self._note(error)
        return self.failure is None

    def _note(self, error: Exception) -> None:
        """Take note of a loss of ranks; raise any other error."""
        if not is_loss(error):
            raise error
        self.failure = error

    def _with_new_ranks(self, comm: Any, count: int) -> Any:
        """A communicator of the ranks of `comm` and of `count` new processes that run this program. Collective."""
        from mpi4py import MPI

        try:
            between = MPI.Intracomm(comm).Spawn(sys.executable, sys.orig_argv[1:], count)
            return collectives.Communicator(between.Merge(high=False))
        except MPI.Exception as error:
            raise collectives.PeerFailure(f"no new ranks: {error}") from error

    def _join(self) -> None:
        """Join the ranks that started this process. It ends if they do not let it in. Collective."""
        from mpi4py import MPI

        global _joined
        try:
            self.comm = collectives.Communicator(MPI.Comm.Get_parent().Merge(high=True))
            self._restore(self.comm)
            self.comm.Barrier()  # those that started it have agreed to go on with it
        except (collectives.CollectiveError, MPI.Exception):
            os._exit(0)
        _joined = True

    def _restore(self, comm: Any) -> None:
        """Load the last commit that all ranks of `comm` have, and commit it there. Collective."""
        every = comm.allgather(sorted(self._commits))
        new = not self._commits
        step = max(set.intersection(*(set(steps) for steps in every if steps)))
        state = self._commits.get(step, {})
        if not all(every):
            state = comm.bcast(state, root=0) if new else (comm.bcast(state, root=0), state)[1]
        alone = [] if new else [*shards(state), *self._neighbour.get(step, [])]
        wholes = put_together(comm.allgather(alone)) if comm.allreduce(len(alone)) else {}
        if self._strategy is not None:
            self._strategy.resize(comm)
        for name, thing in self._state.items():
            if hasattr(thing, "redeal"):
                batch = thing.batch
                thing.redeal(comm)
                self.rate *= thing.batch / batch
            if not (new and getattr(thing, "per_rank", False)):
                thing.load_state_dict(loadable(state[name], wholes, (name,)))
        self._steps = step
        self._commit(comm)


_joined = False


def joining() -> bool:
    """Whether this process was started to replace a dead rank, and has not joined the others yet.

    Such a process runs the program alone up to `Elastic.steps`. It is no rank 0 then, whatever its communicator says.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    return not _joined and mpi is not None and mpi.Comm.Get_parent() != mpi.COMM_NULL


def is_loss(error: Exception) -> bool:
    """Whether an error may come from the death of a rank: the library's, or those of ULFM from MPI's own calls."""
    if isinstance(error, CollectiveError):
        return not isinstance(error, CollectiveMismatch | CollectiveTimeout)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not isinstance(error, mpi.Exception):
        return False
    names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    return error.Get_error_class() in [getattr(mpi, name, None) for name in names]
