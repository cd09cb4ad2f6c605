"""``Shard``: the parameters of one server, and how gradients change them. There is no communication here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..checkpoint import Shard as Leaf
from ..flat.buckets import Bucket
from ..flat.model import Handle, Work
from ..models.nn import Array
from ..optim.schedules import set_lrs
from .clocks import Clocks, Policy
from .layout import Range
from .messages import as_bytes
from .tables import Rows


class Piece:
    """The elements of a bucket that a server has, for its optimizer (see `Work`)."""

    def __init__(self, bucket: Bucket, part: Range) -> None:
        self.name, self.group = f"bucket {bucket.index}", bucket.group
        self.start, self.total = part.start, len(bucket)
        self.data = bucket.data[part.start : part.stop].copy()
        self.grad = np.zeros_like(self.data)

    def leaf(self, array: Array) -> Leaf:
        """`array`, of the shape of ``data``, as a leaf of a state."""
        return Leaf(array.copy(), self.start, self.total)

    def read(self, whole: Any) -> Array:
        """This piece of an array that is as long as the bucket."""
        if np.shape(whole) != (self.total,):
            raise ValueError(f"{self.name} has {self.total} elements, the state {np.shape(whole)}")
        return np.asarray(whole)[self.start : self.start + len(self.data)]


class Staged:
    """What a worker has pushed in its clock: gradients by piece, of ``samples`` samples, and gradients of rows.

    ``samples`` is known at the end of the clock. Rows are of its micro-batches, each with samples of its own.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.arrays = [np.zeros_like(piece.data) for piece in pieces]
        self.samples = 0
        self.rows: list[tuple[int, int, Array, Array]] = []  # (table, samples, keys, gradients)

    def rows_of(self, table: int, weight: float) -> Iterator[tuple[Array, Array, float]]:
        """Keys and gradients of rows of `table`, with the share of their samples in `weight`, that of all samples."""
        for number, samples, keys, grads in self.rows:
            if number == table and samples:  # the gradient of no samples may be NaN
                yield keys, grads, weight * (samples / self.samples)


