"""Arrays and streams at the edge of what is served: empty arrays, other GPUs, threads, managed memory, forks."""

import atexit
import ctypes
import gc
import os
import signal

import numpy as np
import stand_in
from mpi4py import MPI
from stand_in import EVENTS, OPENED, PINNED, STREAMS, Array, ByDLPack, driver, use_kernels

import collectives
from collectives.communicator import device_peers

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
MANAGED = 13
OF_THREAD = 2  # the handle of the default stream of each thread


class Changing(Array):
    """An array whose library works now on one stream, now on another; made on the first."""

    def now_on(self, stream):
        self.stream = stream
        return self


class Managed(ByDLPack):
    """Memory that the processor reads too, once the GPU has written it."""

    def __dlpack_device__(self):
        return MANAGED, 0

    def __dlpack__(self, **how):
        capsule = super().__dlpack__(**how)
        self._tensor.device[0] = MANAGED
        return capsule


def on_second(name, *arguments):
    """Call a function of the driver's with the second GPU's context."""
    context = ctypes.c_void_p()
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1)
    driver("cuCtxPushCurrent_v2", context)
    driver(name, *arguments)
    driver("cuCtxPopCurrent_v2", ctypes.byref(context))
    driver("cuDevicePrimaryCtxRelease_v2", 1)


def expect(what, array, right):
    """1 if the values of an array are wrong, else 0."""
    found = array.get()
    if np.array_equal(found, np.broadcast_to(right, found.shape)):
        return 0
    print("wrong:", what, found[:5], flush=True)
    return 1


def empty(comm, stream):
    """Arrays without elements, in the order of a stream of another GPU, and arrays that do not matter."""
    foreign, wrong = ctypes.c_size_t(), 0
    on_second("cuStreamCreate", ctypes.byref(foreign), 1)
    nothing, one, both = Array(np.zeros(0), stream), Array(np.ones(1), stream), Array(np.zeros(SIZE), stream)
    nothing.stream = foreign.value
    counts = [1] * (SIZE - 1) + [0]
    mine = nothing if SIZE - 1 == RANK else one
    comm.Gatherv(mine, [both, counts] if RANK == 0 else None)
    comm.Allreduce(nothing, nothing)
    comm.Allreduce(np.zeros(0), nothing, stream=foreign.value)
    if RANK == 0:
        wrong += expect("gatherv", both, [*counts[:-1], 0])
    elsewhere = ctypes.c_size_t()
    on_second("cuMemAlloc_v2", ctypes.byref(elsewhere), ctypes.c_size_t(64))
    ignored = Array(np.zeros(2), stream)
    ignored.free()
    ignored.address = elsewhere.value
    both.fill(np.arange(SIZE))
    comm.Scatter(both if RANK == 0 else ignored, one)
    wrong += expect("scatter", one, RANK)
    on_second("cuMemFree_v2", elsewhere)
    on_second("cuStreamDestroy_v2", foreign)
    for array in (nothing, one, both):
        array.free()
    return wrong


def threads(comm, n):
    """Each thread has a default stream of its own: the one that makes a non-blocking call is another's."""
    x, y, wrong = Array(np.zeros(n), OF_THREAD), Array(np.zeros(n), OF_THREAD), 0
    for i in range(20):
        x.fill(i + RANK)
        y.fill(-1.0)
        comm.Iallreduce(x, y).Wait()
        wrong += expect("the thread's stream", y, i * SIZE + SIZE * (SIZE - 1) / 2)
    x.free()
    y.free()
    return wrong


def changing(comm, n, first, second):
    """A persistent call follows the stream on which the array's library works when it is started."""
    x, y, wrong = Changing(np.zeros(n), first), Changing(np.zeros(n), first), 0
    call = comm.Allreduce_init(x, y)
    for i in range(20):
        for array in (x, y):
            array.now_on((first, second)[i % 2])
        x.fill(i + RANK)
        y.fill(-1.0)
        call.Start()
        call.Wait()
        wrong += expect("another stream", y, i * SIZE + SIZE * (SIZE - 1) / 2)
        driver("cuCtxSynchronize")
    call.Free()
    x.free()
    y.free()
    return wrong


def managed(comm, n, stream):
    """Managed memory is read in the order of its stream, although the processor could read it at once."""
    x, y, wrong = Managed(np.zeros(n), stream), np.zeros(n), 0
    for i in range(10):
        x.fill(i + RANK)
        comm.Allreduce(x, y)
        wrong += not (y == i * SIZE + SIZE * (SIZE - 1) / 2).all()
    x.free()
    return wrong


def captured(comm, n, stream):
    """A stream that is being captured in a graph is refused, before anything is sent."""
    x, y, wrong = Array(np.ones(n), stream), Array(np.zeros(n), stream), 0
    driver("stand_in_capture", ctypes.c_size_t(stream), 1)
    for call in (comm.Allreduce, comm.Iallreduce, comm.Bcast):
        try:
            call(*(x, y)[: 1 if call == comm.Bcast else 2])
        except RuntimeError as e:
            wrong += "captured in a CUDA graph" not in str(e)
        else:
            wrong += 1
    driver("stand_in_capture", ctypes.c_size_t(stream), 0)
    comm.Allreduce(x, y)
    wrong += expect("after the capture", y, SIZE)
    x.free()
    y.free()
    return wrong


def dropped(n, stream):
    """A communicator that is deleted without Free keeps no memory of other ranks open."""
    comm, x = collectives.Communicator(WORLD), Array(np.ones(n), stream)
    comm.Allreduce(MPI.IN_PLACE, x)
    assert comm.last.algorithm == "peers"
    opened, events, kept = driver.count(OPENED), driver.count(EVENTS), comm._context.gpu
    del comm
    gc.collect()
    collectives.Communicator(WORLD).Free()
    x.free()
    wrong = (opened - driver.count(OPENED) != SIZE - 1) + (events - driver.count(EVENTS) != 3 * (SIZE - 1))
    WORLD.Barrier()
    kept.free()  # events that other ranks have closed, which are kept to the end otherwise
    return wrong


def forked(comm, stream):
    """A child of this process refuses calls. At its end it asks nothing of the driver, which it cannot use."""
    x = Array(np.ones(4), stream)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        code = 1
        try:
            comm.Allreduce(MPI.IN_PLACE, x)
        except collectives.CollectiveError as e:
            code = 0 if "forked" in str(e) else 2
        atexit.unregister(driver)
        atexit.unregister(stand_in._report)
        before = driver.count(STREAMS), driver.count(PINNED)
        atexit._run_exitfuncs()
        os._exit(code if (driver.count(STREAMS), driver.count(PINNED)) == before else 3)
    status = os.waitpid(child, 0)[1]
    x.free()
    return status


def main():
    use_kernels()
    device_peers.LEAST = 1 << 14
    comm = collectives.Communicator(WORLD)
    driver.late(2000)
    stream, other = driver.stream(1), driver.stream(1)
    print(f"empty: {empty(comm, stream)} wrong", flush=True)
    for n in (300, 5000):
        print(f"threads: {threads(comm, n)} wrong", flush=True)
        print(f"changing: {changing(comm, n, stream, other)} wrong", flush=True)
        print(f"managed: {managed(comm, n, stream)} wrong", flush=True)
        print(f"captured: {captured(comm, n, stream)} wrong", flush=True)
    print(f"dropped: {dropped(5000, stream)} wrong", flush=True)
    print(f"forked: {forked(comm, stream)} wrong", flush=True)
    comm.Free()


main()
