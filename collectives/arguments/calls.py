"""The table of all collectives, and what a call becomes when its arguments have been checked."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from ..schedules import registry
from .buffers import Buffer
from .packing import Packed, contiguous
from .shape import Shape
from .timeouts import checked_timeout

__all__ = [
    "COLLECTIVES", "EXCHANGES", "Arguments", "Collective", "Draft", "Options", "Side", "checked_flag",
    "checked_options", "checked_root",
]  # fmt: skip


@dataclass(frozen=True)
class Collective:
    """Properties of one collective.

    ``base``: the collective whose algorithms serve this one. ``takes``: the arguments of mpi4py's method, in order.
    ``agreed``: all ranks know the length of the vector, so that the choice of the algorithm may depend on it.
    ``vector``: blocks may differ in length. ``averages``: ``collectives.AVG`` is allowed.
    """

    name: str
    base: str
    takes: tuple[str, ...]
    reduces: bool
    vector: bool
    agreed: bool
    averages: bool

    @property
    def method(self) -> str:
        """Name of the blocking method in mpi4py."""
        return self.name.capitalize()

    @property
    def exchanges(self) -> bool:
        """Whether ranks exchange blocks with some of the others, as in the collectives of neighbours."""
        return self.name in registry.EXCHANGES

    @property
    def rooted(self) -> bool:
        """Whether the collective has a root."""
        return "root" in self.takes


_TWO = ("sendbuf", "recvbuf")
_ROOTED = (*_TWO, "root")
_REDUCING = (*_TWO, "op")

_TAKES: dict[str, tuple[str, ...]] = {
    "barrier": (), "bcast": ("buf", "root"), "gather": _ROOTED, "gatherv": _ROOTED, "scatter": _ROOTED,
    "scatterv": _ROOTED, "allgather": _TWO, "allgatherv": _TWO, "alltoall": _TWO, "alltoallv": _TWO,
    "reduce": (*_REDUCING, "root"), "allreduce": _REDUCING, "reduce_scatter_block": _REDUCING,
    "reduce_scatter": (*_TWO, "recvcounts", "op"), "scan": _REDUCING, "exscan": _REDUCING,
}  # fmt: skip


def _collective(name: str, takes: tuple[str, ...]) -> Collective:
    """A collective; what it has in common with schedules follows from the tables of these."""
    exchanges, reduces = name in registry.EXCHANGES, "op" in takes
    return Collective(
        name, registry.base(name), takes, reduces, vector=exchanges or name in registry.UNEVEN,
        agreed=not exchanges and name not in registry.PRIVATE_LENGTHS,
        averages=reduces and name not in ("scan", "exscan"),
    )  # fmt: skip


#: All collectives by name, but for exchanges.
COLLECTIVES = {name: _collective(name, takes) for name, takes in _TAKES.items()}
#: All-to-allw, and the collectives of neighbours.
EXCHANGES = {name: _collective(name, _TWO) for name in registry.EXCHANGES}


@dataclass(slots=True)
class Arguments:
    """The arguments of mpi4py's method; those that a collective does not have keep their defaults."""

    sendbuf: Any = None
    recvbuf: Any = None
    op: Any = None
    root: int = 0
    recvcounts: Any = None

    def of(self, collective: Collective) -> tuple[Any, ...]:
        """The arguments of ``collective`` in the order of mpi4py's method."""
        names = ["sendbuf" if name == "buf" else name for name in collective.takes]
        return tuple(getattr(self, name) for name in names)


@dataclass(frozen=True, slots=True)
class Options:
    """The keyword arguments of this library's methods beyond mpi4py's; calls may share an object."""

    algorithm: str | None = None
    deterministic: bool | None = None
    timeout: float | None = None
    stream: Any = None
    engine: str | None = None


def checked_options(
    algorithm: Any = None, deterministic: Any = None, timeout: Any = None, stream: Any = None, engine: Any = None
) -> Options:
    """The options that a program gives; TypeError or ValueError for what is wrong in every call."""
    if algorithm is not None and not isinstance(algorithm, str):
        raise TypeError(f"algorithm: expected a name, not {type(algorithm).__name__}")
    if deterministic is not None:
        deterministic = checked_flag(deterministic, "deterministic")
    if engine not in (None, "c", "python"):
        raise ValueError(f"engine: {engine!r} is not one of 'c', 'python'")
    return Options(algorithm, deterministic, checked_timeout(timeout), stream, engine)


def checked_flag(value: Any, argument: str) -> bool:
    """``value`` as a bool, if it is Python's or NumPy's; else TypeError, since Python takes the text "no" for true."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{argument}: expected a bool, not {type(value).__name__}")
    return bool(value)


@dataclass(slots=True)
class Draft:
    """A call whose arguments are checked: memory and shape, before an algorithm is chosen.

    ``loads`` are filled from the buffers before each run, ``stores`` written to the buffers after it. ``agreed`` is the
    length of the vector in bytes if all ranks know it, else 0. ``obstacle`` says why only the MPI library can serve the
    call; it is equal on all ranks, since it follows from the datatype and op of a reduction.
    """

    collective: Collective
    shape: Shape
    source: int
    target: int
    agreed: int
    owners: Any
    commutes: bool = True
    obstacle: str | None = None
    unknown: str | None = None  # the op or the type that MPI does not know, and so cannot serve
    loads: list[Packed] = field(default_factory=list)
    stores: list[Packed] = field(default_factory=list)
    parts: str = ""  # the basic types of the data, for the comparison between ranks
    spare: Any = None  # memory that the call needs until it ends
    in_order: Callable[[], Draft] | None = None  # makes the call with all blocks side by side, if they may lie anywhere

    @property
    def nbytes(self) -> int:
        """Bytes of the vector as far as this rank knows."""
        return self.shape.nbytes

    def load(self) -> None:
        """Fill the temporaries from the buffers before a run."""
        for packed in self.loads:
            packed.load()

    def store(self) -> None:
        """Copy results from the temporaries to the buffers after a run."""
        for packed in self.stores:
            packed.store()


class Side:
    """One buffer of a call as a contiguous run of bytes: the buffer's own memory, or a temporary."""

    def __init__(self, buffer: Buffer):
        self.buffer = buffer
        self.address, self.packed = contiguous(buffer)

    @property
    def scattered(self) -> list[Packed]:
        """A list of the temporary, empty if there is none."""
        return [self.packed] if self.packed is not None else []


class RootError(MPI.Exception, ValueError):
    """The root is not a rank of the communicator; both MPI.Exception, as in mpi4py, and ValueError."""

    def __new__(cls, message: str) -> RootError:
        """An exception of class MPI.ERR_ROOT with ``message``."""
        made = super().__new__(cls, MPI.ERR_ROOT)
        made.message = message
        return made

    def __init__(self, message: str):
        super().__init__(MPI.ERR_ROOT)

    message: str

    def __str__(self) -> str:
        return self.message


def checked_root(root: Any, size: int) -> int:
    """The root as an int; TypeError if it is no integer, RootError if it is not in ``range(size)``."""
    try:
        root = operator.index(root)
    except TypeError:
        raise TypeError(f"root: expected a rank, not {type(root).__name__}") from None
    if not 0 <= root < size:
        raise RootError(f"root: {root} is not a rank of a communicator of {size}")
    return root
