"""Ranks read each other's memory on the stand-in's device: results with the bits of the host's engine, fallbacks."""

import ml_dtypes
import numpy as np
from mpi4py import MPI
from stand_in import LAUNCHES, OPENED, Array, ByDLPack, WithoutStream, driver, use_kernels

import collectives
from collectives.communicator import device_peers
from collectives.cuda import opened

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
ROOT = SIZE - 1
DTYPES = ("f4", "f8", "f2", ml_dtypes.bfloat16, "i1", "u2", "i8", "c8", "c16", "?")
OPS = {"f": ("SUM", "PROD", "MIN", "MAX"), "c": ("SUM", "PROD"), "i": ("SUM", "BXOR", "MAX"), "u": ("SUM", "BAND"),
       "b": ("LOR",)}  # fmt: skip


class Inner(Array):
    """An array that lies within an allocation, not at its begin."""

    def __init__(self, values, stream):
        values = np.asarray(values)
        self.whole = Array(np.zeros(values.size + 40, values.dtype), stream)
        self.shape, self.dtype, self.nbytes, self.stream = values.shape, values.dtype, values.nbytes, stream
        self.address = self.whole.address + 24 * values.dtype.itemsize
        self.fill(values)

    def free(self):
        self.whole.free()


def by_host(name, values, target, more, in_place):
    """The result of a call on arrays of the host."""
    found = target.copy()
    if name == "Bcast":
        found[...] = values
        COMM.Bcast(found, **more)
    elif in_place:
        found = place_own(name, values, target).copy()
        getattr(COMM, name)(MPI.IN_PLACE, found, **more)
    else:
        getattr(COMM, name)(values, found, **more)
    return found


def place_own(name, values, target):
    """The result's array with this rank's input in its place."""
    if name != "Allgather":
        return values
    target = target.copy()
    target[RANK * values.size : (RANK + 1) * values.size] = values
    return target


def by_peers(name, values, target, more, make, in_place):
    """The result of a call on arrays of the device, by another name of algorithm: "peers"."""
    if name == "Bcast" or in_place:
        send, recv = None, make(place_own(name, values, target))
    else:
        send, recv = make(values), make(target)
    if name == "Bcast":
        COMM.Bcast(recv, **more)
    else:
        getattr(COMM, name)(MPI.IN_PLACE if in_place else send, recv, **more)
    found = recv.get()
    by = COMM.last.algorithm
    for array in (send, recv):
        if array is not None:
            array.free()
    return found, by


def trial(name, n, dtype, op, make, in_place, by="peers"):
    """Whether a call has the bits that the host's engine gives."""
    generator = np.random.default_rng([RANK, n])
    whole = name in ("Allreduce", "Bcast")
    blocks_in = 1 if whole or name == "Allgather" else SIZE
    blocks_out = 1 if whole or name.startswith("Reduce_scatter") else SIZE
    values = (generator.standard_normal(n * blocks_in) * 3).astype(dtype)
    target = np.zeros(n * blocks_out, dtype)
    more = {"root": ROOT} if name == "Bcast" else {"op": getattr(MPI, op)} if op else {}
    right = by_host(name, values, target, more, in_place)
    found, how = by_peers(name, values, target, more, make, in_place)
    if found.tobytes()[: target.nbytes] == right.tobytes()[: target.nbytes] and how == by:
        return 0
    print("wrong:", name, n, dtype, op, make, in_place, how, flush=True)
    return 1


def results(stream):
    """Every collective, type and op; the number of calls and of wrong ones."""
    makers = [lambda x: Array(x, stream), lambda x: Inner(x, stream), Array, lambda x: ByDLPack(x, stream),
              WithoutStream]  # fmt: skip
    done = wrong = 0
    for name in ("Allreduce", "Bcast", "Allgather", "Alltoall", "Reduce_scatter_block"):
        for i, dtype in enumerate(map(np.dtype, DTYPES)):
            reduces = name in ("Allreduce", "Reduce_scatter_block")
            kind = "f" if dtype.name == "bfloat16" else dtype.kind
            for op in OPS[kind] if reduces else [None]:
                in_place = name in ("Allreduce", "Allgather") and i % 2 == 1
                wrong += trial(name, (3001, 4096)[i % 2], dtype, op, makers[i % 5], in_place)
                done += 1
    return done, wrong


