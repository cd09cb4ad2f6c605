"""Buffers on either side of a non-blocking call cannot be resized or closed before its wait; afterwards they can.

Calls with equal and unequal blocks and reductions, by this library's algorithms and by MPI's own. While one rank tries
to take its buffer away, the other one has not come.
"""

import itertools

import numpy as np
from arguments_held import BY_NUMPY, KINDS, RANK, SIZE, WORLD, is_held
from mpi4py import MPI

import collectives

BYTES = 64
#: Blocks on the side that is sent from, and on the other one, for each call.
CALLS = {
    "Iallgatherv": (1, SIZE), "Ialltoallv": (SIZE, SIZE), "Igatherv": (1, SIZE), "Iscatterv": (SIZE, 1),
    "Ireduce_scatter": (SIZE, 1), "Iallgather": (1, SIZE), "Ialltoall": (SIZE, SIZE), "Iallreduce": (1, 1),
    "Ireduce_scatter_block": (SIZE, 1), "Iscan": (1, 1), "Iexscan": (1, 1), "Ireduce": (1, 1),
}  # fmt: skip
OPTIONS = ({}, {"algorithm": "mpi"})


def begun(comm, name, buffer, side, options):
    """Begin a call with the buffer on one side, and an array on the other."""
    block = BYTES // CALLS[name][side]
    both = [np.zeros(block * blocks, np.uint8) for blocks in CALLS[name]]
    both[side] = buffer
    specs = [[memory, MPI.UINT8_T] for memory in both]
    if name.endswith("v"):
        specs = [
            [memory, [block] * SIZE, MPI.UINT8_T] if blocks == SIZE else [memory, block, MPI.UINT8_T]
            for memory, blocks in zip(both, CALLS[name], strict=True)
        ]
    counts = [[block] * SIZE] if name == "Ireduce_scatter" else []
    op = {"op": MPI.MAX} if "reduce" in name or "scan" in name else {}
    return getattr(comm, name)(*specs, *counts, **op, **options)


def is_used(name, side):
    """Whether the call reads or writes the buffer on this side of this rank."""
    rooted = (name.startswith("Iscatter") and side == 0) or (name in ("Igatherv", "Ireduce") and side == 1)
    return RANK == 0 or not rooted


def ended(request, tested):
    while tested and not request.Test():
        pass
    request.Wait()


def trial(comm, kind, name, side, options, late):
    """What is wrong: the buffer could be taken away from the rank that came, or could not be afterwards."""
    make, given, take = KINDS[kind]
    buffer = make()
    if RANK == late:
        WORLD.Barrier()
    request = begun(comm, name, given(buffer), side, options)
    held = not is_used(name, side) or is_held(buffer, take)
    if RANK != late:
        WORLD.Barrier()
    ended(request, late)
    del request
    comm.Barrier()
    wrong = [] if held else ["its memory was taken away"]
    return wrong if not is_held(buffer, take) else [*wrong, "it is still held"]


def main():
    comm = collectives.Communicator(WORLD)
    comm.timeout = 60
    trials, wrong = 0, []
    for kind, name, side, options in itertools.product(KINDS, CALLS, (0, 1), OPTIONS):
        if kind in BY_NUMPY and options and not ("reduce" in name or "scan" in name or name == "Iallgatherv"):
            continue  # NumPy counts no exports, and mpi4py keeps no array from being resized
        late = trials % 2
        found = trial(comm, kind, name, side, options, late)
        trials += 1
        wrong += [f"wrong: rank {RANK}: {kind}, {name}, side {side}, {options}: {words}" for words in found]
    print(*wrong[:40], f"attack: {trials} trials, {len(wrong)} wrong", sep="\n", flush=True)


if __name__ == "__main__":
    main()
