"""The compiled core: the boundary to C, and the fast path of calls."""
