"""Algorithms that are not schedules: registered here, executed by the communicator."""

from ..schedules.registry import register_native
from ..schedules.spec import SPECS

for _collective in SPECS:
    register_native(
        _collective, "shm", "ranks of one node share memory and exchange no messages.", ordered=True, linear=True
    )
    register_native(_collective, "mpi", f"the MPI library's own {_collective}.", ordered=True, linear=False)
