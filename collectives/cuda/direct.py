"""Memory of a GPU for schedules whose messages MPI sends from there: arrays, copies and reductions on a lane's stream.

MPI knows nothing of streams. So the stream must have done its work before each message. What has arrived is there for
all streams.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from ..core import _core, _cuda
from .lanes import Lane

__all__ = ["DeviceSpace", "Endpoint"]

_AVG, _SUM = _core.OPS.index("avg"), _core.OPS.index("sum")


class Region:
    """``nbytes`` bytes at ``address`` on a GPU; it has slices, and ``a[:] = b`` copies."""

    def __init__(self, space: DeviceSpace, address: int, nbytes: int):
        self._space, self.address, self.nbytes = space, address, nbytes

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, part: slice) -> Region:
        begin, end, _ = part.indices(self.nbytes)
        return Region(self._space, self.address + begin, max(0, end - begin))

    def __setitem__(self, part: slice, source: Region) -> None:
        self._space.copy(self[part], source)


class DeviceSpace:
    """The GPU of a lane as memory of one call, whose scratch memory goes back at its end."""

    def __init__(self, lane: Lane, deadline: float | None):
        self._lane, self._deadline = lane, deadline
        self.stream = lane.down
        self._scratch: list[tuple[int, int]] = []

    def region(self, address: int, nbytes: int) -> Region:
        """The array of ``nbytes`` bytes at ``address``."""
        return Region(self, address, nbytes)

    def empty(self, nbytes: int) -> Region:
        """A new array, until the call ends."""
        address = self._lane.take_scratch(nbytes)
        self._scratch.append((nbytes, address))
        return Region(self, address, nbytes)

    def copy(self, target: Region, source: Region) -> None:
        """Copy between arrays of one length."""
        if len(target) and target.address != source.address:
            self._lane.driver.copy(target.address, source.address, len(target), self.stream)

    def reduce(self, dtype: int, op: int, dst: Region, left: Region, right: Region) -> None:
        """dst = left op right, element by element; a mean is a sum here."""
        kernels, op = self._lane.kernels(), _SUM if op == _AVG else op
        assert isinstance(kernels, _cuda.Kernels)
        n = len(dst) // _core.itemsize(dtype)
        kernels.fold(dtype, op, dst.address, [left.address, right.address], n, self.stream)

    def scale(self, dtype: int, array: Region, divisor: int) -> None:
        """Divide the elements of an array."""
        kernels = self._lane.kernels()
        assert isinstance(kernels, _cuda.Kernels)
        kernels.scale(dtype, array.address, divisor, len(array) // _core.itemsize(dtype), self.stream)

    def settle(self) -> None:
        """Wait until the stream has done its work."""
        with self._lane.moment() as event:
            self._lane.driver.record(event, self.stream)
            self._lane.wait(event, self._deadline)

    def end(self) -> None:
        """Give the scratch memory back, which later work of the lane's stream may use."""
        for nbytes, address in self._scratch:
            self._lane.give_scratch(nbytes, address)
        self._scratch = []


class Endpoint:
    """mpi4py's ``Isend`` and ``Irecv`` of ``comm`` for arrays of ``space``."""

    def __init__(self, comm: MPI.Comm, space: DeviceSpace):
        self._comm, self._space = comm, space

    def Isend(self, data: Region, peer: int, tag: int) -> Any:
        """Begin to send an array."""
        self._space.settle()
        return self._comm.Isend([memory_of(data), MPI.BYTE], peer, tag)

    def Irecv(self, data: Region, peer: int, tag: int) -> Any:
        """Begin to receive into an array."""
        self._space.settle()
        return self._comm.Irecv([memory_of(data), MPI.BYTE], peer, tag)


def memory_of(data: Region) -> Any:
    """An array as MPI gets it: its address on the GPU."""
    return MPI.buffer.fromaddress(data.address, len(data))
