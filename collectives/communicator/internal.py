"""The complete interface of a communicator for this library's packages above it, beside the public methods."""

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

__all__ = ["adopt", "adopt_rules", "drafted", "run", "run_on_gpu", "side_of", "start"]


def side_of(comm: Communicator) -> MPIContext:
    """The library's side of ``comm``; its set-up, at the first call, is collective."""
    return comm._enter()


def adopt(plain: MPI.Intracomm) -> Communicator:
    """Make a :class:`Communicator` of ``plain`` itself, to which there must be no other handle; collective."""
    made: Communicator = Communicator._adopt(plain, alone=True)
    return made


def adopt_rules(comm: Communicator, rules: Rules) -> None:
    """Choose algorithms by ``rules`` from now on. All ranks call this together, while no call is under way."""
    comm._adopt_rules(rules)


def drafted(name: str, shape: Shape, source: int, target: int, owners: Any) -> Draft:
    """A call on memory at two addresses, which ``owners`` keep alive; for :func:`run` and :func:`start`."""
    collective = COLLECTIVES[name]
    return Draft(collective, shape, source, target, shape.nbytes if collective.agreed else 0, owners)


def run(comm: Communicator, draft: Draft, timeout: float | None = None, seen: Seen | None = None) -> None:
    """Run a blocking call; ``timeout`` is in seconds, ``seen`` what the fast path parsed of the call, if it could."""
    comm._run_draft(draft, DEFAULTS if timeout is None else Options(timeout=timeout), seen)


def run_on_gpu(comm: Communicator, draft: Draft, number: int, stream: int, timeout: float | None = None) -> None:
    """Run a blocking call on memory of the GPU ``number``, in the order of its ``stream``, a CUDA handle."""
    from . import device_calls  # nothing for GPUs is loaded before the first array on one

    device_calls.run_draft(comm, draft, number, stream, timeout)


def start(comm: Communicator, draft: Draft, then: Callable[[], None], seen: Seen | None = None) -> _core.Operation:
    """Start a non-blocking call; ``then`` is called when the call has ended, in any thread."""
    return comm._start_draft(draft, then, seen)
