"""Types of the methods that take buffers; written by tests/support/signatures.py, see there."""

from collections.abc import Sequence
from typing import Any, Literal

from mpi4py.MPI import INFO_NULL, SUM, Info, Op, Prequest, Request
from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace

from ..arguments.buffers import Average, ReproducibleSum
from .nonblocking import Nonblocking

class Buffered(Nonblocking):
    def Barrier(
        self, *, algorithm: str | None = None, deterministic: bool | None = None, timeout: float | None = None,
        stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Return when all ranks have called it."""

    def Ibarrier(
        self, *, algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Barrier`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Barrier_init(
        self, info: Info = INFO_NULL, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Barrier`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Bcast(
        self, buf: BufSpec, root: int = 0, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Copy the root's ``buf`` to all ranks."""

    def Ibcast(
        self, buf: BufSpec, root: int = 0, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Bcast`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Bcast_init(
        self, buf: BufSpec, root: int = 0, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Bcast`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Gather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: Any = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Collect a block from every rank in the root's ``recvbuf``, in rank order."""

    def Igather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Gather`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Gather_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0, info: Info = INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Gather`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Gatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: Any = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Collect blocks of different lengths from all ranks in the root's ``recvbuf``."""

    def Igatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Gatherv`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Gatherv_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, info: Info = INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Gatherv`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Scatter(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: Any = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Send block i of the root's ``sendbuf`` to rank i's ``recvbuf``; all blocks have the same length."""

    def Iscatter(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Scatter`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Scatter_init(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0, info: Info = INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Scatter`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Scatterv(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: Any = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Send block i of the root's ``sendbuf`` to rank i's ``recvbuf``; blocks may have different lengths."""

    def Iscatterv(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Scatterv`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Scatterv_init(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, info: Info = INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Scatterv`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Allgather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: Any = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Collect a block from every rank on all ranks, in rank order."""

    def Iallgather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Allgather`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Allgather_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Allgather`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Allgatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: Any = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Collect blocks of different lengths from all ranks on all ranks, in rank order."""

    def Iallgatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Allgatherv`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Allgatherv_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Allgatherv`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Alltoall(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: Any = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Send block i of ``sendbuf`` to rank i, and receive block i of ``recvbuf`` from it."""

    def Ialltoall(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Alltoall`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Alltoall_init(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Alltoall`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Alltoallv(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: Any = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Send block i of ``sendbuf`` to rank i, and receive block i of ``recvbuf``; lengths may differ."""

    def Ialltoallv(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Alltoallv`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Alltoallv_init(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Alltoallv`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Reduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: Op | Average | ReproducibleSum = SUM,
        root: int = 0, *, algorithm: str | None = None, deterministic: bool | None = None, timeout: float | None = None,
        stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Reduce ``sendbuf`` over all ranks, element by element; the root has the result in ``recvbuf``."""

    def Ireduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: Op | Average | ReproducibleSum = SUM,
        root: int = 0, *, algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Reduce`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Reduce_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: Op | Average | ReproducibleSum = SUM,
        root: int = 0, info: Info = INFO_NULL, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Reduce`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Allreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | Average | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, timeout: float | None = None,
        stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Reduce ``sendbuf`` over all ranks, element by element; all ranks have the result in ``recvbuf``."""

    def Iallreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | Average | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Allreduce`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Allreduce_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | Average | ReproducibleSum = SUM,
        info: Info = INFO_NULL, *, algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Allreduce`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Reduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: Op | Average | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, timeout: float | None = None,
        stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Reduce ``sendbuf`` over all ranks; rank i has the i-th of p equal blocks of the result."""

    def Ireduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: Op | Average | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Reduce_scatter_block`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Reduce_scatter_block_init(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: Op | Average | ReproducibleSum = SUM,
        info: Info = INFO_NULL, *, algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Reduce_scatter_block`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Reduce_scatter(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, recvcounts: Sequence[int] | None = None,
        op: Op | Average | ReproducibleSum = SUM, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Reduce ``sendbuf`` over all ranks; rank i has the i-th block, of ``recvcounts[i]`` elements."""

    def Ireduce_scatter(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, recvcounts: Sequence[int] | None = None,
        op: Op | Average | ReproducibleSum = SUM, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Reduce_scatter`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Reduce_scatter_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, recvcounts: Sequence[int] | None = None,
        op: Op | Average | ReproducibleSum = SUM, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Reduce_scatter`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Scan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, timeout: float | None = None,
        stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Reduce ``sendbuf`` over the ranks from 0 to this one, element by element, into ``recvbuf``."""

    def Iscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Scan`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Scan_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | ReproducibleSum = SUM, info: Info = INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Scan`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Exscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, timeout: float | None = None,
        stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Reduce ``sendbuf`` over the ranks before this one into ``recvbuf``, which rank 0 leaves as it is."""

    def Iexscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Exscan`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Exscan_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | ReproducibleSum = SUM, info: Info = INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Exscan`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Alltoallw(
        self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: Any = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Exchange blocks with all ranks; each block has its own length, place (in bytes) and datatype."""

    def Ialltoallw(
        self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Alltoallw`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Alltoallw_init(
        self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Alltoallw`; returns a request with ``Start``, ``Wait`` and ``Free``."""

class Neighbours(Nonblocking):
    def Neighbor_allgather(
        self, sendbuf: BufSpec, recvbuf: BufSpecB, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Send ``sendbuf`` to all neighbours, and receive a block from each, in their order."""

    def Ineighbor_allgather(
        self, sendbuf: BufSpec, recvbuf: BufSpecB, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Neighbor_allgather`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Neighbor_allgather_init(
        self, sendbuf: BufSpec, recvbuf: BufSpecB, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Neighbor_allgather`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Neighbor_allgatherv(
        self, sendbuf: BufSpec, recvbuf: BufSpecV, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Send ``sendbuf`` to all neighbours, and receive blocks of different lengths from them."""

    def Ineighbor_allgatherv(
        self, sendbuf: BufSpec, recvbuf: BufSpecV, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Neighbor_allgatherv`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Neighbor_allgatherv_init(
        self, sendbuf: BufSpec, recvbuf: BufSpecV, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Neighbor_allgatherv`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Neighbor_alltoall(
        self, sendbuf: BufSpecB, recvbuf: BufSpecB, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Send block i of ``sendbuf`` to the i-th neighbour, and receive block i from it."""

    def Ineighbor_alltoall(
        self, sendbuf: BufSpecB, recvbuf: BufSpecB, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Neighbor_alltoall`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Neighbor_alltoall_init(
        self, sendbuf: BufSpecB, recvbuf: BufSpecB, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Neighbor_alltoall`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Neighbor_alltoallv(
        self, sendbuf: BufSpecV, recvbuf: BufSpecV, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Exchange blocks with the neighbours; lengths may differ."""

    def Ineighbor_alltoallv(
        self, sendbuf: BufSpecV, recvbuf: BufSpecV, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Neighbor_alltoallv`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Neighbor_alltoallv_init(
        self, sendbuf: BufSpecV, recvbuf: BufSpecV, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Neighbor_alltoallv`; returns a request with ``Start``, ``Wait`` and ``Free``."""

    def Neighbor_alltoallw(
        self, sendbuf: BufSpecW, recvbuf: BufSpecW, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: Any = None, engine: Literal["c", "python"] | None = None,
    ) -> None:  # fmt: skip
        """Exchange blocks with the neighbours; each has its length, place (in bytes) and datatype."""

    def Ineighbor_alltoallw(
        self, sendbuf: BufSpecW, recvbuf: BufSpecW, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: Any = None,
    ) -> Request:  # fmt: skip
        """Non-blocking :meth:`Neighbor_alltoallw`; returns a request, which ``MPI.Request.Waitall`` takes, too."""

    def Neighbor_alltoallw_init(
        self, sendbuf: BufSpecW, recvbuf: BufSpecW, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: Any = None,
    ) -> Prequest:  # fmt: skip
        """Persistent :meth:`Neighbor_alltoallw`; returns a request with ``Start``, ``Wait`` and ``Free``."""
