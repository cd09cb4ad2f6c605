"""``ApeX``: Ape-X as one rank sees it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from collectives import PeerFailure

from ... import train
from ...train.agree import together
from ..acting import Actor
from ..exploration import apex_epsilon
from ..learning import Learner
from ..mail import Mail
from ..memory import Memory
from ..settings import Settings
from ..tasks import Task
from .actor_side import ActorSide
from .learner_side import LearnerSide
from .places import Places
from .shard_side import ShardSide

T = TypeVar("T")
LOG = logging.getLogger("collectives")


def _epsilons(settings: Settings, actor: int, actors: int) -> list[Callable[[int], float]]:
    """How often an actor acts at random in each of its environments, which count as so many actors of Ape-X."""

    def constant(number: int) -> Callable[[int], float]:
        base, alpha = settings.epsilon_base, settings.epsilon_alpha
        epsilon = apex_epsilon(number, actors * settings.envs, base=base, alpha=alpha)
        return lambda steps: epsilon

    return [constant(number) for number in range(actor * settings.envs, (actor + 1) * settings.envs)]


class ApeX:
    """Ape-X on the ranks of `comm`: the learner is rank 0, then come `shards` of the replay, all others are actors.

    In `lockstep` every actor takes a chunk of steps, then the learner learns what is due, and so on: the same seed and
    the same ranks give the same bits. Otherwise nobody waits for others but at the pace that the replay sets. It is a
    `Player`. Collective. ValueError on all ranks if there are not enough, and for shards with too little room.

    If an actor dies in a job that goes on without it (Open MPI's ``mpiexec --with-ft ulfm``), the others play on, and
    ``comm`` is a communicator of theirs. PeerFailure if another rank dies, or the last actor, or in lockstep any.
    """

    trains = True
    counted_from = 0

    def __init__(
        self, task: Task, settings: Settings, seed: int, comm: Any, *, shards: int = 1, lockstep: bool = False
    ) -> None:
        places = Places(comm.size, shards)
        places.check()
        settings.check_room(shards, settings.chunk, settings.envs)
        network, optimizer = together(comm, lambda: settings.makers(task, seed))
        self.comm = self._whole = comm
        self._places, self._settings, self._lockstep = places, settings, lockstep
        self.values = network()
        self.steps = self.updates = self._buried = 0
        self._watch = train.lifeline(comm, int(comm.rank == 0))
        self._mail = Mail(comm.Dup(), self._look, self._watch.dead)
        self._learner: Learner | None = None
        self.memory: Memory | None = None
        self._actor: Actor | None = None
        self.side: LearnerSide | ShardSide | ActorSide
        if comm.rank == 0:
            target = network()
            self._learner = Learner(
                self.values,
                target,
                optimizer(self.values),
                target_every=settings.target_every,
                clip=settings.clip,
            )
            self.side = LearnerSide(self._learner, self._mail, places, settings, task.form)
        elif comm.rank <= shards:
            number = comm.rank - 1
            self.memory = Memory(task, settings, seed, number, shards, len(places.actors_of(number)))
            self.side = ShardSide(self.memory, self._mail, places, number, settings, task.form)
        else:
            number = comm.rank - 1 - shards
            random = train.Random(seed, "actor", number)
            epsilons = _epsilons(settings, number, places.actors)
            self._actor = Actor(task, self.values, random, settings.n, settings.gamma, *epsilons)
            self.side = ActorSide(self._actor, self._mail, places, number, settings, task.form)

    def advance(self, until: int) -> None:
        """See `Player.advance`. Episodes under way at the end are given up."""
        if self._lockstep:
            chunks = self._settings.chunk * self._places.actors
            self.side.lockstep(math.ceil((until - self.steps) / chunks))
        elif isinstance(self.side, LearnerSide):
            self.side.free(until)
        else:
            self.side.free()
        self._meet()

    def _look(self) -> None:
        """Raise PeerFailure if a rank has ended without which the others cannot go on."""
        self._watch.look()
        self._check_living()

    def _check_living(self) -> None:
        dead = self._watch.dead
        self._places.check_living(dead)
        if self._lockstep and dead:
            raise PeerFailure(f"rank {min(dead)} died; in lockstep the others wait for it")

    def together(self, work: Callable[[Any], T]) -> T:
        """See `Player.together`."""

        def noted(comm: Any) -> T:
            self.comm = comm if comm.size < self._whole.size else self._whole
            return work(comm)

        found = self._watch.among_living(noted)
        self._check_living()
        if self.comm.rank == 0 and len(self._watch.dead) > self._buried:
            self._buried = len(self._watch.dead)
            LOG.warning("ranks died: %s; the others play on", sorted(self._watch.dead))
        return found

    def _meet(self) -> None:
        """Let all ranks know the counts and the learner's network. FloatingPointError on all of them if one has met
        numbers that are not finite."""
        flat = np.ascontiguousarray(self.values.flat())

        def meet(comm: Any) -> list[tuple[int, int, str | None]]:
            comm.Bcast(flat, root=0)
            counts = self.memory.steps if self.memory else 0, self._learner.updates if self._learner else 0
            found: list[tuple[int, int, str | None]] = comm.allgather((*counts, self.side.problem))
            return found

        found = self.together(meet)
        self.steps, self.updates = sum(steps for steps, _, _ in found), found[0][1]
        self.values.put(flat)
        for _, _, problem in found:
            if problem is not None:
                raise FloatingPointError(problem)

    def traffic(self) -> dict[str, int]:
        """The bytes of messages by path, of all ranks that live. Collective."""
        total: dict[str, int] = {}
        for mine in self.comm.allgather(self._mail.bytes):
            for path, count in mine.items():
                total[path] = total.get(path, 0) + count
        return dict(sorted(total.items()))

    def counts(self) -> dict[str, Any]:
        """The environment steps of each actor that lives, and the ranks of the dead. Collective."""
        found = self.comm.allgather(self._actor.steps if self._actor else None)
        return {"actor_steps": [steps for steps in found if steps is not None], "dead": sorted(self._watch.dead)}

    def close(self) -> None:
        """Part. Collective."""
        if self._actor:
            self._actor.close()
        self._mail.close()
        self.together(lambda comm: comm.Barrier())
        while not self._watch.leave():
            self._mail.nap()
        self._watch.close(self._mail.comm)

    @property
    def everyone(self) -> Any:
        """See `Player.everyone`."""
        return self.comm

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, between calls of `advance`."""
        state: dict[str, Any] = {"bytes": dict(self._mail.bytes), "net": self.values.net.state_dict()}
        if self._learner:
            state |= {"opt": self._learner.opt.state_dict(), "learner": self._learner.state_dict()}
        for name, part in (("memory", self.memory), ("actor", self._actor)):
            if part is not None:
                state[name] = part.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore this rank's state. Collective."""
        self.values.net.load_state_dict(state["net"])
        self._mail.bytes = {path: int(count) for path, count in state["bytes"].items()}
        if self._learner:
            self._learner.opt.load_state_dict(state["opt"])
            self._learner.load_state_dict(state["learner"])
        for name, part in (("memory", self.memory), ("actor", self._actor)):
            if part is not None:
                part.load_state_dict(state[name])
        self._meet()