def uneven(stream):
    """The vector forms, with blocks of different lengths, one of them empty; the number of wrong ones."""
    counts = [1000 * r for r in range(SIZE)]
    whole = np.repeat(np.arange(SIZE, dtype="f4"), counts)
    send, recv = Array(np.full(max(1, counts[RANK]), RANK, "f4"), stream), Array(np.zeros(whole.size, "f4"), stream)
    COMM.Allgatherv([send, counts[RANK], MPI.FLOAT], [recv, counts])
    wrong = not np.array_equal(recv.get(), whole) or COMM.last.algorithm != "peers"
    COMM.Reduce_scatter(recv, [send, counts[RANK], MPI.FLOAT], counts)
    wrong += not (send.get()[: counts[RANK]] == SIZE * RANK).all() or COMM.last.algorithm != "peers"
    send.free()
    recv.free()
    return wrong


def fallbacks(stream):
    """Calls that one rank cannot make by peers, which all then make through the host; the number of wrong ones."""
    make = lambda x: Array(x, stream)  # noqa: E731
    wrong = trial("Allreduce", 2000, "f8", "SUM", make, False)
    for symbol in ("cuIpcGetMemHandle", "cuIpcOpenMemHandle", "cuMemGetAddressRange"):
        if RANK == SIZE - 1:
            driver.fail(symbol, 1, 2 if symbol.startswith("cuIpcO") else 801)
        wrong += trial("Allreduce", 3000, "f8", "SUM", make, False, "shm")
        wrong += trial("Allreduce", 3000, "f8", "SUM", make, False)
    wrong += trial("Reduce_scatter_block", 3000, "f8", "SUM", make, True, "shm")
    wrong += trial("Alltoall", 3000, "f8", None, make, True, "shm")
    given, recv = np.full(3000, 1.0), Array(np.zeros(3000), stream)
    send = given if RANK == 0 else Array(given, stream)  # on one rank, one of the two is on the host
    COMM.Allreduce(send, recv)
    wrong += not (recv.get() == SIZE).all() or COMM.last.algorithm != "shm"
    for array in (send, recv)[RANK == 0 :]:
        array.free()
    return wrong


def caches(stream):
    """Memory that is freed and allocated again at the same address, and more allocations than stay open."""
    comm, wrong, places = collectives.Communicator(WORLD), 0, set()
    for i in range(6):
        array = Array(np.full(5000, float(RANK + i)), stream)
        places.add(array.address)
        comm.Allreduce(MPI.IN_PLACE, array)
        wrong += not (array.get() == SIZE * i + SIZE * (SIZE - 1) / 2).all() or comm.last.algorithm != "peers"
        array.free()
    wrong += len(places) != 1
    arrays = [Array(np.full(3000, float(RANK)), stream) for _ in range(7)]
    most = 0
    for array in arrays * 3:
        comm.Allreduce(MPI.IN_PLACE, array, MPI.MAX)
        wrong += not (array.get() == SIZE - 1).all() or comm.last.algorithm != "peers"
        most = max(most, driver.count(OPENED))
    wrong += not 0 < most <= opened.KEPT * SIZE
    for array in arrays:
        array.free()
    comm.Free()
    return wrong + (driver.count(OPENED) != 0)


def main():
    stream = driver.stream(1)
    driver.late(50)
    before = driver.count(LAUNCHES)
    done, wrong = results(stream)
    print(f"{done} calls, {wrong} wrong", flush=True)
    assert driver.count(LAUNCHES) - before > done / 3
    print(f"uneven: {uneven(stream)} wrong", flush=True)
    print(f"fallbacks: {fallbacks(stream)} wrong", flush=True)
    COMM.Free()
    print(f"caches: {caches(stream)} wrong", flush=True)


use_kernels()
device_peers.LEAST = 1024
opened.KEPT = 4
COMM = collectives.Communicator(WORLD)
main()
