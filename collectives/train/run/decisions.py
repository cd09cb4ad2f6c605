"""What all ranks of a run decide together after a step: whether steps stop, and whether a checkpoint begins."""

from __future__ import annotations

import signal
from typing import Any

from .keeping import Keeping
from .signals import Signals
from .strategies import Strategies
from .votes import News, Votes


class Decisions:
    """Stops of a run by a signal, and the begin of its checkpoints. Methods are collective unless they say otherwise.

    Between the micro-batches of a step gradients are added up that no state has. What is due then waits for the end of
    the step. ``between`` says whether any rank is there, as of the last `settle` in which anything was due.
    """

    def __init__(self, comm: Any, keeping: Keeping) -> None:
        self.signals = Signals()
        self.between = False
        self._comm, self._keeping, self._votes = comm, keeping, Votes(comm)
        self._signal = 0  # which is to stop steps

    @property
    def waiting(self) -> bool:
        """Whether something is due that waits for the end of a step. Not collective."""
        return self.between and (self._signal != 0 or (self._keeping.saves and self._keeping.wanted))

    def begin(self) -> None:
        """Forget an earlier signal: steps begin. Not collective."""
        self._signal, self.between = 0, False

    def settle(self, step: int, strategies: Strategies, commits: bool = False) -> str | None:
        """Begin a checkpoint after `step` if one is due. Or return the name of a signal that is to stop steps.

        Ranks that wait for each other in every step act on what they have told each other after the step before. Others
        may not meet again for many steps, so they wait here for what they tell each other now. Whether any rank is
        between micro-batches must be known of this very step: ranks in lockstep ask for it if a checkpoint is due, a
        signal has come, or an elastic run `commits` its state.
        """
        if not strategies.lockstep:
            self._cast(strategies)
        news = self._votes.result()
        late = news is not None and news.due
        if news is not None:
            self._keeping.advance(news.saver)
            self._signal = self._signal or news.signal
            self.between = news.between
        if strategies.lockstep:
            acts = self._signal or commits or self._keeping.due(step, late)
            self.between = bool(acts) and any(self._comm.allgather(strategies.accumulating))
        if self._signal and not self.between:
            return signal.Signals(self._signal).name
        self._keeping.save_if_due(step, late, self.between)
        if strategies.lockstep:
            self._cast(strategies)
        return None

    def _cast(self, strategies: Strategies) -> None:
        mine = News(self.signals.received, self._keeping.late, self._keeping.vote(), strategies.accumulating)
        self._votes.cast(mine)

    def end(self) -> str | None:
        """Steps have ended. Returns the name of a signal that has come meanwhile, maybe with the last step, or None."""
        news = self._votes.result()
        if news is not None:
            self._keeping.advance(news.saver)
        received = max(self._comm.allgather(self.signals.received))
        return signal.Signals(received).name if received else None

    def abandon(self) -> None:
        """Steps have ended by an error or a ``break``; see `Votes.abandon`. Not collective."""
        self._votes.abandon()

    def move(self, comm: Any) -> None:
        """Go on with the ranks of `comm`, after others were lost."""
        self._comm, self._votes = comm, Votes(comm)
