"""``ActorSide``: an actor's rank."""

from __future__ import annotations

import numpy as np

from ..acting import Actor, priorities
from ..mail import Kind, Mail, Message, pack, pack_transitions
from ..settings import Settings
from ..transitions import Form, Transitions
from .places import PARAMETERS, TO_ACTOR, TO_LEARNER, TO_SHARD, Places

UNANSWERED = 2  # the most chunks of an actor that a shard has not answered


class ActorSide:
    """Plays, and sends transitions to its shard; asks the learner for parameters now and then."""

    def __init__(
        self, actor: Actor, mail: Mail, places: Places, number: int, settings: Settings, form: Form
    ) -> None:  # fmt: skip
        self.actor, self._mail, self._settings, self._form = actor, mail, settings, form
        self._shard = places.rank_of_shard(places.shard_of(number))
        self._answers = mail.inbox(self._shard, TO_ACTOR, 0)
        self._parameters = mail.inbox(0, PARAMETERS, 4 * actor.values.size)
        self._since = self._asked = self._unanswered = 0
        self.problem: str | None = None  # why nothing can be learnt from what it sends

    def free(self) -> None:
        """Play until the shard says to rest."""
        resting, self._since = False, self._settings.fetch_every
        while not resting:
            self._send(Kind.ADD, self.actor.play(self._settings.chunk), self._settings.chunk)
            if not self._asked and self._is_time():
                self._ask()
            resting = self._answered(UNANSWERED - 1)
        self._send(Kind.LAST, self.actor.give_up(), 0)
        self._answered(0)
        while self._asked:
            self._take(self._mail.wait(self._parameters))
        self._mail.send("actors to learner", 0, TO_LEARNER, pack(Kind.REST))
        self._mail.flush()

    def _answered(self, most: int) -> bool:
        """Wait until at most so many chunks have no answer; returns whether one of the answers says to rest."""
        resting = False
        while True:
            if self._asked and (found := self._parameters.take()) is not None:
                self._take(found)
            if (answer := self._answers.take()) is not None:
                self._unanswered -= 1
                resting |= bool(answer.number)
            elif self._unanswered > most:
                self._mail.nap()
            else:
                return resting

    def lockstep(self, rounds: int) -> None:
        """Play `rounds` chunks, each after the learner has learnt from the one before."""
        self._since = self._settings.fetch_every
        for number in range(rounds):
            if self._is_time():
                self._ask()
                self._take(self._mail.wait(self._parameters))
            self._send(Kind.ADD, self.actor.play(self._settings.chunk), self._settings.chunk)
            if number == rounds - 1:
                self._send(Kind.LAST, self.actor.give_up(), 0)
            self._answered(0)
        self._mail.flush()

    def _send(self, kind: Kind, transitions: Transitions, steps: int) -> None:
        known = priorities(self.actor.values, transitions)
        if not np.isfinite(known).all():
            self.problem = (
                "the values of actions, or rewards, are not finite: the network may have diverged; a smaller learning "
                "rate may help"
            )
            known = np.zeros_like(known)  # the shard needs some until all have met
        message = pack_transitions(kind, steps, transitions, known, self._form)
        self._mail.send("actors to replay", self._shard, TO_SHARD, message)
        self._unanswered += 1
        self._since += steps

    def _is_time(self) -> bool:
        return self._since >= self._settings.fetch_every

    def _ask(self) -> None:
        self._mail.send("actors to learner", 0, TO_LEARNER, pack(Kind.ASK))
        self._asked, self._since = self._asked + 1, 0

    def _take(self, message: Message) -> None:
        self.actor.values.put(message.numbers())
        self._asked -= 1
