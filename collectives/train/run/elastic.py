"""Elastic runs: the death of a rank costs the steps since the last commit in memory, not the run.

That needs a launcher that lets the other ranks live: Open MPI's ``mpiexec --with-ft ulfm`` (docs/errors.md).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from collectives import CollectiveError

from ..counts import count
from ..deaths import dead_ranks, die_if_raised, is_loss
from ..strategies import Strategy
from .commits import copied, loadable, put_together, shards
from .replacing import joined, joining, parents, with_new_ranks
from .states import members, take

T = TypeVar("T")
LOG = logging.getLogger("collectives")
# Methods of a strategy that the code of a program calls by way of hooks.
GUARDED = ("on_bucket", "before_step", "after_step", "discard")
PATIENCE = 300.0  # seconds that ranks wait for each other in a recovery, unless the communicator has a timeout
NEWS = 10.0  # seconds within which MPI hears of a death that a rank has noticed
PARTING = 5.0  # seconds between such a look and the end of a rank, so that others look before that end is a death


class Commit(NamedTuple):
    """The state of a run after so many steps, by name of the objects."""

    steps: int
    state: dict[str, Any]


NONE = Commit(0, {})


class Elastic:
    """Commits the state of a run in memory, and brings the run back to the last commit after the death of ranks.

    * `comm`: a ``collectives.Communicator``. The current one is ``comm``, after a loss that of the survivors.
    * `objects`: the objects of the run by name (see `members`). An object with ``redeal(comm)``, such as a `Loader`, is
      told of the new ranks after a loss, before its state is loaded. Strategies must have ``resize(comm)``.
    * `every`: steps between commits (default 10). A commit copies the state, and waits for all ranks once.
    * `replace`: start a new process for each dead rank (see `with_new_ranks`). It runs the program from the beginning
      with a world of its own, up to its first `steps`; there it joins, as one of the last ranks, and gets the state of
      the others. A program can have one such run. If that fails, the survivors go on alone.

    If a rank dies, the user's loop is not interrupted: the strategy's methods end, do nothing until the step is over,
    and ``before_step`` returns False, so that the step is skipped. What is left of the step has no effect, since the
    generator of the run (`steps`) then lets all survivors go back to the last commit that all of them have. ``losses``
    counts how often that happened. Parts of the state that only one rank has (`Shard`) are committed twice, on this
    rank and on the next one. If ranks that are neighbours die at the same time, `LostState` says so. State of one rank
    for itself (``per_rank``) is the survivors' own after a loss; that of the dead is gone.

    ``rate`` is the factor by which the learning rate follows the global batch (Goyal et al. 2017, sec. 2.1): 1 as long
    as the loader keeps its batch, as it does unless ``redeal`` changes it.

    ValueError for `every` below 1, for a launcher that ends the job when a rank dies, and for a strategy without
    ``resize``.
    """

    def __init__(self, comm: Any, objects: dict[str, Any], *, every: int = 10, replace: bool = False) -> None:
        count("commit_every", every)
        why = getattr(comm, "why_no_shrink", "this is no collectives.Communicator")
        if why is not None:
            raise ValueError(f"elastic: {why}; without elastic, the same command goes on from the newest checkpoint")
        self.comm, self.every, self.replace = comm, every, replace
        self.joins = replace and joining()
        self.rate, self.losses = 1.0, 0
        self._patience = PATIENCE if comm.timeout is None else comm.timeout
        self.failure: Exception | None = None
        self._members, self._steps, self._due = members(objects), 0, False
        self._number = 0  # of the last commit
        self._commits: dict[int, Commit] = {}  # by number; two while a commit is under way
        self._neighbour: dict[int, list[Any]] = {}  # by number: what the rank before this one has alone
        self._strategies = [m.thing for m in self._members.values() if isinstance(m.thing, Strategy)]
        for strategy in self._strategies:
            if type(strategy).resize is Strategy.resize:
                raise ValueError(f"elastic: {type(strategy).__name__} cannot go on with other ranks than it began with")

    @contextlib.contextmanager
    def _guarding(self) -> Iterator[None]:
        """Within this context, strategies take note of failures instead of raising them."""
        for strategy in self._strategies:
            for name in GUARDED:
                setattr(strategy, name, self._guarded(getattr(strategy, name)))
        try:
            yield
        finally:
            for strategy in self._strategies:
                for name in GUARDED:
                    vars(strategy).pop(name, None)

    def _end_process(self) -> None:
        """The program ends within `steps`."""
        die_if_raised()

    def _guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method`, which takes note of failures and does nothing after one; it returns False then."""

        def guarded(*args: Any) -> Any:
            if self.failure is not None:
                return False
            try:
                return method(*args)
            except Exception as error:
                self._note(error)
                return False

        return guarded

    def _note(self, error: Exception) -> None:
        """Take note of a loss of ranks; raise any other error."""
        if not is_loss(error):
            raise error
        if self.failure is None:
            for strategy in self._strategies:
                strategy.give_up()
        self.failure = error

    def steps(self, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Yield what ``begin()`` yields, to its end on all ranks. Collective.

        ``begin`` returns the batches from the current position of the run on. It is called again after each recovery.
        Its iterator calls `raise_failure` before it communicates after a batch, and `end_step` after each step. Raises
        RuntimeError if a collective failed although no rank has died, or if live ranks do not come to a recovery;
        LostState.
        """
        if self._commits and self.replace:
            raise ValueError("with replace_ranks, a program has one call of steps: new processes join there")
        enter: Callable[[], None] = self._join if self.joins else functools.partial(self._commit, self.comm)
        atexit.register(self._end_process)
        with self._guarding():
            while True:
                try:
                    enter()
                    yield from begin()
                    self.raise_failure()
                except Exception as error:
                    self._note(error)
                if self._agree(self.failure is None):
                    atexit.unregister(self._end_process)
                    return
                self._recover()
                enter = self.comm.Barrier

    def raise_failure(self) -> None:
        """Raise the failure that was noted in this step, if there was one."""
        if self.failure is not None:
            raise self.failure

    @property
    def commits(self) -> bool:
        """Whether a commit is due at the end of the step under way."""
        return self._due or (self._steps + 1) % self.every == 0

    def end_step(self, postpone: bool = False) -> None:
        """End a step, and commit if that is due; with `postpone` a commit is due after the next step. Collective."""
        self._due = self.commits
        self._steps += 1
        if self._due and not postpone:
            self._commit(self.comm)

    def _commit(self, comm: Any) -> None:
        """Copy the state. Once a rank has passed this, every rank of `comm` has the copy. Collective."""
        number, self._due = self._number + 1, False
        state = {name: copied(member.thing.state_dict()) for name, member in self._members.items()}
        mine = list(shards(state))
        if comm.allreduce(len(mine)):
            to_next = [mine if rank == (comm.rank + 1) % comm.size else None for rank in range(comm.size)]
            self._neighbour[number] = comm.alltoall(to_next)[comm.rank - 1]
        self._commits[number] = Commit(self._steps, state)  # now: a rank that has the commit has its neighbour's parts
        comm.Barrier()
        self._number = number
        self._keep(lambda other: other == number)

    def _keep(self, wanted: Callable[[int], bool]) -> None:
        """Drop all commits but the `wanted` numbers."""
        self._commits = {number: commit for number, commit in self._commits.items() if wanted(number)}
        self._neighbour = {number: parts for number, parts in self._neighbour.items() if wanted(number)}

    def _agree(self, well: bool) -> bool:
        """Whether all live ranks are `well`; all get the same answer, also if ranks die meanwhile. Collective."""
        import numpy as np
        from mpi4py import MPI

        plain, flag = MPI.Intracomm(self.comm), np.array([int(well)], np.int32)
        request, begin, dead = plain.Iagree(flag), time.monotonic(), None
        try:
            while not request.Test():
                seconds = time.monotonic() - begin
                if dead is None and seconds >= min(NEWS, self._patience):
                    dead = dead_ranks(self.comm)
                if dead is not None:
                    self._raise_if_hopeless(seconds, dead)
                time.sleep(0.001)
        except MPI.Exception as error:  # the flag is set all the same
            if not is_loss(error):
                raise
        return bool(flag[0])

    def _raise_if_hopeless(self, seconds: float, dead: list[int]) -> None:
        """End a wait of so many seconds for an agreement if ranks will not come to it. Not collective.

        `dead` are the ranks that were dead when this rank looked first.
        """
        if self.failure is not None and not dead:
            if seconds >= min(NEWS, self._patience) + PARTING:
                raise RuntimeError(f"the run ends, although no rank has died; {_brief(self.failure)}") from self.failure
        elif seconds > self._patience:
            raise RuntimeError(
                f"the run ends: not all live ranks came to an agreement in {seconds:.3g} s; of {self.comm.size} ranks "
                f"these are dead: {dead_ranks(self.comm)}; "
                f"this rank: {_brief(self.failure) if self.failure else 'no failure'}"
            ) from self.failure

    def _recover(self) -> None:
        """Go on with a communicator of the survivors, from the last commit that all of them have. Collective."""
        size, cause, replace = self.comm.size, self.failure, self.replace
        while True:
            comm, self.failure = None, None
            try:
                comm = self.comm.shrink()
                if comm.size == size:
                    self._give_up(comm, cause)
                if replace:
                    comm = with_new_ranks(comm, size - comm.size, self._patience)
                self._restore(comm)
            except Exception as error:
                self._note(error)
            if self._agree(self.failure is None):
                break
            if self.failure is not None:
                LOG.warning(
                    "a recovery is repeated%s: %s", " without new ranks" if replace else "", _brief(self.failure)
                )
            if comm is not None:
                comm.Revoke()  # new ranks that wait there end
            replace = False
        assert comm is not None
        self.comm, self.losses = comm, self.losses + 1
        if comm.rank == 0:
            LOG.warning("ranks died; %d of %d go on from step %d", comm.size, size, self._steps)

    def _give_up(self, comm: Any, cause: Exception | None) -> None:
        """Raise RuntimeError on all ranks of `comm`: none has died. Collective."""
        causes = comm.allgather(None if cause is None else _brief(cause))
        rank, told = next((rank, told) for rank, told in enumerate(causes) if told is not None)
        hint = "; after a loss of ranks only run.comm can be used, in evaluate too" if self.losses else ""
        raise RuntimeError(f"the run ends, although no rank has died; rank {rank}: {told}{hint}")

    def _join(self) -> None:
        """Join the ranks that started this process. It ends if they do not let it in. Collective."""
        from mpi4py import MPI

        try:
            self.comm = parents()
            self._restore(self.comm)
            self.comm.Barrier()  # those that started it have agreed to go on with it
        except (CollectiveError, MPI.Exception) as error:
            LOG.warning("a process that was started to replace a rank ends: %s", _brief(error))
            os._exit(0)
        self.joins = False
        joined()

    def _restore(self, comm: Any) -> None:
        """Load the last commit that all ranks of `comm` have, and commit it there. Collective.

        A rank without any commit is new, and gets the state of the first one that has it.
        """
        held = comm.allgather(sorted(self._commits))
        if not any(held):
            raise RuntimeError("ranks died before the run had begun; start it again")
        new, first = not self._commits, next(rank for rank, numbers in enumerate(held) if numbers)
        number = max(set.intersection(*(set(numbers) for numbers in held if numbers)))
        self._keep(lambda other: other <= number)  # later ones, which only some ranks have, must not mix with the next
        commit = self._commits.get(number, NONE)
        alone = [*shards(commit.state), *self._neighbour.get(number, [])]
        wholes = put_together(comm.allgather(alone)) if comm.allreduce(len(alone)) else {}
        for strategy in self._strategies:
            strategy.resize(comm)
        for member in self._members.values():
            self._redeal(member.thing, comm)
        if not all(held):
            sent = comm.bcast((commit, self.rate), root=first)
            commit, self.rate = sent if new else (commit, self.rate)
        for name, member in self._members.items():
            if not new or member.shared or not member.per_rank:
                take(member, loadable(commit.state[name], wholes, (name,)), new)
        self._steps, self._number = commit.steps, number
        self._commit(comm)

    def _redeal(self, thing: Any, comm: Any) -> None:
        """Let an object of the run go on with the ranks of `comm`, if it depends on them. Collective."""
        if hasattr(thing, "redeal"):
            batch = getattr(thing, "batch", 1)
            thing.redeal(comm)
            self.rate *= getattr(thing, "batch", 1) / batch


def _brief(error: BaseException) -> str:
    """The class of an exception and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
