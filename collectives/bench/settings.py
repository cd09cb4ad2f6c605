"""What one table is of: ranks, element type and algorithm, with the communicator and the calls that these make."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from ..communicator import Communicator
from ..schedules import registry
from ..system.machine import last_level_cache
from .options import TYPES
from .programs import Program
from .workloads import PAGE, Workload, footprint, usable_count

__all__ = ["Setting", "communicator", "part", "settings"]

_VARIABLE = "COLLECTIVES_ALGORITHM"
plain_mpi = MPI.Intracomm  # what algorithm "mpi" is called on; tests put one that is wrong here
MOST_SETS = 4096  # of buffers
MOST_PLANS = 64  # persistent requests, each of which may hold memory of the engine


@dataclass
class Setting:
    """One table: ``algorithm`` as asked for, None where the library chooses; ``type_name`` a key of TYPES."""

    program: Program
    args: argparse.Namespace
    comm: Any
    algorithm: str | None
    type_name: str

    @property
    def dtype(self) -> str:
        """NumPy's name of the element type."""
        return TYPES[self.type_name]

    def count(self, nbytes: int, itemsize: int) -> int:
        """Elements of a message: as many as are in so many bytes and as the collective can have."""
        return usable_count(self.program.collective, nbytes // itemsize, self.comm.size)

    def sets(self, count: int, itemsize: int) -> int:
        """How many sets of buffers are used in turn: twice the last cache where data are to be out of it."""
        one = self.footprint(count, itemsize)
        if not self.args.off_cache or not one:
            return 1
        most = min(MOST_PLANS if self.program.form == "plan" else MOST_SETS, max(1, self.args.mem_limit // one))
        return min(most, -(-2 * last_level_cache() // one))

    def footprint(self, count: int, itemsize: int, sets: int = 1) -> int:
        """Bytes of the buffers of the busiest rank, whichever ranks are roots."""
        if not self.program.collective:
            return 2 * footprint("bcast", count, itemsize, 2, rotate=sets)
        arguments = self.program.collective, count, itemsize, self.comm.size
        return footprint(*arguments, in_place=self.args.in_place, rotate=sets)

    def fits(self, count: int, itemsize: int) -> bool:
        """Whether the buffers fit in the memory that they may have."""
        return self.footprint(count, itemsize) + PAGE <= self.args.mem_limit

    def workload(self, count: int, sets: int) -> Workload:
        """The call's buffers."""
        root = range(self.comm.size) if self.args.root_rank == "rotate" else self.args.root_rank
        return Workload(
            self.comm, self.program.collective, count, dtype=self.dtype, root=root, in_place=self.args.in_place,
            rotate=sets, heap=self.args.heap,
        )  # fmt: skip

    @property
    def keywords(self) -> dict[str, Any]:
        """Of our methods."""
        return {"engine": self.args.engine} if self.args.engine else {}

    def notes(self) -> list[str]:
        """Comments of the table."""
        chosen = "chosen by the library" if self.algorithm is None else self.algorithm
        kind = "arrays of comm.empty" if self.args.heap else "private"
        reuse = "in turn, out of the cache" if self.args.off_cache else "the same in every call"
        place = ", in place" if self.args.in_place else ""
        return [f"Ranks: {self.comm.size}. Algorithm: {chosen}. Buffers: {kind}, {reuse}{place}."]


def settings(program: Program, args: argparse.Namespace, plain: MPI.Intracomm) -> Iterator[Setting]:
    """Every table of these ranks."""
    every = args.algorithm == "all"
    for name in registry.algorithms(program.collective) if every else [args.algorithm]:
        if name == "mpi" and (args.heap or args.engine):
            continue
        with communicator(plain, program.collective, name) as comm:
            for type_name in args.type:
                yield Setting(program, args, comm, name, type_name)


@contextlib.contextmanager
def part(world: MPI.Intracomm, ranks: int) -> Iterator[MPI.Intracomm | None]:
    """A communicator of the first ranks, and None on the others, which sleep until those are done."""
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
    """One on which an algorithm serves the collective; plain mpi4py's for ``mpi``.

    It is chosen as the selection table chooses it: a program that asks for it in every call pays for the asking. None
    leaves the choice to the library.
    """
    if algorithm == "mpi":
        yield plain_mpi(plain)
        return
    if algorithm in (None, "shm"):  # the library's choice where ranks share a node: its fast path is open then
        comm = Communicator(plain)
    else:
        comm = _forced(plain, collective, algorithm)
    if algorithm == "shm" and not comm.explain(collective, 8).startswith("shm"):
        comm.Free()
        comm = _forced(plain, collective, algorithm)  # the call says why it cannot be
    yield comm
    comm.Free()


def _forced(plain: MPI.Intracomm, collective: str, algorithm: str) -> Communicator:
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = f"{collective}={algorithm}"
    try:
        return Communicator(plain)
    finally:
        del os.environ[_VARIABLE]
        if before is not None:
            os.environ[_VARIABLE] = before
