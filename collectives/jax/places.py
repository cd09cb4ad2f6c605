"""Communicators and ops as constants of compiled programs."""

from __future__ import annotations

import functools
import os
from typing import Any

from ..core import _core
from ..errors import CollectiveError

__all__ = ["Op", "Place", "op_of", "place_of"]

#: Variables in which launchers tell a process the number of ranks.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")
#: Ops that can be named, beside mpi4py's objects.
NAMES = ("sum", "prod", "min", "max", "land", "lor", "lxor", "band", "bor", "bxor", "avg")
LINEAR = ("sum", "avg", "reproducible_sum")


class Place:
    """A communicator as a constant of programs; equal to itself only, and alive as long as the process.

    ``comm`` is None in a process without MPI, which is the only rank.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.rank: int = 0 if comm is None else comm.rank
        self.size: int = 1 if comm is None else comm.size

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}>"

    def most_tag(self) -> int:
        """The largest tag of a message."""
        if self.comm is None:
            return 2**31 - 1
        from mpi4py import MPI

        return int(self.comm.Get_attr(MPI.TAG_UB))

    def set_up(self) -> None:
        """Set up the communicator's side of this library, unless that has been done; collective.

        If XLA's thread did so, when it runs the first call, the program's thread might do so at the same time.
        """
        if self.comm is not None:
            from ..communicator.internal import side_of

            side_of(self.ready())

    def ready(self) -> Any:
        """The communicator. CollectiveError if it has been freed, ValueError within a group of fused calls."""
        from mpi4py import MPI

        if self.comm == MPI.COMM_NULL:
            raise CollectiveError("the communicator has been freed")
        self.comm._refuse_in_group("a call of JAX")
        return self.comm


_places: dict[int, Place] = {}


@functools.cache
def _world() -> Place:
    """The place of the calls without ``comm``: a communicator of all ranks, which all of them make together."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:  # not installed; installed without an MPI library
        size = next((size for size in map(os.environ.get, SIZES) if size not in (None, "1")), None)
        if size is not None:
            raise ImportError(f"comm: this is one of {size} processes, but there is no mpi4py: {e}") from e
        return Place(None)
    from ..communicator import Communicator

    return Place(Communicator(MPI.COMM_WORLD))


def place_of(comm: Any) -> Place:
    """The place of a communicator; None: of all ranks. TypeError if it is not this library's, CollectiveError if it
    has been freed."""
    if comm is None:
        return _world()
    known = _places.get(id(comm))
    if known is None:
        from ..communicator import Communicator

        if not isinstance(comm, Communicator):
            raise TypeError(f"comm: expected a collectives.Communicator, not {type(comm).__name__}")
        _refuse_null(comm)
        known = _places[id(comm)] = Place(comm)
    _refuse_null(comm)
    return known


def _refuse_null(comm: Any) -> None:
    from mpi4py import MPI

    if comm == MPI.COMM_NULL:
        raise CollectiveError("comm: the communicator has been freed, or is null")


class Op:
    """An op as a constant of programs; equal to itself only.

    ``code`` is the kernels' code, None for a user-defined op. ``given`` is what mpi4py's methods take, None without
    MPI.
    """

    def __init__(self, name: str, code: int | None, given: Any) -> None:
        self.name, self.code, self.given = name, code, given

    def __repr__(self) -> str:
        return self.name

    @property
    def linear(self) -> bool:
        """Whether a reduction by this op has a gradient here."""
        return self.name in LINEAR


_ops: dict[Any, Op] = {}


def op_of(op: Any) -> Op:
    """The constant for an op: mpi4py's, one of this library's, or a name. TypeError or ValueError for anything else."""
    if isinstance(op, str):
        if op not in NAMES:
            raise ValueError(f"op: {op!r} is not one of {', '.join(NAMES)}")
        return _named(op)
    try:
        from ..arguments.buffers import op_code
    except (ImportError, RuntimeError) as e:
        raise TypeError(f"op: without mpi4py an op is a name such as 'sum', not {op!r}") from e
    code = op_code(op)
    if code is not None:
        return _named(_core.OPS[code], op)
    return _ops.setdefault(id(op), Op("user-defined", None, op))


def _named(name: str, given: Any = None) -> Op:
    if name not in _ops:
        _ops[name] = Op(name, _core.OPS.index(name), given if given is not None else _object(name))
    return _ops[name]


def _object(name: str) -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    import collectives

    return collectives.AVG if name == "avg" else getattr(MPI, name.upper())
