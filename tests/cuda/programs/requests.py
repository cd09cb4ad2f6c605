"""Non-blocking and persistent calls on arrays of the stand-in's device, by peers and through the host; errors."""

import numpy as np
from mpi4py import MPI
from stand_in import Array, ByDLPack, driver, use_kernels

import collectives
from collectives.communicator import device_peers

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
TOTAL = SIZE * (SIZE - 1) / 2


def expect(what, array, right):
    """1 if the values of an array are wrong, else 0."""
    found = array.get()
    if np.array_equal(found, np.broadcast_to(right, found.shape)):
        return 0
    print("wrong:", what, found[:5], flush=True)
    return 1


def started(comm, n, stream):
    """Every non-blocking method, all under way at once; the number of wrong results."""
    make = lambda count, value: Array(np.full(count, float(value)), stream)  # noqa: E731
    one, block = [make(n, RANK) for _ in range(9)], [make(n * SIZE, RANK) for _ in range(3)]
    into, whole = [make(n, -1) for _ in range(7)], [make(n * SIZE, -1) for _ in range(3)]
    requests = [
        comm.Iallreduce(one[0], into[0]), comm.Ibcast(one[1], root=1), comm.Ireduce(one[2], into[1], root=0),
        comm.Iallgather(one[3], whole[0]), comm.Igather(one[4], whole[1], root=0), comm.Iscatter(block[0], into[2]),
        comm.Ialltoall(block[1], whole[2]), comm.Ireduce_scatter_block(block[2], into[3]), comm.Iscan(one[5], into[4]),
        comm.Iexscan(one[6], into[5]), comm.Iallreduce(MPI.IN_PLACE, one[7]),
    ]  # fmt: skip
    assert comm.last.collective == "allreduce"
    host = np.zeros(SIZE)
    comm.Allgather(np.array([float(RANK)]), host)  # a blocking call on the host, between
    one[8].fill(5.0)
    comm.Allreduce(MPI.IN_PLACE, one[8])  # another on the device, while the thread makes the others
    MPI.Request.Waitall(requests[:4])
    for request in requests[4:8]:
        assert request.Wait() is True
    while not all(request.Test() for request in requests[8:]):
        pass
    ranks = np.repeat(np.arange(SIZE, dtype=float), n)
    wrong = expect("iallreduce", into[0], TOTAL) + expect("ibcast", one[1], 1) + expect("iallgather", whole[0], ranks)
    wrong += expect("ireduce", into[1], -1 if RANK else TOTAL) + expect("iscatter", into[2], 0)
    wrong += expect("igather", whole[1], -1 if RANK else ranks) + expect("ialltoall", whole[2], ranks)
    wrong += expect("ireduce_scatter_block", into[3], TOTAL) + expect("iscan", into[4], RANK * (RANK + 1) / 2)
    wrong += expect("iexscan", into[5], RANK * (RANK - 1) / 2 if RANK else -1) + expect("in place", one[7], TOTAL)
    wrong += expect("blocking", one[8], 5 * SIZE) + (not np.array_equal(host, np.arange(SIZE)))
    for array in (*one, *block, *into, *whole):
        array.free()
    return wrong


def lasting(comm, n, stream):
    """A persistent all-reduce and broadcast, started several times; the number of wrong results."""
    x, y = Array(np.zeros(n), stream), ByDLPack(np.zeros(n), stream)
    sums, copies = comm.Allreduce_init(x, y), comm.Bcast_init(x, root=SIZE - 1)
    wrong = 0
    for i in range(4):
        x.fill(RANK + i)
        sums.Start()
        sums.Wait()
        wrong += expect("persistent", y, SIZE * i + TOTAL)
        type(copies).Startall([copies])
        MPI.Request.Waitall([copies])
        wrong += expect("persistent bcast", x, SIZE - 1 + i)
    sums.Start()
    try:
        sums.Start()
    except ValueError as e:
        wrong += "under way already" not in str(e)
    else:
        wrong += 1
    sums.Free()
    copies.Free()
    x.free()
    y.free()
    return wrong


def failing(comm, n, stream):
    """The device fails on all ranks before anything was sent: the error comes from the wait; the next call works."""
    x, y, wrong = Array(np.ones(n), stream), Array(np.zeros(n), stream), 0
    for wait, kind in ((lambda request: request.Wait(), MemoryError), (MPI.Request.Wait, MPI.Exception)):
        driver.fail("cuMemcpyDtoHAsync", 1, 2)
        request = comm.Iallreduce(x, y)
        try:
            wait(request)
        except kind as e:
            wrong += kind is MemoryError and "cuMemcpyDtoHAsync" not in str(e)
        else:
            wrong += 1
        comm.Iallreduce(x, y).wait()
        wrong += expect("after the error", y, SIZE)
    x.free()
    y.free()
    return wrong


def main():
    use_kernels()
    device_peers.LEAST = 1 << 14
    comm = collectives.Communicator(WORLD)
    driver.late(200)
    stream = driver.stream(1)
    wrong = started(comm, 500, stream) + started(comm, 5000, stream)
    print(f"started: {wrong} wrong", flush=True)
    print(f"persistent: {lasting(comm, 300, stream) + lasting(comm, 5000, stream)} wrong", flush=True)
    print(f"failing: {failing(comm, 300, stream)} wrong", flush=True)
    comm.Free()


main()