class Shard:
    """The `pieces` of one server, an optimizer over them, `tables`, and what the `workers` have pushed.

    ``clocks`` decides what becomes an update, ``policy`` how large it is. Delay compensation (Zheng et al. 2017, eq.
    10) adds ``lambda g g (w - w_old)`` to a gradient g that was computed from the parameters w_old.
    """

    def __init__(
        self, pieces: Sequence[Piece], handle: Handle, workers: Iterable[int], policy: Policy, tables: Sequence[Rows]
    ) -> None:  # fmt: skip
        self.pieces, self.tables, self.policy = list(pieces), list(tables), policy
        self._handle = handle
        handle.replace(self.pieces)
        workers = list(workers)
        self._share = 1 / len(workers)
        self.clocks = Clocks(workers, policy.staleness, policy.fold, policy.oldest)
        self._staged = {worker: Staged(self.pieces) for worker in workers}
        self._rates: dict[int, list[float]] = {}
        self._old = {worker: self.copies() for worker in workers} if policy.compensation else {}

    def parameters(self) -> list[Array]:
        """The parameters themselves, an array for each piece."""
        return [piece.data for piece in self.pieces]

    def copies(self) -> list[Array]:
        """Copies of the parameters, which updates do not change."""
        return [piece.data.copy() for piece in self.pieces]

    def stage(self, worker: int, piece: int, data: Array) -> None:
        """Keep what `worker` pushes of a piece: bytes of the mean gradient over the samples of its clock."""
        as_bytes(self._staged[worker].arrays[piece])[:] = data

    def stage_rows(self, worker: int, table: int, count: int, samples: int, data: Array) -> None:
        """Keep gradients of `count` rows that `worker` pushes: bytes of the keys, then of the gradients.

        They are of the mean loss over the `samples` samples of one backward pass.
        """
        self._staged[worker].rows.append((table, samples, *self.tables[table].unpacked(count, data)))

    def discard(self, worker: int) -> None:
        """Drop what `worker` has staged."""
        self._staged[worker] = Staged(self.pieces)

    def end_clock(self, worker: int, samples: int, rates: Sequence[float]) -> None:
        """`worker` ends its clock of `samples` samples, with these learning rates by group of the optimizer."""
        self._staged[worker].samples = samples
        self._rates[worker] = list(rates)
        lag = self.clocks.end(worker, samples > 0)
        if self.policy.attraction:
            self._attract(worker)
        elif self.policy.fold:
            self.settle()
        else:
            self._update_by(worker, lag)

    def settle(self) -> None:
        """Make the update of a clock, if all gradients are there."""
        workers = self.clocks.complete()
        if workers:
            total = sum(self._staged[worker].samples for worker in workers)
            self._update({w: self._staged[w].samples / total if total else 0.0 for w in workers}, 1.0)

    def _update_by(self, worker: int, lag: int) -> None:
        """Make an update by one gradient, unless it is too old."""
        if lag < 0:
            self._staged[worker].rows.clear()
            return
        factor = {"full": 1.0, "shared": self._share, "staleness": 1 / max(1, lag)}[self.policy.rate]
        staged = self._staged[worker]
        if self.policy.compensation:
            for grad, piece, old in zip(staged.arrays, self.pieces, self._old[worker], strict=True):
                grad += grad.dtype.type(self.policy.compensation) * grad * grad * (piece.data - old)
        if staged.samples:
            self._update({worker: 1.0}, factor)
        staged.rows.clear()

    def _update(self, weights: Mapping[int, float], factor: float) -> None:
        """Step by the sum of the workers' gradients, each times its weight, with `factor` times the learning rate."""
        for i, piece in enumerate(self.pieces):
            piece.grad.fill(0)
            for worker, weight in weights.items():
                if weight:  # the gradient of no samples may be NaN
                    piece.grad += self._staged[worker].arrays[i] * piece.grad.dtype.type(weight)
        rates = self._rates[next(iter(weights))]
        set_lrs(self._handle.opt, [factor * rate for rate in rates])
        self._handle.opt.step()
        for number, table in enumerate(self.tables):
            pushed = [self._staged[worker].rows_of(number, weight) for worker, weight in weights.items() if weight]
            table.update([rows for of_worker in pushed for rows in of_worker], factor)
        for worker in weights:
            self._staged[worker].rows.clear()

    def _attract(self, worker: int) -> None:
        """Move the centre to the parameters of `worker` (Zhang, Choromanska, LeCun 2015, eq. 6).

        The centre before that takes the place of what was pushed, see `answer`.
        """
        for piece, pushed in zip(self.pieces, self._staged[worker].arrays, strict=True):
            before = piece.data.copy()
            piece.data += piece.data.dtype.type(self.policy.attraction) * (pushed - before)
            pushed[...] = before

    def answer(self, worker: int) -> list[Array]:
        """What the last step of `worker` is answered with, however often: the parameters, or the centre before it."""
        return self._staged[worker].arrays if self.policy.attraction else self.parameters()

    def pull(self, worker: int) -> None:
        """`worker` is given the parameters."""
        self.clocks.pull(worker)
        if self._old:
            self._old[worker] = self.copies()

    def meet(self) -> None:
        """All workers have met, and are given the parameters."""
        self.clocks.meet()
        for worker in self._old:
            self._old[worker] = self.copies()

    def rest(self, worker: int) -> None:
        """`worker` makes no steps until all have met; others go on without it."""
        self.clocks.rest(worker)
        self.settle()

    def remove(self, worker: int) -> None:
        """`worker` has left or died; what it has staged of an unfinished clock is dropped."""
        self.clocks.remove(worker)
        self._staged.pop(worker, None)
        self._old.pop(worker, None)
        self.settle()

    def state(self) -> dict[str, Any]:
        """Parameters and the optimizer's state, with `Leaf`s of the buckets."""
        by_name = {piece.name: piece for piece in self.pieces}

        def leaf(work: Work, array: Array) -> Leaf:
            return by_name[work.name].leaf(array)

        return {
            "parameters": {piece.name: piece.leaf(piece.data) for piece in self.pieces},
            "optimizer": self._handle.state(leaf),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state, with whole arrays in the place of the leaves; parameters alone, if it has no more."""
        _load(state, self.pieces, self._handle)


def _load(state: Mapping[str, Any], pieces: Sequence[Piece], handle: Handle) -> None:
    by_name = {piece.name: piece for piece in pieces}
    if set(state["parameters"]) != set(by_name):
        raise ValueError(f"the state is for {sorted(state['parameters'])}, not for the buckets of this run")
    if "optimizer" in state:
        handle.load(state["optimizer"], lambda work, whole: by_name[work.name].read(whole))
    for piece in pieces:
        piece.data[...] = piece.read(state["parameters"][piece.name])


def check_state(state: Mapping[str, Any], buckets: Sequence[Bucket], handle: Handle) -> None:
    """Raise ValueError if servers of `buckets`, with copies of `handle`, cannot load `state`: it is loaded into one
    that has everything, and is dropped."""
    pieces, handle = [Piece(bucket, Range(bucket.index, 0, len(bucket))) for bucket in buckets], handle.copy()
    handle.replace(pieces)
    try:
        _load(state, pieces, handle)
    except LookupError as error:
        found = f"{type(error).__name__}: {error}"
        raise ValueError(f"the state of the servers is of another network or optimizer ({found})") from error
