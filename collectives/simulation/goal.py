"""Schedules as GOAL text for LogGOPSim (Hoefler, Schneider, Lumsdaine 2010): another simulator of the same messages."""

from __future__ import annotations

from typing import IO

import numpy as np

from ..schedules.registry import ScheduleAlgorithm
from .network import Network
from .rounds import Messages, rounds

__all__ = ["MOST_LINES", "write"]

MOST_LINES = 20_000_000  # of a file; LogGOPSim reads all of them


def write(file: IO[str], algorithm: ScheduleAlgorithm, network: Network, nbytes: int, root: int = 0) -> None:
    """Write the sends, receives and folds of all ranks; ValueError if they are too many.

    A fold is a calculation in ns by the network's ``fold``. What belongs to a round requires all of the round before.
    Lengths are whole bytes, at least 1.
    """
    each = nbytes / algorithm.blocks(network.size)
    ranks = [_Rank() for _ in range(network.size)]
    lines = number = 0
    for messages, times in rounds(algorithm, network.size, root):
        lines += times * 2 * len(messages.source)
        if lines > MOST_LINES:
            raise ValueError(f"--goal: the schedule has over {MOST_LINES:,} lines")
        for _ in range(times):
            _add(ranks, messages, number, each, network)
            number += 1
    file.write(f"num_ranks {network.size}\n")
    for rank, made in enumerate(ranks):
        file.write(f"\nrank {rank} {{\n" + "".join(f"{line}\n" for line in made.lines) + "}\n")


class _Rank:
    """The lines of one rank; ``last`` are the numbers of those that the next round requires."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0
        self.last: list[int] = []

    def add(self, what: str, required: list[int]) -> int:
        self.count += 1
        self.lines.append(f"l{self.count}: {what}")
        self.lines += [f"l{self.count} requires l{number}" for number in required]
        return self.count


def _add(ranks: list[_Rank], messages: Messages, number: int, each: float, network: Network) -> None:
    """One round; the tag of its messages is its number."""
    before: dict[int, list[int]] = {}
    now: dict[int, list[int]] = {}
    for source, target, blocks, folds in zip(
        messages.source.tolist(),
        messages.target.tolist(),
        messages.blocks.tolist(),
        messages.folds.tolist(),
        strict=True,
    ):
        length = max(1, round(blocks * each))
        for rank in (source, target):
            before.setdefault(rank, ranks[rank].last)
        sent = ranks[source].add(f"send {length}b to {target} tag {number}", before[source])
        now.setdefault(source, []).append(sent)
        came = ranks[target].add(f"recv {length}b from {source} tag {number}", before[target])
        if folds:
            came = ranks[target].add(f"calc {round(blocks * each / network.fold * 1e9)}", [came])
        now.setdefault(target, []).append(came)
    for rank in np.flatnonzero(messages.reduced).tolist():
        work = round(float(messages.reduced[rank]) * each / network.fold * 1e9)
        now[rank] = [ranks[rank].add(f"calc {work}", now.get(rank) or ranks[rank].last)]
    for rank, made in now.items():
        ranks[rank].last = made
