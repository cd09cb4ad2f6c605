"""The settings of one table: ranks, element type, algorithm, and the communicator and calls for these."""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mpi4py import MPI

from ..communicator import Communicator
from ..communicator.internal import side_of
from ..schedules import registry
from ..system.machine import last_level_cache
from .exchanges import Exchange, on_torus
from .options import TYPES
from .programs import Program
from .workloads import PAGE, Workload, footprint, usable_count

__all__ = ["Setting", "communicator", "largest_cache", "part", "settings"]

_VARIABLE = "COLLECTIVES_ALGORITHM"
plain_mpi = MPI.Intracomm  # the class for algorithm "mpi"; tests replace it by one with wrong results
NEAREST = 1, 1  # dimensions and radius of the torus of neighbours
MOST_SETS = 4096  # sets of buffers
MOST_PLANS = 64  # persistent requests, each of which may hold memory of the engine


@dataclass
class Setting:
    """One table. ``algorithm``: as asked for, None if the library chooses. ``type_name``: a key of TYPES.

    ``cache``: what :func:`largest_cache` returned.
    """

    program: Program
    args: argparse.Namespace
    comm: Any
    algorithm: str | None
    type_name: str
    cache: int

    @property
    def dtype(self) -> str:
        """NumPy's name of the element type."""
        return TYPES[self.type_name]

    def count(self, nbytes: int, itemsize: int) -> int:
        """Number of elements in a message of at most ``nbytes`` bytes that the collective allows."""
        if self.program.exchanges:
            return nbytes // itemsize
        return usable_count(self.program.collective, nbytes // itemsize, self.comm.size)

    def sets(self, count: int, itemsize: int) -> int:
        """Number of sets of buffers used in turn: with --off-cache, enough for twice the largest cache."""
        one = self.footprint(count, itemsize)
        if not self.args.off_cache or not one:
            return 1
        most = min(MOST_PLANS if self.program.form == "plan" else MOST_SETS, max(1, self.args.mem_limit // one))
        return min(most, -(-2 * self.cache // one))

    def footprint(self, count: int, itemsize: int, sets: int = 1) -> int:
        """Bytes of the buffers on the rank that needs most, for any root."""
        if not self.program.collective:
            return 2 * footprint("bcast", count, itemsize, 2, rotate=sets)
        if self.program.exchanges:
            peers = len(self.comm.inoutedges[0]) if self.program.on_a_graph else self.comm.size
            return footprint("alltoall", count, itemsize, peers, rotate=sets)
        arguments = self.program.collective, count, itemsize, self.comm.size
        return footprint(*arguments, in_place=self.args.in_place, rotate=sets)

    def fits(self, count: int, itemsize: int) -> bool:
        """Whether the buffers fit in --mem-limit."""
        return self.footprint(count, itemsize) + PAGE <= self.args.mem_limit

    def too_long(self, nbytes: int) -> str:
        """What a table says in place of rows that do not fit in --mem-limit, from ``nbytes`` on."""
        return f"Left out: {nbytes} bytes and more, whose buffers need more than --mem-limit {self.args.mem_limit}."

    def in_place(self) -> Setting:
        """The same in place."""
        args = copy.copy(self.args)
        args.in_place = True
        return replace(self, args=args)

    def workload(self, count: int, sets: int) -> Workload | Exchange:
        """The buffers of the call, in ``sets`` sets, and the call."""
        if self.program.exchanges:
            named = None if self.algorithm == "mpi" else self.algorithm
            return Exchange(
                self.comm, self.program.collective, count, dtype=self.dtype, rotate=sets, algorithm=named
            )  # fmt: skip
        root = range(self.comm.size) if self.args.root_rank == "rotate" else self.args.root_rank
        return Workload(
            self.comm, self.program.collective, count, dtype=self.dtype, root=root, in_place=self.args.in_place,
            rotate=sets, heap=self.args.heap,
        )  # fmt: skip

    @property
    def keywords(self) -> dict[str, Any]:
        """Keyword arguments for this library's methods."""
        return {"engine": self.args.engine} if self.args.engine else {}

    def notes(self) -> list[str]:
        """The comments at the head of the table."""
        chosen = "chosen by the library" if self.algorithm is None else self.algorithm
        kind = "arrays of comm.empty" if self.args.heap else "private"
        reuse = "in turn, out of the cache" if self.args.off_cache else "the same in every call"
        place = ", in place" if self.args.in_place else ""
        notes = [f"Ranks: {self.comm.size}. Algorithm: {chosen}. Buffers: {kind}, {reuse}{place}."]
        if self.program.on_a_graph:
            dimensions, radius = self.args.neighborhood or NEAREST
            notes.append(f"Neighbours: {len(self.comm.inoutedges[0])}, on a torus: cart:{dimensions}:{radius}.")
        return notes


def settings(program: Program, args: argparse.Namespace, plain: MPI.Intracomm) -> Iterator[Setting]:
    """The settings of all tables for the ranks of ``plain``."""
    every, cache = args.algorithm == "all", largest_cache(plain)
    for name in registry.algorithms(program.collective) if every else [args.algorithm]:
        if name == "mpi" and (args.heap or args.engine):
            continue
        if program.exchanges:
            yield from _exchanges(program, args, plain, name, cache)
            continue
        with communicator(plain, program.collective, name) as comm:
            if every and not _can_serve(comm, program.collective):
                continue
            for type_name in args.type:
                yield Setting(program, args, comm, name, type_name, cache)


def largest_cache(comm: MPI.Intracomm) -> int:
    """Bytes of the largest last-level cache of all ranks, on every rank. Collective.

    With --off-cache it decides how many calls the ranks make, which must be equally many on machines that differ.
    """
    largest: int = comm.allreduce(last_level_cache(), MPI.MAX)
    return largest


def _exchanges(
    program: Program, args: argparse.Namespace, plain: MPI.Intracomm, name: str | None, cache: int
) -> Iterator[Setting]:  # fmt: skip
    """The settings of an exchange; its calls name their algorithm."""
    comm = plain_mpi(plain) if name == "mpi" else Communicator(plain)
    used = on_torus(comm, *(args.neighborhood or NEAREST)) if program.on_a_graph else comm
    for type_name in args.type:
        yield Setting(program, args, used, name, type_name, cache)
    if used is not comm:
        used.Free()
    if name != "mpi":
        comm.Free()


@contextlib.contextmanager
def part(world: MPI.Intracomm, ranks: int) -> Iterator[MPI.Intracomm | None]:
    """A communicator of the first ``ranks`` ranks; None on the other ranks, which sleep until these have finished."""
    plain = MPI.Intracomm(world.Split(0 if world.rank < ranks else MPI.UNDEFINED, world.rank))
    taking_part = plain != MPI.COMM_NULL
    yield plain if taking_part else None
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.01)
    if taking_part:
        plain.Free()


@contextlib.contextmanager
def communicator(plain: MPI.Intracomm, collective: str, algorithm: str | None) -> Iterator[Any]:
    """A communicator on which ``algorithm`` serves the collective; a plain mpi4py one for ``mpi``.

    The algorithm is set by COLLECTIVES_ALGORITHM, since naming it in every call would cost time in every call. None
    leaves the choice to the library.
    """
    if algorithm == "mpi":
        yield plain_mpi(plain)
        return
    if algorithm in (None, "shm"):  # the library itself chooses shm within a node, on its fast path
        comm = Communicator(plain)
    else:
        comm = _forced(plain, collective, algorithm)
    if algorithm == "shm" and not _whole_reach(comm, collective):
        comm.Free()
        comm = _forced(plain, collective, algorithm)  # the call then raises an error that says why shm is impossible
    yield comm
    comm.Free()


def _whole_reach(comm: Communicator, collective: str) -> bool:
    """Whether the node-local engine serves vectors of every length, also by a table that the user has given."""
    reach = side_of(comm).rules.local_reach()
    return comm.explain(collective, 8).startswith("shm") and reach.get(collective, 0) is None


def _can_serve(comm: Any, collective: str) -> bool:
    """Whether the ranks lie on nodes as the algorithm of ``comm`` needs it."""
    try:
        return not isinstance(comm, Communicator) or bool(comm.explain(collective, 8))
    except ValueError:
        return False


def _forced(plain: MPI.Intracomm, collective: str, algorithm: str) -> Communicator:
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = f"{collective}={algorithm}"
    try:
        return Communicator(plain)
    finally:
        del os.environ[_VARIABLE]
        if before is not None:
            os.environ[_VARIABLE] = before
