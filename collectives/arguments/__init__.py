"""mpi4py's arguments as memory and shape: types, buffers, and the table of all collectives."""
