"""Schedules as GOAL text for LogGOPSim (Hoefler, Schneider, Lumsdaine 2010): another simulator of the same messages."""

from __future__ import annotations

from typing import IO

import numpy as np

from ..schedules.registry import ScheduleAlgorithm
from .network import Network
from .rounds import Messages, TooMany, bytes_of_block, rounds

__all__ = ["MOST_LINES", "write"]

MOST_LINES = 5_000_000  # of a file; all are held in memory, about 100 bytes each
JOINED = 2  # operations that a later one names; more of them are joined by an empty calculation


def write(file: IO[str], algorithm: ScheduleAlgorithm, network: Network, nbytes: int, root: int = 0) -> None:
    """Write the sends, receives and folds of all ranks, as one segment; TooMany if the lines are too many.

    A fold is a calculation in ns by the network's ``fold``. What belongs to a round requires all of the round before.
    Lengths are whole bytes, at least 1. The tag of a message is the number of its round.
    """
    text = _Text(network, bytes_of_block(algorithm, network.size, nbytes))
    number = 0
    for messages, times in rounds(algorithm, network.size, root):
        for _ in range(times):
            text.add(messages, number)
            number += 1
    file.write(f"num_ranks {network.size}\n")
    for rank, lines in enumerate(text.lines):
        file.write(f"\nrank {rank} {{\n" + "".join(f"{line}\n" for line in lines) + "}\n")


class _Text:
    """The lines of all ranks so far; ``last`` are the operations of a rank that its next round requires."""

    def __init__(self, network: Network, each: float):
        self.lines: list[list[str]] = [[] for _ in range(network.size)]
        self.last: list[list[int]] = [[] for _ in range(network.size)]
        self._count = [0] * network.size
        self._total, self._each = 0, each
        self._ns_per_block = each / network.fold * 1e9 * network.slowness()

    def add(self, messages: Messages, number: int) -> None:
        """Add one round."""
        made: dict[int, list[int]] = {}
        columns = (messages.source, messages.target, messages.blocks, messages.folds)
        for source, target, blocks, folds in zip(*(column.tolist() for column in columns), strict=True):
            length = max(1, round(blocks * self._each))
            sent = self._add(source, f"send {length}b to {target} tag {number}", self.last[source])
            came = self._add(target, f"recv {length}b from {source} tag {number}", self.last[target])
            if folds:
                came = self._fold(target, blocks, [came])
            made.setdefault(source, []).append(sent)
            made.setdefault(target, []).append(came)
        for rank in np.flatnonzero(messages.reduced).tolist():
            made[rank] = [self._fold(rank, int(messages.reduced[rank]), made.get(rank) or self.last[rank])]
        for rank, numbers in made.items():
            self.last[rank] = numbers if len(numbers) <= JOINED else [self._add(rank, "calc 0", numbers)]

    def _fold(self, rank: int, blocks: int, required: list[int]) -> int:
        return self._add(rank, f"calc {round(blocks * self._ns_per_block[rank])}", required)

    def _add(self, rank: int, what: str, required: list[int]) -> int:
        """Add an operation of a rank; returns its number."""
        self._total += 1 + len(required)
        if self._total > MOST_LINES:
            raise TooMany(f"the schedule has over {MOST_LINES:,} lines of GOAL text")
        self._count[rank] += 1
        number = self._count[rank]
        self.lines[rank].append(f"l{number}: {what}")
        self.lines[rank] += [f"l{number} requires l{other}" for other in required]
        return number
