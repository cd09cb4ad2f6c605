"""Leaves out each wait of a staged call in turn: the stand-in's late streams must make the results wrong.

A wait is known by the function that asks for it and by what waits: "follow down", "lead host". Each has a scenario
that needs it. Without a wait left out, all scenarios are right.
"""

import sys

import numpy as np
from mpi4py import MPI
from stand_in import Array, ByDLPack, WithoutStream, driver

import collectives
from collectives.cuda import arrays, lanes, staging

WORLD = MPI.COMM_WORLD
TRIALS = 30
COUNT = 4 * 2048 + 100  # float64: five pieces of 16 KiB
#: For each wait the scenario that needs it.
WAITS = {
    "follow down": "between", "follow up": "overwritten", "fetch down": "in place", "settle host": "from device",
    "settle host again": "to device", "lead caller": "between", "lead host": "unknown", "export": "dlpack",
}  # fmt: skip


class Watched:
    """The driver, which leaves out waits of streams of one kind; it notes all kinds that it has seen."""

    def __init__(self, own, lane):
        self._own, self._lane = own, lane
        self.left_out, self.seen = None, set()

    def __getattr__(self, name):
        return getattr(self._own, name)

    def leaves_out(self, who, by):
        kind = f"{who.lstrip('_')} {by}"
        self.seen.add(kind)
        return self.left_out is not None and self.left_out.removesuffix(" again") == kind

    def order(self, stream, event):
        lane = self._lane
        by = "down" if stream == lane.down else "up" if stream == lane.up else "caller"
        if not self.leaves_out(sys._getframe(1).f_code.co_name, by):
            self._own.order(stream, event)


def watch():
    """Put a watched driver in the place of the lane's."""
    lane = lanes.lane_of(0)
    lane.driver = watched = Watched(lane.driver, lane)
    wait = lane.wait

    def waiting(event, *more):
        if not watched.leaves_out(sys._getframe(1).f_code.co_name, "host"):
            wait(event, *more)

    lane.wait = waiting
    export = arrays.Array.export

    def exporting(array, to):
        watched.seen.add("export")
        if watched.left_out != "export":
            export(array, to)

    arrays.Array.export = exporting
    return watched


def scenario(comm, name, stream, trial):
    """One call of a scenario; whether the result is right."""
    mine = np.arange(COUNT) % 7.0 + comm.rank + trial
    right = comm.size * (np.arange(COUNT) % 7 + trial) + comm.size * (comm.size - 1) / 2
    make = {"unknown": WithoutStream, "dlpack": ByDLPack}.get(name, Array)
    both = send, recv = make(np.zeros(COUNT), stream), make(np.full(COUNT, -1.0), stream)
    for array in both:
        array.get()  # from here on only what the scenario does is under way
    if name == "in place":
        recv.fill(mine)
        comm.Allreduce(MPI.IN_PLACE, recv)
        found = recv.get()
    elif name == "to device":
        comm.Allreduce(mine, recv)
        found = recv.get()
    elif name == "overwritten":  # what the stream does to the result's memory before the call
        for _ in range(20):
            recv.fill(-2.0)
        comm.Allreduce(mine, recv)
        found = recv.get()
    elif name == "from device":
        send.fill(mine)
        found = np.empty(COUNT)
        comm.Allreduce(send, found)
    else:
        send.fill(mine)
        comm.Allreduce(send, recv)
        found = recv.get()
    for array in both:
        array.free()
    return bool(np.array_equal(found, right))


def main():
    comm = collectives.Communicator(WORLD)
    lanes.SLOT = staging.SLOT = 1 << 14
    driver.late(3000)
    stream = driver.stream(1)
    watched = watch()
    for name in sorted(set(WAITS.values())):
        wrong = [t for t in range(3) if not scenario(comm, name, 1 if name == "unknown" else stream, t)]
        print(f"{name}: {len(wrong)} wrong of 3", flush=True)
    unknown = watched.seen - {wait.removesuffix(" again") for wait in WAITS}
    print(f"waits without a scenario: {sorted(unknown)}", flush=True)
    for wait, name in WAITS.items():
        noticed = False
        for trial in range(TRIALS):
            watched.left_out = wait
            right = scenario(comm, name, 1 if name == "unknown" else stream, trial)
            watched.left_out = None
            driver("cuCtxSynchronize")
            noticed = WORLD.allreduce(not right, MPI.LOR)
            if noticed:
                break
        print(f"{wait} left out: {'noticed' if noticed else 'NOT NOTICED'} ({trial + 1})", flush=True)
    comm.Free()


main()
