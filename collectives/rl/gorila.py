"""``Gorila``: bundles of an actor, a replay and a learner, around a parameter server (Nair et al. 2015)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .. import train
from ..train.agree import raise_on_all, together
from .acting import Actor
from .exploration import annealed
from .learning import Learner, Outliers
from .memory import Memory
from .settings import Settings
from .tasks import Task

T = TypeVar("T")
UP, DOWN = "learners to server", "server to learners"


class Gorila:
    """Gorila in its bundled mode: each rank that is no server acts, keeps what it saw, and learns from that.

    A learner pushes each gradient to the servers, the last `servers` ranks of `comm`, and reads their parameters. The
    servers drop gradients that are too old (``Settings.oldest``), learners those of outlying losses (`Outliers`). A
    bundle renews its target network after so many of its own updates as make ``Settings.target_every`` of all bundles.

    In `lockstep` the server is synchronous: an update is the mean of the gradients of all bundles. Then the same seed
    and ranks give the same bits. Otherwise each gradient is an update at once.

    A server's rank serves while this object is made, until the others call `close`; ``trains`` says whether this rank
    is none. On others it is a `Player`. Collective. ValueError on all ranks for as many servers as ranks, and for
    replays with too little room.

    ``Settings.clip`` has no effect: parts of a gradient leave for the servers before its norm is known.
    """

    def __init__(
        self, task: Task, settings: Settings, seed: int, comm: Any, *, servers: int = 1, lockstep: bool = False
    ) -> None:
        settings.check_room(max(1, comm.size - servers), 1)
        network, optimizer = together(comm, lambda: settings.makers(task, seed))
        self.values, self._settings, self.everyone, self._traffic = network(), settings, comm, train.Traffic()
        opt = optimizer(self.values)
        self.strategy: Any = (
            train.ParameterServer(servers)
            if lockstep
            else train.AsyncParameterServer(servers, rate="full", oldest=settings.oldest)
        )
        self.actor: Actor | None = None
        self.memory: Memory | None = None
        self._counts: dict[str, int] = {}
        train.distribute(self.values.net, opt, self.strategy, comm=train.counted(comm, self._traffic))
        self.trains = bool(self.strategy.worker)
        self.steps = self.updates = self.counted_from = 0
        if self.trains:
            self._begin_bundle(task, seed, network, opt)

    def _begin_bundle(self, task: Task, seed: int, network: Any, opt: Any) -> None:
        settings, self.comm = self._settings, self.strategy.comm
        bundle, bundles = self.comm.rank, self.comm.size
        self.outliers = Outliers(settings.deviations)
        self.learner = Learner(
            self.values, network(), opt, target_every=max(1, settings.target_every // bundles), accept=self.outliers
        )
        epsilon = annealed(settings.epsilon_first, settings.epsilon_last, max(1, settings.epsilon_steps // bundles))
        self.actor = Actor(task, self.values, train.Random(seed, "actor", bundle), settings.n, settings.gamma, epsilon)
        self.memory = Memory(task, settings, seed, bundle, bundles)

    def advance(self, until: int) -> None:
        """See `Player.advance`. Each bundle takes its part of the steps; episodes under way at the end are given up."""
        actor, memory = self._bundle
        bundles, rank = self.comm.size, self.comm.rank
        quota = (until + bundles - 1 - rank) // bundles
        failure: FloatingPointError | None = None
        try:
            while actor.steps < quota:
                memory.add(actor.play(1), None, 1)
                while memory.due:
                    memory.update(self.learner.update(memory.draw()))
        except FloatingPointError as error:  # the others hear of it when all have met
            failure = error
        memory.add(actor.give_up(), None, 0)
        self.strategy.finish()
        self._count()
        raise_on_all(self.comm, failure)

    @property
    def _bundle(self) -> tuple[Actor, Memory]:
        assert self.actor is not None
        assert self.memory is not None
        return self.actor, self.memory

    def _count(self) -> None:
        found = self.comm.allgather((self._bundle[0].steps, self.learner.updates))
        self.steps, self.updates = sum(steps for steps, _ in found), sum(updates for _, updates in found)

    def together(self, work: Callable[[Any], T]) -> T:
        """See `Player.together`."""
        return work(self.comm)

    def close(self) -> None:
        """Let the servers go. Collective over all ranks."""
        if self.actor is not None:
            self._counts = {"dropped": self.strategy.dropped, "refused": self.learner.refused}
            self.actor.close()
        self.strategy.close()

    def counts(self) -> dict[str, Any]:
        """Gradients that servers dropped, and losses that the learners refused. Collective over all ranks."""
        found = [counts for counts in self.everyone.allgather(self._counts) if counts]
        return {"dropped": max(c["dropped"] for c in found), "refused": sum(c["refused"] for c in found)}

    def traffic(self) -> dict[str, int]:
        """The bytes of messages by path, of all ranks, after `close`: those since the last start, as servers save no
        count. Collective over all ranks."""
        found = self.everyone.allgather((self.trains, self._traffic.bytes))
        return {
            UP: sum(count for trains, count in found if trains),
            DOWN: sum(count for trains, count in found if not trains),
        }

    def state_dict(self) -> dict[str, Any]:
        """This bundle's state, and on the first one that of the servers. Collective over the bundles."""
        actor, memory = self._bundle
        return {
            "strategy": self.strategy.state_dict(),
            "learner": self.learner.state_dict(),
            "outliers": self.outliers.state_dict(),
            "actor": actor.state_dict(),
            "memory": memory.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a bundle's state. Collective over the bundles."""
        actor, memory = self._bundle
        self.strategy.load_state_dict(state["strategy"])
        self.learner.load_state_dict(state["learner"])
        self.outliers.load_state_dict(state["outliers"])
        actor.load_state_dict(state["actor"])
        memory.load_state_dict(state["memory"])
        self._count()
        self.counted_from = self.steps
