"""Algorithms that are not schedules: declared here, run by the communicator."""

from ..registry import register_native

register_native("allreduce", "mpi", "The MPI library's own all-reduce.", ordered=True, linear=False)
register_native("barrier", "mpi", "The MPI library's own barrier.", ordered=True, linear=True)
