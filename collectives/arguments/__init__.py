"""From mpi4py's arguments to memory and shape: types, buffers, and the one table of collectives."""
