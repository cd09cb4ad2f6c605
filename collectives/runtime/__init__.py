"""The library's side of a communicator: how it is made, its plans, and a run of them."""
