"""Algorithms that are not schedules: registered here, executed by the communicator."""

from ..schedules.registry import register_native
from ..schedules.spec import SPECS

_HIERARCHICAL = "ranks of one node share memory, and one or more of each node exchange messages with the other nodes."

for _collective in SPECS:
    register_native(
        _collective, "shm", "ranks of one node share memory and exchange no messages.", ordered=True, linear=True
    )
    if _collective not in ("scan", "exscan"):
        # In these the lengths of others' blocks are private to the ranks, if blocks may differ.
        _uneven = _collective not in ("gather", "scatter", "alltoall")
        register_native(_collective, "hierarchical", _HIERARCHICAL, ordered=False, linear=False, uneven=_uneven)
    register_native(_collective, "mpi", f"the MPI library's own {_collective}.", ordered=True, linear=False)
