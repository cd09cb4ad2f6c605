"""``Compression``, the base class of all methods, and the working arrays that a method has for each bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..flat.buckets import Bucket
from ..flat.memory import allocate
from ..loading import check_mapping
from ..models.nn import Array


class Area:
    """The working arrays of one bucket. A method with residuals keeps them in ``residual``, of shape (count,)."""

    residual: Array | None = None

    def __init__(self, bucket: Bucket, comm: Any) -> None:
        self.comm = comm
        self.count = bucket.grads.size
        self.dtype = bucket.grads.dtype

    def message(self, count: int, dtype: DTypeLike) -> Array:
        """Memory for messages, (count,): shared by the ranks of a node if the communicator has such memory."""
        return allocate(self.comm, count, dtype)

    def state_dict(self) -> dict[str, Any]:
        """Copies of what the next step needs."""
        return {} if self.residual is None else {"residual": self.residual.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises ValueError if it is of another bucket or another method."""
        if self.residual is not None:
            restore(self.residual, state, "residual")


A = TypeVar("A", bound=Area)


class Compression(Generic[A]):
    """Replaces a bucket's gradients by their mean over the ranks, or an approximation of it, and sends less for it.

    A strategy calls `exchange` for each bucket. A method may keep residuals: what it has not sent of a gradient is
    added to the next one of that bucket (error feedback: Karimireddy et al., ICML 2019, algorithm 2). ``per_rank`` says
    so: the ranks' states then differ, and each rank saves its own. Residuals have the scale of the gradients that were
    given, so a strategy that scales the loss divides the gradients by that scale first if ``per_rank`` is True.

    A gradient that is not finite on one rank makes the result not finite on all ranks, so that a strategy skips the
    step everywhere. The residual of the part in question is then dropped, and all residuals stay finite. Of the other
    parts, such a step loses what it has sent.

    ``sent`` is the number of bytes that this rank has handed to collectives so far, by the convention of benchmarks: of
    an all-reduce and an all-gather the length of this rank's vector, of an all-to-all the length of all its blocks.
    """

    per_rank = False

    def __init__(self) -> None:
        self.sent = 0
        self.taken = False  # whether a network uses it
        self._areas: dict[int, A] = {}
        self._states: dict[int, Mapping[str, Any]] = {}  # of buckets that have no area yet

    def exchange(self, bucket: Bucket, comm: Any) -> Iterator[Any]:
        """Replace ``bucket.grads`` by the mean over the ranks of `comm`; collective. All ranks get the same bits.

        This is a generator. It yields each mpi4py request that must be complete before it goes on. Until it ends,
        ``bucket.grads`` is its working memory, and the same bucket must not be exchanged again. Communicators match
        non-blocking collectives by their order. A strategy that has several exchanges under way therefore advances them
        in an order that is the same on all ranks, and does not depend on which request completes first.

        Raises, before anything is sent, TypeError for gradients that are neither float32 nor float64, and ValueError if
        the bucket has another length than the one whose state was loaded.
        """
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {"compression": type(self).__name__}

    def state_dict(self) -> dict[str, Any]:
        """Copies of what the next step needs, by bucket: residuals, and what a method carries on from step to step."""
        areas = {str(index): area.state_dict() for index, area in self._areas.items()}
        return {**{str(index): dict(state) for index, state in self._states.items()}, **areas}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned. It is checked against each bucket when that is next exchanged.

        Residuals belong to a rank. A rank that has loaded the state of another one calls `forget_residuals`.
        """
        what = type(self).__name__
        check_mapping(what, state)
        try:
            states: dict[int, Mapping[str, Any]] = {int(index): dict(of_bucket) for index, of_bucket in state.items()}
        except (TypeError, ValueError):
            raise ValueError(f"{what}: a state has a dict for the number of each bucket") from None
        self.reset()
        self._states = states

    def reset(self) -> None:
        """Go on as if nothing had been exchanged: forget residuals and what is carried on from step to step."""
        self._areas.clear()
        self._states.clear()

    def forget_residuals(self) -> None:
        """Make the residuals zeros; what all ranks carry on alike stays."""
        for area in self._areas.values():
            if area.residual is not None:
                area.residual.fill(0)
        for index, state in self._states.items():
            if "residual" in state:
                self._states[index] = {**state, "residual": np.zeros_like(state["residual"])}

    def _make(self, bucket: Bucket, comm: Any) -> A:
        """The working arrays for a bucket."""
        raise NotImplementedError

    def _area(self, bucket: Bucket, comm: Any) -> A:
        """The working arrays for a bucket, made at its first exchange; with another communicator they are made anew."""
        area = self._areas.get(bucket.index)
        if area is not None and area.comm is comm and (area.count, area.dtype) == (
            bucket.grads.size, bucket.grads.dtype,
        ):  # fmt: skip
            return area
        if bucket.grads.dtype not in (np.float32, np.float64):
            raise TypeError(f"{type(self).__name__} takes float32 and float64 gradients, not {bucket.grads.dtype}")
        state = self._states.get(bucket.index) if area is None else area.state_dict()
        made = self._make(bucket, comm)
        if state is not None:
            made.load_state_dict(state)
        self._states.pop(bucket.index, None)
        self._areas[bucket.index] = made
        return made

    def _allreduce(self, comm: Any, send: Array, receive: Array, op: Any = None) -> Any:
        """Start an all-reduce (default: a sum) and return its request; `receive` may be `send`."""
        from mpi4py import MPI

        self.sent += send.nbytes
        return comm.Iallreduce(MPI.IN_PLACE if receive is send else send, receive, op=MPI.SUM if op is None else op)

    def _allgather(self, comm: Any, send: Array, receive: Array) -> Any:
        """Start an all-gather of bytes and return its request."""
        self.sent += send.nbytes
        return comm.Iallgather(send, receive)

    def _alltoall(self, comm: Any, send: Array, receive: Array) -> Any:
        """Start an all-to-all of equal blocks of bytes and return its request."""
        self.sent += send.nbytes
        return comm.Ialltoall(send, receive)


def restore(target: Array, state: Mapping[str, Any], key: str) -> None:
    """Copy the array ``state[key]`` into `target`. Raises ValueError if there is none, or if the shapes differ."""
    if key not in state:
        raise ValueError(f"the saved state of a bucket has no {key}: another compression has saved it")
    array = np.asarray(state[key])
    if array.shape != target.shape:
        raise ValueError(f"the saved {key} is for another bucket: its shape is {array.shape}, not {target.shape}")
    target[...] = array
