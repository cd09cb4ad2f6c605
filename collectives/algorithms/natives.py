"""Algorithms that are not schedules: declared here, run by the communicator."""

from ..registry import register_native

for _collective, _what in (("allreduce", "all-reduce"), ("barrier", "barrier")):
    register_native(
        _collective, "shm", "ranks of one node share memory and exchange no messages.", ordered=True, linear=True
    )
    register_native(_collective, "mpi", f"the MPI library's own {_what}.", ordered=True, linear=False)
