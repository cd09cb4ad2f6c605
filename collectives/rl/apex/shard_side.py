"""``ShardSide``: the rank of a shard of the replay."""

from __future__ import annotations

from collections import deque

from ..mail import Kind, Mail, Message, longest, pack, pack_transitions
from ..memory import Memory
from ..settings import Settings
from ..transitions import Form
from .places import BATCHES, ERRORS, TO_ACTOR, TO_SHARD, Places


class ShardSide:
    """Takes the transitions of its actors, and sends batches to the learner before it asks for them."""

    problem: str | None = None  # it computes nothing

    def __init__(self, memory: Memory, mail: Mail, places: Places, number: int, settings: Settings, form: Form) -> None:
        self.memory, self._mail, self._settings, self._form = memory, mail, settings, form
        most = longest(form, settings.chunk + settings.n * settings.envs)
        ranks = [places.rank_of_actor(actor) for actor in places.actors_of(number)]
        self._actors = [mail.inbox(rank, TO_SHARD, most) for rank in ranks]
        self._learner = mail.inbox(0, ERRORS, 4 * settings.batch)

    def free(self) -> None:
        """Serve until the learner says to rest, all actors have sent their last transitions, and no batch is due."""
        playing, room, resting, told = {inbox.peer for inbox in self._actors}, self._settings.ahead, False, False
        unanswered: deque[int] = deque()
        while not told or self.memory.waiting:
            found = False
            for inbox in self._actors:
                if (message := inbox.take()) is not None:
                    found = True
                    self._add(message)
                    unanswered.append(inbox.peer)
                    if message.kind == Kind.LAST:
                        playing.discard(inbox.peer)
                    elif self.memory.idle:  # no batch will tell of these steps soon
                        self._mail.send("replay to learner", 0, BATCHES, pack(Kind.STEPS, self.memory.steps))
            while unanswered and (resting or self.memory.actors_may_go_on):
                self._answer(unanswered.popleft(), resting)
            if (message := self._learner.take()) is not None:
                found = True
                if message.kind == Kind.REST:
                    resting = True
                else:
                    self.memory.update(message.numbers())
                    room += 1
            while room and self.memory.due:
                self._send_batch()
                room -= 1
            playing -= self._mail.dead
            if resting and not (playing or unanswered or told or self.memory.due):
                told = True
                self._mail.send("replay to learner", 0, BATCHES, pack(Kind.REST))
            if not found:
                self._mail.nap()
        self._mail.flush()

    def lockstep(self, rounds: int) -> None:
        """In each round take a chunk of each actor, in order, and let the learner learn from what is due then."""
        for number in range(rounds):
            last = number == rounds - 1
            for inbox in self._actors:
                for _ in range(2 if last else 1):
                    self._add(self._mail.wait(inbox))
            due = self.memory.due
            self._mail.send("replay to learner", 0, BATCHES, pack(Kind.ROUND, due))
            for _ in range(due):
                self._send_batch()
                self.memory.update(self._mail.wait(self._learner).numbers())
            for inbox in self._actors:
                for _ in range(2 if last else 1):
                    self._answer(inbox.peer, False)
        self._mail.flush()

    def _add(self, message: Message) -> None:
        self.memory.add(*message.transitions(self._form), message.number)

    def _answer(self, rank: int, resting: bool) -> None:
        self._mail.send("replay to actors", rank, TO_ACTOR, pack(Kind.GO, int(resting)))

    def _send_batch(self) -> None:
        sample = self.memory.draw()
        message = pack_transitions(Kind.BATCH, self.memory.steps, sample.transitions, sample.weights, self._form)
        self._mail.send("replay to learner", 0, BATCHES, message)
