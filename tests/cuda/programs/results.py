"""Every collective on arrays of the stand-in's device: types, lengths, in place, one side on the host, in pieces."""

import types

import ml_dtypes
import numpy as np
from mpi4py import MPI
from stand_in import PAGEABLE, Array, ByDLPack, WithoutStream, driver

import collectives
from collectives.cuda import lanes, staging

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
WHOLE = ("Allreduce", "Reduce", "Bcast", "Scan", "Exscan")
MANY_IN = ("Scatter", "Alltoall", "Reduce_scatter_block")
MANY_OUT = ("Gather", "Allgather", "Alltoall")
REDUCING = ("Allreduce", "Reduce", "Reduce_scatter_block", "Scan", "Exscan")
ROOT = SIZE - 1


def inputs(name, n, dtype):
    """The inputs of all ranks, small integers."""
    length = n * SIZE if name in MANY_IN else n
    return [(np.arange(length) % 5 + r).astype(dtype) for r in range(SIZE)]


def expected(name, given, n):
    """What this rank must have in its result; None: nothing."""
    if name == "Allreduce":
        return sum(given)
    if name == "Reduce":
        return sum(given) if RANK == ROOT else None
    if name == "Bcast":
        return given[ROOT]
    if name == "Scan":
        return sum(given[: RANK + 1])
    if name == "Exscan":
        return sum(given[:RANK]) if RANK else None
    if name == "Reduce_scatter_block":
        return sum(given)[RANK * n : (RANK + 1) * n]
    if name == "Allgather":
        return np.concatenate(given)
    if name == "Gather":
        return np.concatenate(given) if RANK == ROOT else None
    if name == "Scatter":
        return given[ROOT][RANK * n : (RANK + 1) * n]
    return np.concatenate([one[RANK * n : (RANK + 1) * n] for one in given])


def call(comm, name, send, recv):
    """Make a call, whose copies must all be to pinned memory."""
    before = driver.count(PAGEABLE)
    more = {"root": ROOT} if name in ("Reduce", "Gather", "Scatter", "Bcast") else {}
    if name == "Bcast":
        comm.Bcast(recv, **more)
    else:
        getattr(comm, name)(send, recv, **more)
    assert driver.count(PAGEABLE) == before
    assert comm.last.collective == name.lower()


def trial(comm, name, n, dtype, make_send, make_recv, in_place):
    """One call; whether its result is right."""
    given = inputs(name, n, dtype)
    mine, out = given[RANK], np.zeros(n * SIZE if name in MANY_OUT else n, dtype)
    right = expected(name, given, n)
    send, recv = make_send(mine), make_recv(out)
    if name == "Bcast":
        if RANK == ROOT:
            fill(recv, mine)
        call(comm, name, None, recv)
    elif in_place:
        recv = place(comm, name, n, mine, out, recv, make_recv)
    else:
        call(comm, name, send, recv)
    found = values(recv)
    ok = right is None or np.array_equal(found[: len(right)], right.astype(dtype))
    if name == "Exscan" and RANK == 0 and not in_place:
        ok = not found.any()
    for array in (send, recv):
        if hasattr(array, "free"):
            array.free()
    return ok


def place(comm, name, n, mine, out, recv, make):
    """A call in place; returns the array with the result."""
    rooted = name in ("Reduce", "Gather")
    if rooted and RANK != ROOT:
        send = make(mine)
        call(comm, name, send, recv)
        if hasattr(send, "free"):
            send.free()
        return recv
    if name in ("Allreduce", "Scan", "Exscan", "Reduce"):
        fill(recv, mine)
    elif name in ("Allgather", "Gather"):
        out[RANK * n : (RANK + 1) * n] = mine
        fill(recv, out)
    else:
        if hasattr(recv, "free"):
            recv.free()
        recv = make(mine)
    call(comm, name, MPI.IN_PLACE, recv)
    return recv


def fill(array, with_values):
    if isinstance(array, np.ndarray):
        array[...] = with_values
    else:
        array.fill(with_values)


def values(array):
    return array if isinstance(array, np.ndarray) else array.get()


def vectors(comm, stream):
    """The vector forms, whose blocks differ, and lists with a count and a datatype."""
    counts = [r + 1 for r in range(SIZE)]
    cuts = np.cumsum([0, *counts])
    all_of_them = np.repeat(np.arange(SIZE, dtype=float), counts)
    send, recv = Array(np.full(RANK + 1, float(RANK)), stream), Array(np.zeros(sum(counts)), stream)
    comm.Allgatherv(send, [recv, counts])
    good = np.array_equal(recv.get(), all_of_them)
    comm.Reduce_scatter(recv, send, counts)
    good &= np.array_equal(send.get(), SIZE * all_of_them[cuts[RANK] : cuts[RANK + 1]])
    comm.Allreduce([recv, 1, sum(counts) - 1, MPI.DOUBLE], [send, 1, MPI.DOUBLE])
    good &= send.get()[0] == SIZE * (SIZE - 1)
    for array in (send, recv):
        array.free()
    return good


def streams(comm, own):
    """The stream of a call as a number, and as other libraries' objects have it; the arrays do not tell theirs."""
    ctypes_like = types.SimpleNamespace(value=own)
    given = [
        own, types.SimpleNamespace(cuda_stream=own), types.SimpleNamespace(ptr=own),
        types.SimpleNamespace(handle=ctypes_like), types.SimpleNamespace(__cuda_stream__=lambda: (0, own)),
    ]  # fmt: skip
    good = True
    send, recv = WithoutStream(np.zeros(5000), own), WithoutStream(np.zeros(5000), own)
    for i, stream in enumerate(given):
        send.fill(i)
        comm.Allreduce(send, recv, stream=stream)
        good &= bool((recv.get() == SIZE * i).all())
    send.free()
    recv.free()
    return good


def main():
    comm = collectives.Communicator(WORLD)
    lanes.SLOT = staging.SLOT = 1 << 14
    driver.late(50)
    own = driver.stream(1)  # like those of torch and CuPy: it does not wait for the default stream
    makers = {
        "host": lambda x: x.copy(), "device": lambda x: Array(x, own), "default": Array,
        "dlpack": lambda x: ByDLPack(x, own), "unknown": WithoutStream,
    }  # fmt: skip
    cases = [
        (n, dtype, send, recv, in_place)
        for n, dtype in ((0, "f8"), (1, "f4"), (5000, "c16"), (30001, "f2"), (70001, "u1"))
        for send, recv, in_place in (
            ("device", "device", False), ("default", "dlpack", False), ("host", "device", False),
            ("unknown", "host", False), ("device", "device", True), ("dlpack", "unknown", True),
        )
    ]  # fmt: skip
    cases.append((9001, ml_dtypes.bfloat16, "dlpack", "dlpack", False))
    done = wrong = 0
    for name in (*WHOLE, *MANY_IN, "Gather", "Allgather"):
        for n, dtype, send, recv, in_place in cases:
            if in_place and name in ("Scatter", "Bcast"):
                continue
            if (send, recv) == ("unknown", "host") and name == "Bcast":
                continue
            ok = trial(comm, name, n, np.dtype(dtype), makers[send], makers[recv], in_place)
            done += 1
            wrong += not ok
            if not ok:
                print("wrong:", name, n, dtype, send, recv, in_place, flush=True)
    wrong += not vectors(comm, own)
    wrong += not streams(comm, own)
    print(f"{done + 2} calls, {wrong} wrong", flush=True)
    comm.Free()


main()
