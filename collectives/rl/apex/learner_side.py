"""``LearnerSide``: the learner's rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..learning import Learner
from ..mail import Kind, Mail, Message, longest, pack
from ..replay import Sample
from ..settings import Settings
from ..transitions import Form
from .places import BATCHES, ERRORS, PARAMETERS, TO_LEARNER, Places

_NOWHERE = np.zeros(0, np.int64)  # where a batch lies is known to its shard alone


class LearnerSide:
    """Learns from the batches that shards send, returns their priorities, and gives actors parameters."""

    def __init__(self, learner: Learner, mail: Mail, places: Places, settings: Settings, form: Form) -> None:
        self.learner, self._mail, self._settings, self._form = learner, mail, settings, form
        most = longest(form, settings.batch)
        self._shards = [mail.inbox(places.rank_of_shard(s), BATCHES, most) for s in range(places.shards)]
        self._actors = [mail.inbox(places.rank_of_actor(a), TO_LEARNER, 0) for a in range(places.actors)]
        self._steps = [0] * places.shards  # that each shard has told of
        self.problem: str | None = None  # why it learns no more

    def free(self, until: int) -> None:
        """Learn until the actors have taken `until` steps, and all ranks rest."""
        sending, playing, resting = len(self._shards), {inbox.peer for inbox in self._actors}, False
        while sending or playing:
            found = False
            for inbox in self._actors:
                if (message := inbox.take()) is not None:
                    found = True
                    if message.kind == Kind.REST:
                        playing.discard(inbox.peer)
                    else:
                        self._give(inbox.peer)
            for number, inbox in enumerate(self._shards):
                if (message := inbox.take()) is not None:
                    found = True
                    if message.kind == Kind.REST:
                        sending -= 1
                    elif message.kind == Kind.STEPS:
                        self._steps[number] = message.number
                    else:
                        self._learn(number, message)
            playing -= self._mail.dead
            if not resting and (self.problem is not None or sum(self._steps) >= until):
                resting = True
                for inbox in self._shards:
                    self._mail.send("learner to replay", inbox.peer, ERRORS, pack(Kind.REST))
            if not found:
                self._mail.nap()
        self._mail.flush()

    def lockstep(self, rounds: int) -> None:
        """In each round give actors parameters, if it is time, and learn from the batches of each shard, in order."""
        since = self._settings.fetch_every
        for _ in range(rounds):
            if since >= self._settings.fetch_every:
                since = 0
                for inbox in self._actors:
                    self._mail.wait(inbox)
                    self._give(inbox.peer)
            since += self._settings.chunk
            for number, inbox in enumerate(self._shards):
                for _ in range(self._mail.wait(inbox).number):
                    self._learn(number, self._mail.wait(inbox))
        self._mail.flush()

    def _learn(self, shard: int, message: Message) -> None:
        self._steps[shard] = message.number
        transitions, weights = message.transitions(self._form)
        errors = self._errors(Sample(transitions, weights, _NOWHERE, _NOWHERE))
        peer = self._shards[shard].peer
        self._mail.send("learner to replay", peer, ERRORS, pack(Kind.ERRORS, 0, len(errors), errors))

    def _errors(self, sample: Sample) -> NDArray[np.float32]:
        """The new priorities of a sample. After a loss that is not finite they are zeros: other ranks need an answer
        until all have met."""
        if self.problem is None:
            try:
                errors = self.learner.update(sample)
            except FloatingPointError as error:
                self.problem = str(error)
            else:
                assert errors is not None  # this learner refuses no loss
                return errors
        return np.zeros(sample.transitions.rows, np.float32)

    def _give(self, actor: int) -> None:
        flat = self.learner.values.flat()
        self._mail.send("learner to actors", actor, PARAMETERS, pack(Kind.PARAMETERS, 0, len(flat), flat))
