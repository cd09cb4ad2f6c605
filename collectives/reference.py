"""The readable executor: any schedule, round by round, over mpi4py's point-to-point. The C executor's oracle."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from .schedule import RECEIVED, SCRATCH, Kind, Schedule

Reduction = Any  # callable (dst, left, right) on uint8 arrays of one length


def execute(
    schedule: Schedule, comm: Any, send: np.ndarray, recv: np.ndarray, itemsize: int, op: Reduction, tag: int
) -> None:
    """Run one rank's schedule.

    ``send`` and ``recv`` are uint8 arrays of the whole vector (the same memory for an in-place call); ``op(dst, left,
    right)`` reduces arrays of bytes. ``comm`` has mpi4py's ``Isend`` and ``Irecv``; requests have ``Wait``.
    """
    buffers = {0: send, 1: recv}
    buffers.update({SCRATCH + i: np.empty_like(recv) for i in range(schedule.scratch)})
    cuts = [itemsize * i for i in _core.partition(len(recv) // itemsize, schedule.nblocks)]

    def part(buffer: int, block: int, nblocks: int) -> np.ndarray:
        return buffers[buffer][cuts[block] : cuts[block + nblocks]]

    for steps in schedule.rounds():
        requests, arrived = [], {}
        for i, s in enumerate(steps):
            if s["kind"] > Kind.RECV_REDUCE:
                continue
            source = s["left"] if s["kind"] == Kind.SEND else s["dst"]
            data = part(source, s["block"], s["nblocks"])
            if s["kind"] == Kind.RECV_REDUCE:
                data = arrived[i] = np.empty_like(data)
            if len(data):
                start = comm.Isend if s["kind"] == Kind.SEND else comm.Irecv
                requests.append(start(data, int(s["peer"]), tag))
        for request in requests:
            request.Wait()
        for i, s in enumerate(steps):
            if s["kind"] < Kind.RECV_REDUCE:
                continue
            dst = part(s["dst"], s["block"], s["nblocks"])
            if s["kind"] == Kind.COPY:
                dst[:] = part(s["left"], s["src_block"], s["nblocks"])
                continue
            left, right = (
                arrived[i] if s[side] == RECEIVED else part(s[side], s["block"], s["nblocks"])
                for side in ("left", "right")
            )
            if len(dst):
                op(dst, left, right)
