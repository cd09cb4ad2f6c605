"""The compiled core: the interface to the C code, and the fast path of calls."""
