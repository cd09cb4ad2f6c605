"""Threads, handlers of signals and finalizers, on one communicator at the same time."""


def test_every_wait_is_told_by_its_own_call_and_line(attack, mpi):
    attack(mpi, 2, "threads_waits")


def test_callbacks_of_torch_have_one_server(attack):
    attack("torch", 1, "threads_callbacks")
