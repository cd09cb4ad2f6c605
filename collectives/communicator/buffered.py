"""The methods of a communicator that take buffers: mpi4py's parameters, and options of this library."""

from __future__ import annotations

from ..arguments.calls import COLLECTIVES, EXCHANGES
from .methods import add_methods
from .nonblocking import Nonblocking

__all__ = ["Buffered", "Neighbours"]


class Buffered(Nonblocking):
    """The upper-case methods of :class:`collectives.Communicator`, which derives from this class.

    ``buffered.pyi`` has their types; ``python tests/support/signatures.py`` writes it.
    """

    __module__ = __name__.rpartition(".")[0]  # the package from which users import the communicator


class Neighbours(Nonblocking):
    """The upper-case methods of neighbours, of communicators with a topology."""

    __module__ = __name__.rpartition(".")[0]


add_methods(Buffered, [*COLLECTIVES.values(), EXCHANGES["alltoallw"]])
add_methods(Neighbours, [c for c in EXCHANGES.values() if c.name != "alltoallw"])
