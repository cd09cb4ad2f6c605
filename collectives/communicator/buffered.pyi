"""Types of the methods that take buffers; written by tests/support/signatures.py, see there."""

from collections.abc import Sequence
from typing import Literal

from mpi4py.MPI import INFO_NULL, SUM, Info, Op, Prequest, Request
from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, BufSpecW, InPlace

from ..arguments.buffers import Average, ReproducibleSum
from .nonblocking import Nonblocking

class Buffered(Nonblocking):
    def Barrier(
        self, *, algorithm: str | None = None, deterministic: bool | None = None, timeout: float | None = None,
        stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ibarrier(
        self, *, algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Barrier_init(
        self, info: Info = INFO_NULL, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Bcast(
        self, buf: BufSpec, root: int = 0, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ibcast(
        self, buf: BufSpec, root: int = 0, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Bcast_init(
        self, buf: BufSpec, root: int = 0, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Gather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: None = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Igather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Gather_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0, info: Info = INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Gatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: None = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Igatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Gatherv_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0, info: Info = INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Scatter(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: None = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Iscatter(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Scatter_init(
        self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0, info: Info = INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Scatterv(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: None = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Iscatterv(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Scatterv_init(
        self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0, info: Info = INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Allgather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: None = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Iallgather(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Allgather_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Allgatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: None = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Iallgatherv(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Allgatherv_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Alltoall(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: None = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ialltoall(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Alltoall_init(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Alltoallv(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: None = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ialltoallv(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Alltoallv_init(
        self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Reduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: Op | Average | ReproducibleSum = SUM,
        root: int = 0, *, algorithm: str | None = None, deterministic: bool | None = None, timeout: float | None = None,
        stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ireduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: Op | Average | ReproducibleSum = SUM,
        root: int = 0, *, algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Reduce_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec | None, op: Op | Average | ReproducibleSum = SUM,
        root: int = 0, info: Info = INFO_NULL, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Allreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | Average | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, timeout: float | None = None,
        stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Iallreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | Average | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Allreduce_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | Average | ReproducibleSum = SUM,
        info: Info = INFO_NULL, *, algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Reduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: Op | Average | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, timeout: float | None = None,
        stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ireduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: Op | Average | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Reduce_scatter_block_init(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: Op | Average | ReproducibleSum = SUM,
        info: Info = INFO_NULL, *, algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Reduce_scatter(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, recvcounts: Sequence[int] | None = None,
        op: Op | Average | ReproducibleSum = SUM, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ireduce_scatter(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, recvcounts: Sequence[int] | None = None,
        op: Op | Average | ReproducibleSum = SUM, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Reduce_scatter_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, recvcounts: Sequence[int] | None = None,
        op: Op | Average | ReproducibleSum = SUM, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Scan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, timeout: float | None = None,
        stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Iscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Scan_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | ReproducibleSum = SUM, info: Info = INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Exscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, timeout: float | None = None,
        stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Iexscan(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | ReproducibleSum = SUM, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Exscan_init(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: Op | ReproducibleSum = SUM, info: Info = INFO_NULL, *,
        algorithm: str | None = None, deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Alltoallw(
        self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, *, algorithm: str | None = None,
        deterministic: bool | None = None, timeout: float | None = None, stream: None = None,
        engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ialltoallw(
        self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Alltoallw_init(
        self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip

class Neighbours(Nonblocking):
    def Neighbor_allgather(
        self, sendbuf: BufSpec, recvbuf: BufSpecB, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ineighbor_allgather(
        self, sendbuf: BufSpec, recvbuf: BufSpecB, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Neighbor_allgather_init(
        self, sendbuf: BufSpec, recvbuf: BufSpecB, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Neighbor_allgatherv(
        self, sendbuf: BufSpec, recvbuf: BufSpecV, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ineighbor_allgatherv(
        self, sendbuf: BufSpec, recvbuf: BufSpecV, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Neighbor_allgatherv_init(
        self, sendbuf: BufSpec, recvbuf: BufSpecV, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Neighbor_alltoall(
        self, sendbuf: BufSpecB, recvbuf: BufSpecB, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ineighbor_alltoall(
        self, sendbuf: BufSpecB, recvbuf: BufSpecB, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Neighbor_alltoall_init(
        self, sendbuf: BufSpecB, recvbuf: BufSpecB, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Neighbor_alltoallv(
        self, sendbuf: BufSpecV, recvbuf: BufSpecV, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ineighbor_alltoallv(
        self, sendbuf: BufSpecV, recvbuf: BufSpecV, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Neighbor_alltoallv_init(
        self, sendbuf: BufSpecV, recvbuf: BufSpecV, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
    def Neighbor_alltoallw(
        self, sendbuf: BufSpecW, recvbuf: BufSpecW, *, algorithm: str | None = None, deterministic: bool | None = None,
        timeout: float | None = None, stream: None = None, engine: Literal["c", "python"] | None = None,
    ) -> None: ...  # fmt: skip
    def Ineighbor_alltoallw(
        self, sendbuf: BufSpecW, recvbuf: BufSpecW, *, algorithm: str | None = None, deterministic: bool | None = None,
        stream: None = None,
    ) -> Request: ...  # fmt: skip
    def Neighbor_alltoallw_init(
        self, sendbuf: BufSpecW, recvbuf: BufSpecW, info: Info = INFO_NULL, *, algorithm: str | None = None,
        deterministic: bool | None = None, stream: None = None,
    ) -> Prequest: ...  # fmt: skip
