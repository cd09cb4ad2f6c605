"""The library's side of a communicator: how it is made, its plans, and the execution of calls."""
