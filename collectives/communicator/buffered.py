"""The methods of a communicator that take buffers: mpi4py's parameters, and options of this library."""

from __future__ import annotations

from .methods import add_methods
from .nonblocking import Nonblocking

__all__ = ["Buffered"]


class Buffered(Nonblocking):
    """The upper-case methods of :class:`collectives.Communicator`, which derives from this class.

    ``buffered.pyi`` has their types; ``python tests/support/signatures.py`` writes it.
    """

    __module__ = __name__.rpartition(".")[0]  # the package from which users import the communicator


add_methods(Buffered)
