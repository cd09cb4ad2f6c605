"""The collectives in one table, and what a call of any of them becomes once its arguments are checked."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from mpi4py import MPI

from .buffers import Buffer
from .packing import Packed, contiguous
from .shape import Shape

__all__ = ["COLLECTIVES", "Arguments", "Collective", "Draft", "Options", "Side", "checked_root"]


@dataclass(frozen=True)
class Collective:
    """What is special about one collective.

    ``base`` is the one whose algorithms serve it. ``takes`` names the arguments of mpi4py's method, in order.
    ``agreed``: all ranks know the length of the vector, so that the choice of the algorithm may depend on it.
    ``vector``: blocks differ in length. ``averages``: ``collectives.AVG`` makes sense.
    """

    name: str
    base: str
    takes: tuple[str, ...]
    reduces: bool = False
    vector: bool = False
    agreed: bool = True
    averages: bool = False

    @property
    def method(self) -> str:
        """Name of the blocking method."""
        return self.name.capitalize()

    @property
    def rooted(self) -> bool:
        """Whether one rank is the root."""
        return "root" in self.takes


_TWO = ("sendbuf", "recvbuf")
_ROOTED = (*_TWO, "root")
_REDUCING = (*_TWO, "op")

#: By name.
COLLECTIVES = {
    c.name: c
    for c in (
        Collective("barrier", "barrier", ()),
        Collective("bcast", "bcast", ("buf", "root")),
        Collective("gather", "gather", _ROOTED),
        Collective("gatherv", "gather", _ROOTED, vector=True, agreed=False),
        Collective("scatter", "scatter", _ROOTED),
        Collective("scatterv", "scatter", _ROOTED, vector=True, agreed=False),
        Collective("allgather", "allgather", _TWO),
        Collective("allgatherv", "allgather", _TWO, vector=True),
        Collective("alltoall", "alltoall", _TWO),
        Collective("alltoallv", "alltoall", _TWO, vector=True, agreed=False),
        Collective("reduce", "reduce", (*_REDUCING, "root"), reduces=True, averages=True),
        Collective("allreduce", "allreduce", _REDUCING, reduces=True, averages=True),
        Collective("reduce_scatter_block", "reduce_scatter", _REDUCING, reduces=True, averages=True),
        Collective(
            "reduce_scatter", "reduce_scatter", (*_TWO, "recvcounts", "op"), reduces=True, vector=True, averages=True
        ),
        Collective("scan", "scan", _REDUCING, reduces=True),
        Collective("exscan", "exscan", _REDUCING, reduces=True),
    )
}


@dataclass(slots=True)
class Arguments:
    """What mpi4py's method takes; those that a collective does not have keep their defaults."""

    sendbuf: Any = None
    recvbuf: Any = None
    op: Any = None
    root: int = 0
    recvcounts: Any = None

    def of(self, collective: Collective) -> tuple[Any, ...]:
        """The arguments in the order of mpi4py's method."""
        names = ["sendbuf" if name == "buf" else name for name in collective.takes]
        return tuple(getattr(self, name) for name in names)


@dataclass(slots=True)
class Options:
    """What our methods take beyond mpi4py's."""

    algorithm: str | None = None
    deterministic: bool | None = None
    timeout: float | None = None
    stream: Any = None
    engine: str | None = None


@dataclass(slots=True)
class Draft:
    """A call whose arguments are checked: memory and shape, before an algorithm is chosen.

    ``loads`` are filled before each run and ``stores`` spilled after it. ``agreed`` is the length of the vector in
    bytes where all ranks know it, else 0. ``obstacle`` says why only the MPI library can serve the call: it is the same
    on all ranks, as the datatype and op of a reduction are.
    """

    collective: Collective
    shape: Shape
    source: int
    target: int
    agreed: int
    owners: Any
    commutes: bool = True
    obstacle: str | None = None
    unknown: str | None = None  # why the MPI library cannot serve it
    loads: list[Packed] = field(default_factory=list)
    stores: list[Packed] = field(default_factory=list)
    parts: str = ""  # basic types of what is moved
    spare: Any = None  # memory of our own

    @property
    def nbytes(self) -> int:
        """Bytes of the vector, as this rank knows it."""
        return self.shape.nbytes

    def load(self) -> None:
        """Make the temporaries ready for a run."""
        for packed in self.loads:
            packed.load()

    def store(self) -> None:
        """Take the result out of the temporaries."""
        for packed in self.stores:
            packed.store()


class Side:
    """One buffer of a call, as a run of bytes."""

    def __init__(self, buffer: Buffer):
        self.buffer = buffer
        self.address, self.packed = contiguous(buffer)

    @property
    def scattered(self) -> list[Packed]:
        """The temporary, if there is one, as a list."""
        return [self.packed] if self.packed is not None else []


class RootError(MPI.Exception, ValueError):
    """The root is no rank of the communicator: mpi4py's exception, and an argument of the wrong value."""

    def __new__(cls, message: str) -> RootError:
        """An MPI.ERR_ROOT that says ``message``."""
        made = super().__new__(cls, MPI.ERR_ROOT)
        made.message = message
        return made

    def __init__(self, message: str):
        super().__init__(MPI.ERR_ROOT)

    message: str

    def __str__(self) -> str:
        return self.message


def checked_root(root: Any, size: int) -> int:
    """The root as an int; TypeError, or an error that is both MPI's and a ValueError."""
    try:
        root = operator.index(root)
    except TypeError:
        raise TypeError(f"root: expected a rank, not {type(root).__name__}") from None
    if not 0 <= root < size:
        raise RootError(f"root: {root} is not a rank of a communicator of {size}")
    return root
