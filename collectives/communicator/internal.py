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
from .blocking import DEFAULTS, Seen
from .communicator import Communicator

__all__ = ["adopt", "adopt_rules", "drafted", "run", "side_of", "start"]


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


def drafted(name: str, shape: Shape, source: int, target: int, owners: Any) -> Draft:
    """A call on memory at two addresses, which ``owners`` keep; for :func:`run` and :func:`start`."""
    collective = COLLECTIVES[name]
    return Draft(collective, shape, source, target, shape.nbytes if collective.agreed else 0, owners)


def run(comm: Communicator, draft: Draft, timeout: float | None = None, seen: Seen | None = None) -> None:
    """A blocking call; ``seen`` is what the fast path made of it, if it understands calls like it."""
    comm._run_draft(draft, DEFAULTS if timeout is None else Options(timeout=timeout), seen)


def start(comm: Communicator, draft: Draft, then: Callable[[], None], seen: Seen | None = None) -> _core.Operation:
    """A call that goes on by itself; ``then`` runs at its end, in whichever thread that is."""
    return comm._start_draft(draft, then, seen)
