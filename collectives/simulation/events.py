"""Simulation of rounds whose messages share ports: the schedule as flat arrays for csrc/simulate/."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..core import _core
from .network import Network
from .rounds import MOST_MESSAGES, Messages, TooMany

__all__ = ["run"]


def run(
    found: Iterator[tuple[Messages, int]],
    network: Network,
    bytes_per_block: float,
    segments: int = 1,
    in_flight: int = 1,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Seconds at which each rank ends, bytes that left each host, and messages; TooMany for too many of these."""
    if segments * network.size > MOST_MESSAGES:
        raise TooMany(f"{segments:,} segments on {network.size:,} ranks do not fit in memory")
    rounds = _flat(found, network.size, bytes_per_block, MOST_MESSAGES // segments)
    groups, gaps = network.groups()
    parameters = {
        "host": np.ascontiguousarray(network.hosts, np.int32),
        "group": np.ascontiguousarray(groups),
        "host_gap": network.host_gap(),
        "group_gap": gaps,
        "slowness": network.slowness(),
        "alpha": network.alpha,
        "local_alpha": network.local_alpha,
        "local_gap": 1 / network.local_beta,
        "overhead": network.overhead,
        "fold_gap": 1 / network.fold,
        "rendezvous": network.rendezvous,
        "burst": network.burst,
        "jitter": network.jitter,
        "seed": network.seed,
    }
    end, sent = np.zeros(network.size), np.zeros(network.nhosts)
    _core.simulate(parameters, rounds, segments, min(in_flight, segments), end, sent)
    return end, sent, segments * len(rounds["bytes"])


def _flat(found: Iterator[tuple[Messages, int]], size: int, each: float, most: int) -> dict[str, np.ndarray]:
    """The arrays of ``coll_sim_rounds``: a rank has its own rounds. TooMany above ``most`` messages."""
    parts, entries, total = [], 0, 0
    for messages, times in found:
        total += times * len(messages.source)
        if total > most:
            raise TooMany(
                f"the schedule has over {most:,} messages in each segment, and they share ports: that does not fit in "
                "memory. Simulate fewer ranks or segments, one rank on each host, or another algorithm"
            )
        part = _part(messages, size)
        for _ in range(times):
            parts.append((*part[:2], part[2] + entries, part[3] + entries, *part[4:]))
            entries += len(part[0])
    empty = tuple(np.zeros(0, kind) for kind in (np.int32, np.int64, np.int64, np.int64, np.int64, bool, bool))
    ranks, reduced, sender, receiver, blocks, folds, ahead = map(np.concatenate, zip(empty, *parts, strict=True))
    made = _by_rank(size, ranks, sender, receiver)
    order, sends = made.pop("rounds"), made.pop("messages")
    return made | {
        "folded": reduced[order] * each,
        "bytes": blocks[sends] * each,
        "folds": folds[sends].astype(np.uint8),
        "ahead": ahead[sends].astype(np.uint8),
    }


def _part(messages: Messages, size: int) -> tuple[np.ndarray, ...]:
    """Of one round: its ranks, what each reduces; and of each message the places of its two ranks among them."""
    inside = messages.reduced > 0
    inside[messages.source] = inside[messages.target] = True
    place = np.cumsum(inside) - 1
    ranks = np.flatnonzero(inside).astype(np.int32)
    return (
        ranks,
        messages.reduced[ranks],
        place[messages.source],
        place[messages.target],
        messages.blocks,
        messages.folds,
        messages.ahead,
    )


def _by_rank(size: int, ranks: np.ndarray, sender: np.ndarray, receiver: np.ndarray) -> dict[str, np.ndarray]:
    """Entries, one for each rank and round, sorted by rank, and messages by the entry in which they are sent.

    ``rounds`` and ``messages`` are the orders of entries and messages.
    """
    order = np.argsort(ranks, kind="stable")
    place = np.empty(len(ranks), np.int64)
    place[order] = np.arange(len(ranks))
    from_round = place[sender]
    messages = np.argsort(from_round, kind="stable")
    to_round = place[receiver][messages]
    return {
        "first_round": _begins(ranks, size),
        "first_message": _begins(from_round, len(ranks)),
        "expected": np.bincount(to_round, minlength=len(ranks)).astype(np.int32),
        "to_round": to_round,
        "rounds": order,
        "messages": messages,
    }


def _begins(numbers: np.ndarray, count: int) -> np.ndarray:
    """Where each of ``count`` numbers begins in the sorted numbers, and the end."""
    return np.concatenate(([0], np.cumsum(np.bincount(numbers, minlength=count)))).astype(np.int64)
