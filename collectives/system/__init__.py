"""The machine, the MPI library and the memory that processes share."""
