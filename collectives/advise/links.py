"""Seconds of the collectives and transfers of a mesh, from the costs of the library's own schedules."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ..schedules import registry
from ..selection.model import Piece, load
from .machine import Machine

__all__ = ["Group", "Links"]

ALLREDUCES = ("circulant", "recursive_doubling")  # of which the faster one is taken
AXES = ("pipeline", "data", "tensor")  # the last varies fastest from rank to rank, as in `train.Mesh`


class Group(NamedTuple):
    """``size`` ranks that take part in a collective, on ``hosts`` hosts; ``most`` and ``least`` of them are on one."""

    size: int
    hosts: int
    most: int
    least: int


class Links:
    """The groups of a mesh of ``pipeline`` x ``data`` x ``tensor`` ranks on a machine, and what they take.

    Groups of the same axis work at the same time. So a rank has an equal share of its host's port; in a transfer, of
    that of the ranks whose next stage is on another host.
    """

    def __init__(self, machine: Machine, pipeline: int, data: int, tensor: int) -> None:
        hosts = (np.arange(pipeline * data * tensor) // machine.per_host).reshape(pipeline, data, tensor)
        self.tensor, self.data = _group(hosts, 2), _group(hosts, 1)
        self.machine = machine
        away = np.diff(hosts, axis=0) > 0
        self._away = float(away.mean()) if away.size else 0.0
        self._sending = int(np.bincount(hosts[:-1][away]).max()) if away.any() else 1

    def _between(self, sharing: int | None = None) -> Piece:
        """A link between hosts, if so many ranks (default: all of a host) share a port."""
        machine = self.machine
        return Piece(None, machine.alpha, (sharing or machine.on_host) / machine.beta, 1 / machine.fold)

    def _local(self) -> Piece:
        machine = self.machine
        return Piece(None, machine.local_alpha, 1 / machine.local_beta, 1 / machine.fold)

    def transfer(self, nbytes: float) -> float:
        """Seconds of a message from a stage to the next one, the mean over all stages."""
        away, here = self._between(self._sending), self._local()
        between, local = (piece.alpha + nbytes * piece.beta for piece in (away, here))
        return self._away * between + (1 - self._away) * local

    def allreduce(self, group: Group, nbytes: float) -> float:
        """Seconds of an all-reduce of a vector.

        On several hosts: a reduce-scatter on each host, an all-reduce between hosts of each part, an all-gather (Traeff
        2019, "Decomposing Collectives for Exploiting Multi-lane Communication").
        """
        if group.hosts == 1:
            return _fastest(self._local(), ALLREDUCES, "allreduce", group.size, nbytes)
        between = _fastest(self._between(), ALLREDUCES, "allreduce", group.hosts, nbytes / group.least)
        return between + self._on_hosts("reduce_scatter", group, nbytes) + self._on_hosts("allgather", group, nbytes)

    def reduce_scatter(self, group: Group, nbytes: float) -> float:
        """Seconds of a reduce-scatter of a vector, on several hosts in two steps."""
        return self._half("reduce_scatter", group, nbytes)

    def allgather(self, group: Group, nbytes: float) -> float:
        """Seconds of an all-gather of a vector of so many bytes, all parts together, on several hosts in two steps."""
        return self._half("allgather", group, nbytes)

    def _half(self, collective: str, group: Group, nbytes: float) -> float:
        if group.hosts == 1:
            return self._on_hosts(collective, group, nbytes)
        between = _fastest(self._between(), ("circulant",), collective, group.hosts, nbytes / group.least)
        return between + self._on_hosts(collective, group, nbytes)

    def _on_hosts(self, collective: str, group: Group, nbytes: float) -> float:
        return _fastest(self._local(), ("circulant",), collective, group.most, nbytes)


def _group(hosts: np.ndarray, axis: int) -> Group:
    """The ranks along an axis, along which the numbers of hosts do not fall: of all such groups, the largest numbers.

    As many lanes run between hosts as the host with the fewest ranks has.
    """
    rows = np.moveaxis(hosts, axis, -1).reshape(-1, hosts.shape[axis])
    begins = np.ones(rows.shape, bool)  # where a host's ranks begin
    begins[:, 1:] = np.diff(rows) > 0
    on_host = np.diff(np.append(np.flatnonzero(begins), begins.size))
    return Group(rows.shape[1], int(begins.sum(axis=1).max()), int(on_host.max()), int(on_host.min()))


def _fastest(piece: Piece, names: tuple[str, ...], collective: str, size: int, nbytes: float) -> float:
    """Seconds of the fastest of some schedules."""
    if size == 1:
        return 0.0
    found = []
    for name in names:
        rounds, moved, folded = _load(collective, name, size)
        found.append(rounds * piece.alpha + nbytes * (moved * piece.beta + folded * piece.gamma))
    return min(found)


@functools.cache
def _load(collective: str, name: str, size: int) -> tuple[float, float, float]:
    """Rounds, and bytes moved and folded for a vector of one byte."""
    return load(registry.find(collective, name), size, 1)
