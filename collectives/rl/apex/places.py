"""``Places``: which rank of Ape-X does what, and the tags of messages."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from collectives import PeerFailure

TO_SHARD, TO_ACTOR, TO_LEARNER, PARAMETERS, BATCHES, ERRORS = range(1, 7)  # tags


class Places(NamedTuple):
    """The ranks: the learner is rank 0, the `shards` replays come next, all others of `size` ranks are actors."""

    size: int
    shards: int

    def check(self) -> None:
        """Raise ValueError unless there are enough ranks: each shard needs an actor."""
        if self.shards < 1:
            raise ValueError(f"shards must be at least 1, not {self.shards}")
        if self.size < 1 + 2 * self.shards:
            raise ValueError(
                f"Ape-X needs {1 + 2 * self.shards} ranks for a learner, {self.shards} shards of the replay and an "
                f"actor for each, not {self.size}"
            )

    def check_living(self, dead: Set[int]) -> None:
        """Raise PeerFailure if the run cannot go on without the ranks `dead`: it needs an actor, and all others."""
        for rank in sorted(dead):
            if rank < self.rank_of_actor(0):
                raise PeerFailure(f"rank {rank} died, which was {f'shard {rank - 1}' if rank else 'the learner'}")
        if len(dead) == self.actors:
            raise PeerFailure("all actors have died")

    @property
    def actors(self) -> int:
        """The number of actors."""
        return self.size - 1 - self.shards

    def rank_of_shard(self, shard: int) -> int:
        """The rank of a shard."""
        return 1 + shard

    def rank_of_actor(self, actor: int) -> int:
        """The rank of an actor."""
        return 1 + self.shards + actor

    def shard_of(self, actor: int) -> int:
        """The shard to which an actor sends."""
        return actor % self.shards

    def actors_of(self, shard: int) -> list[int]:
        """The actors that send to a shard."""
        return [actor for actor in range(self.actors) if self.shard_of(actor) == shard]
