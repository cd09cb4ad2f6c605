"""Buffers of calls under way cannot be resized or closed, in any form; afterwards they can."""

import array
import io
import itertools
import mmap
import threading
import time

import numpy as np
from mpi4py import MPI

import collectives

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size


def resize(array):
    array.resize(2 * array.size, refcheck=False)


#: A buffer of 64 bytes, what is handed over of it, and what would take its memory away.
KINDS = {
    "bytearray": (lambda: bytearray(64), lambda b: b, lambda b: b.extend(bytes(10_000))),
    "cleared": (lambda: bytearray(64), lambda b: b, bytearray.clear),
    "memoryview": (lambda: bytearray(64), memoryview, lambda b: b.extend(bytes(10_000))),
    "array.array": (lambda: array.array("d", bytes(64)), lambda b: b, lambda b: b.extend([1.0] * 1000)),
    "mmap": (lambda: mmap.mmap(-1, 64), lambda b: b, mmap.mmap.close),
    "ndarray": (lambda: np.zeros(64, np.uint8), lambda b: b, resize),
    "slice": (lambda: np.zeros(128, np.uint8), lambda b: b[32:96], resize),
    "of a bytearray": (lambda: bytearray(64), np.frombuffer, lambda b: b.extend(bytes(10_000))),
    "memmap": (lambda: mmap.mmap(-1, 64), lambda b: np.ndarray(64, np.uint8, b), mmap.mmap.close),
}
SPECS = {
    "alone": lambda m: m,
    "counted": lambda m: [m, memoryview(m).nbytes // memoryview(m).itemsize],
    "bytes": lambda m: [m, MPI.BYTE],
}
BY_NUMPY = ("ndarray", "slice", "memmap")
OPTIONS = ({}, {"algorithm": "shm"}, {"algorithm": "binomial"}, {"algorithm": "mpi"})


def is_held(buffer, take):
    """Whether the memory cannot be taken away."""
    try:
        take(buffer)
    except (BufferError, ValueError):
        return True
    return False


def starting(comm, spec, options, held):
    request = comm.Ibcast(spec, 0, **options)
    del spec
    was_held = held()
    request.Wait()
    return [was_held], request


def tested(comm, spec, options, held):
    request = comm.Ibcast(spec, 0, **options)
    del spec
    was_held = held()
    while not request.Test():
        pass
    return [was_held], request


def lasting(comm, spec, options, held):
    request = comm.Bcast_init(spec, 0, **options)
    del spec
    were_held = [held()]
    for _ in range(2):
        request.Start()
        were_held.append(held())
        request.Wait()
        were_held.append(held())
    request.Free()
    return were_held, request


def in_bcast():
    """Whether a thread of this process is in a broadcast."""
    collectives.dump(told := io.StringIO())
    return "bcast" in told.getvalue()


def blocking(comm, spec, options, held):
    """Another thread tries while this one waits for the root, which waits for that."""
    found = []

    def attempt():
        while not in_bcast():
            time.sleep(0.001)
        found.append(held())
        WORLD.send(None, 0)

    comm.Barrier()
    if RANK == 0:
        WORLD.recv()
        comm.Bcast(spec, 0, **options)
        return [True], None
    thread = threading.Thread(target=attempt)
    thread.start()
    comm.Bcast(spec, 0, **options)
    thread.join()
    return found, None


def by_mpi(comm, spec, options, held):
    """MPI's own wait, after which a call of this library is the first that can know of the end."""
    request = comm.Ibcast(spec, 0, **options)
    del spec
    was_held = held()
    MPI.Request.Waitall([request])
    return [was_held], request


def main():
    comm = collectives.Communicator(WORLD)
    trials = wrong = 0
    for (name, (make, given, take)), (how, spec), options, form in itertools.product(
        KINDS.items(), SPECS.items(), OPTIONS, (starting, tested, lasting, blocking, by_mpi)
    ):
        if name in BY_NUMPY and (form is blocking or options.get("algorithm") == "mpi"):
            continue  # NumPy counts no exports: neither mpi4py nor our blocking calls keep it from that
        buffer = make()
        held, request = form(comm, spec(given(buffer)), options, lambda b=buffer, t=take: is_held(b, t))  # noqa: B023
        if form is by_mpi or options.get("algorithm") == "mpi":  # mpi4py's persistent requests hold to the last
            del request
            comm.Barrier()
        end = time.monotonic() + (1 if form is by_mpi else 0)  # MPI is done with a request a moment after it says so
        while not (free := not is_held(buffer, take)) and time.monotonic() < end:
            time.sleep(0.001)
        trials += 1
        if not all(held) or not free:
            wrong += 1
            print("wrong:", RANK, name, how, options, form.__name__, held, free)
    WORLD.Barrier()
    print(f"attack: {trials} trials, {wrong} wrong")


if __name__ == "__main__":
    main()
