"""Leaves out each wait of a call by peers in turn: the stand-in's late streams must make the results wrong.

A wait is known by the function that asks for it, and in the case of events of other ranks by the round before it.
"""

import sys

import numpy as np
from mpi4py import MPI
from stand_in import Array, driver, use_kernels

import collectives
from collectives.communicator import device_peers
from collectives.cuda import lanes

WORLD = MPI.COMM_WORLD
TRIALS = 40
COUNT = 20000
#: For each wait a call that needs it.
WAITS = {
    "follow": "Allreduce", "await_all 0": "Allreduce", "await_all 1": "Allreduce", "await_all 2": "Bcast",
    "lead": "Allreduce",
}  # fmt: skip


class Watched:
    """The driver, which leaves out the waits of one kind; it notes all kinds that it has seen."""

    def __init__(self, own):
        self._own, self.left_out, self.seen = own, None, set()

    def __getattr__(self, name):
        return getattr(self._own, name)

    def order(self, stream, event):
        frame = sys._getframe(1)
        kind = frame.f_code.co_name.lstrip("_")
        if kind == "await_all":
            kind = f"{kind} {frame.f_locals['i']}"
        self.seen.add(kind)
        if self.left_out != kind:
            self._own.order(stream, event)


def scenario(comm, name, send, recv, trial):
    """A call right after its input was written, and right before its arrays are written again; is the result right?"""
    base = np.arange(COUNT) % 7.0 + trial
    send.fill(0)
    recv.fill(-1.0)
    driver("cuCtxSynchronize")
    WORLD.Barrier()
    if name == "Bcast":
        right = base
        if comm.rank == 0:
            recv.fill(base)
        comm.Bcast(recv)
    else:
        right = comm.size * base + comm.size * (comm.size - 1) / 2
        for _ in range(10 * (comm.rank == 1)):  # the last input is there long after the others
            send.fill(-3.0)
        send.fill(base + comm.rank)
        comm.Allreduce(send, recv)
    by = comm.last.algorithm
    if name == "Bcast" and comm.rank == 0:
        recv.fill(-2.0)
        found = right
    else:
        found = recv.get()
    driver("cuCtxSynchronize")
    WORLD.Barrier()
    return bool(np.array_equal(found, right)) and by == "peers"


def main():
    use_kernels()
    device_peers.LEAST = 1024
    comm = collectives.Communicator(WORLD)
    driver.late(3000)
    stream = driver.stream(1)
    arrays = Array(np.zeros(COUNT), stream), Array(np.zeros(COUNT), stream)
    lane = lanes.lane_of(0)
    with lane:
        lane.kernels()
    lane.driver = watched = Watched(lane.driver)
    for name in sorted(set(WAITS.values())):
        wrong = [t for t in range(4) if not scenario(comm, name, *arrays, t)]
        print(f"{name}: {len(wrong)} wrong of 4", flush=True)
    print(f"waits without a scenario: {sorted(watched.seen - set(WAITS))}", flush=True)
    for wait, name in WAITS.items():
        noticed = False
        for trial in range(TRIALS):
            watched.left_out = wait
            right = scenario(comm, name, *arrays, trial)
            watched.left_out = None
            noticed = WORLD.allreduce(not right, MPI.LOR)
            if noticed:
                break
        print(f"{wait} left out: {'noticed' if noticed else 'NOT NOTICED'} ({trial + 1})", flush=True)
    lane.driver = watched._own
    for array in arrays:
        array.free()
    comm.Free()


main()
