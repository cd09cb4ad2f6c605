"""What this library's own parts above the communicator ask of it beyond what users do: all of it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..arguments.calls import COLLECTIVES, Draft, Options
from ..arguments.shape import Shape
from ..core import _core
from ..runtime.mpi_context import MPIContext
from ..selection.policy import Rules
from .blocking import DEFAULTS
from .communicator import Communicator

__all__ = ["adopt", "adopt_rules", "run", "side_of", "start"]


def side_of(comm: Communicator) -> MPIContext:
    """The library's side of a communicator; set up, by all ranks together, where there is none yet."""
    return comm._enter()


def adopt(plain: MPI.Intracomm) -> Communicator:
    """An MPI communicator that nobody else has a handle to, as one of ours."""
    made: Communicator = Communicator._adopt(plain, alone=True)
    return made


def adopt_rules(comm: Communicator, rules: Rules) -> None:
    """Choose by other rules from now on; on all ranks together, while no call is under way."""
    comm._adopt_rules(rules)


def _drafted(name: str, shape: Shape, source: int, target: int, owners: Any) -> Draft:
    collective = COLLECTIVES[name]
    agreed = shape.elements * shape.itemsize if collective.agreed else 0
    return Draft(collective, shape, source, target, agreed, owners)


def run(
    comm: Communicator,
    name: str,
    shape: Shape,
    source: int,
    target: int,
    owners: Any,
    timeout: float | None = None,
    seen: Any = None,
) -> None:
    """A blocking call on memory at two addresses."""
    options = DEFAULTS if timeout is None else Options(timeout=timeout)
    comm._run_draft(COLLECTIVES[name], _drafted(name, shape, source, target, owners), options, seen)


def start(
    comm: Communicator,
    name: str,
    shape: Shape,
    source: int,
    target: int,
    owners: Any,
    then: Callable[[], None],
    seen: Any = None,
) -> _core.Operation:
    """A call that goes on by itself; ``then`` runs at its end, in whichever thread that is."""
    return comm._start_draft(COLLECTIVES[name], _drafted(name, shape, source, target, owners), DEFAULTS, then, seen)
