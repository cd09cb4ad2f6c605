"""The network of a simulation: hosts with ports, switches above them, and the ranks' processors.

The parameters are those of LogGP (Alexandrov, Ionescu, Schauser, Scheiman 1995): ``alpha`` is L, the latency;
``overhead`` is o, the time of a processor per message; the inverse of ``beta`` is G, the gap per byte. A host has one
port out and one port in, which its ranks share. LogGP's gap per message, g, is the overhead here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

__all__ = ["PLACEMENTS", "Level", "Network", "placed"]

#: The number of each rank's host, from numbers of ranks and hosts: consecutive ranks on one host, or dealt in turn.
PLACEMENTS = {
    "block": lambda size, hosts: np.arange(size) * hosts // size,
    "cyclic": lambda size, hosts: np.arange(size) % hosts,
}

WIDEST = 1 << 24  # neighbours below one switch


@dataclass(frozen=True)
class Level:
    """One level of switches: ``width`` neighbours of the level below share a switch.

    ``oversubscription`` is the bandwidth below a switch divided by that of its uplink; 1 is a full fat tree.
    """

    width: int
    oversubscription: float = 1.0


@dataclass(frozen=True)
class Network:
    """Times in seconds, rates in bytes per second and direction.

    ``hosts`` is the number of each rank's host, as an array. ``fold`` is the rate at which a rank folds arrivals.
    Messages of at least ``rendezvous`` bytes (infinity: none) are announced, and leave when the receiver has posted the
    receive and has answered: two latencies more. A host's port lets ``burst`` bytes through at once after a rest, as
    rate limits of clouds do; it begins without any. ``jitter`` adds to each latency an exponential part whose mean is
    ``jitter * alpha``, drawn from ``seed``. ``slow_ranks`` and ``slow_hosts`` are factors by number: of a rank's
    overhead and folding, of the time per byte of a host's ports.
    """

    hosts: np.ndarray
    alpha: float = 2e-6
    beta: float = 12e9
    overhead: float = 0.3e-6
    fold: float = 20e9
    local_alpha: float = 0.5e-6
    local_beta: float = 10e9
    rendezvous: float = 65536
    burst: float = 0.0
    levels: tuple[Level, ...] = ()
    jitter: float = 0.0
    seed: int = 1
    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    slow_hosts: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.hosts.ndim != 1 or not self.size or self.hosts.min() < 0:
            raise ValueError("hosts: expected the number of each rank's host, from 0 on, in an array of one dimension")
        if len(np.unique(self.hosts)) < self.nhosts:
            raise ValueError(f"hosts: expected a rank on each host from 0 to {self.nhosts - 1}")
        for name in ("beta", "fold", "local_beta"):
            if not (getattr(self, name) > 0 and 1 / getattr(self, name) < math.inf):
                raise ValueError(f"{name}: expected a rate above 0, not {getattr(self, name)}")
        for name in ("alpha", "overhead", "local_alpha", "burst", "jitter"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected 0 or more, not {getattr(self, name)}")
        if not self.rendezvous >= 0:
            raise ValueError(f"rendezvous: expected 0 bytes or more, not {self.rendezvous}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed: expected a number from 0 to 2^64 - 1, not {self.seed}")
        for name, known in (("slow_ranks", self.size), ("slow_hosts", self.nhosts)):
            for number, factor in getattr(self, name).items():
                if not 0 <= number < known or not 0 < factor < math.inf:
                    raise ValueError(f"{name}: {number}: {factor}: expected a number below {known}, a factor above 0")
        for level in self.levels:
            if not 1 <= level.width <= WIDEST or not 0 < level.oversubscription < math.inf:
                raise ValueError(f"levels: {level}: expected a width of 1 to {WIDEST} and an oversubscription above 0")
        if not np.isfinite(self.groups()[1]).all():
            raise ValueError("levels: the bandwidths of their uplinks are too small for a number")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.hosts)

    @property
    def nhosts(self) -> int:
        """The number of hosts."""
        return int(self.hosts.max()) + 1

    def slowness(self) -> np.ndarray:
        """For each rank the factor of its overhead and of its folding."""
        return _factors(self.size, self.slow_ranks)

    def host_gap(self) -> np.ndarray:
        """For each host the seconds per byte of its ports."""
        return _factors(self.nhosts, self.slow_hosts) / self.beta

    def groups(self) -> tuple[np.ndarray, np.ndarray]:
        """Levels by hosts: the switch of each host at each level; and the seconds per byte of each switch's uplink.

        Switches are numbered through all levels.
        """
        found, gaps = np.zeros((len(self.levels), self.nhosts), np.int32), [np.zeros(0)]
        width, gap, first = 1, 1 / self.beta, 0
        for i, level in enumerate(self.levels):
            width = min(width * level.width, self.nhosts)
            gap *= level.oversubscription / level.width
            found[i] = first + np.arange(self.nhosts) // width
            switches = int(found[i][-1]) + 1 - first
            gaps.append(np.full(switches, gap))
            first += switches
        return found, np.concatenate(gaps)


def placed(size: int, hosts: int, placement: str = "block") -> np.ndarray:
    """The number of each rank's host for ``size`` ranks on ``hosts`` hosts; ValueError for an impossible number."""
    if not 1 <= hosts <= size:
        raise ValueError(f"hosts: expected 1 to {size}, one rank on each at least, not {hosts}")
    return PLACEMENTS[placement](size, hosts).astype(np.int32)


def _factors(count: int, slow: Mapping[int, float]) -> np.ndarray:
    factors = np.ones(count)
    for number, factor in slow.items():
        factors[number] = factor
    return factors
