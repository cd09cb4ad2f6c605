"""Where the executor gets micro-batches from: one batch, or a stream of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .batches import MicroBatches

__all__ = ["BatchFeed", "StreamFeed"]


class BatchFeed:
    """One batch. ``loss`` is the mean over its samples, on the last stage."""

    def __init__(self, batch: MicroBatches) -> None:
        self._batch, self.loss = batch, 0.0

    def place(self, micro_batch: int) -> tuple[MicroBatches, int]:
        """See `Feed.place`."""
        return self._batch, micro_batch

    def has_samples(self, micro_batch: int) -> bool:
        """See `Feed.has_samples`."""
        return self._batch.rows(micro_batch) > 0

    def finish(self, micro_batch: int, loss: float) -> None:
        """See `Feed.finish`."""
        self.loss += loss * self._batch.rows(micro_batch) / self._batch.samples

    def step(self, micro_batch: int) -> None:
        """Do nothing: the program makes the step."""


class StreamFeed:
    """`total` batches one after the other, each of `count` micro-batches, and the step after each of them.

    ``step()`` makes a step, and ``begin(samples)`` is called before the gradients of a batch of so many samples, but
    not for the first one. A batch is read when its first micro-batch begins, at the latest after the step before it,
    and dropped when its own step is made. ``losses`` are the means over the samples of every batch, on the last stage.
    ValueError for a batch with fewer samples than micro-batches, and unless there are `total` batches.
    """

    def __init__(
        self, batches: Iterable[MicroBatches], total: int, count: int, step: Callable[[], None],
        begin: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._batches, self._total, self._count, self._step, self._begin = iter(batches), total, count, step, begin
        self._open: dict[int, MicroBatches] = {}
        self._read = 0
        self.losses: list[float] = []

    def place(self, micro_batch: int) -> tuple[MicroBatches, int]:
        """See `Feed.place`."""
        number, within = divmod(micro_batch, self._count)
        while self._read <= number:
            batch = next(self._batches, None)
            if batch is None:
                raise ValueError(f"a stream of {self._total} batches ended after {self._read}")
            if batch.samples < self._count:
                raise ValueError(f"a batch of {batch.samples} samples has no {self._count} micro-batches of a stream")
            self._open[self._read] = batch
            self._read += 1
        return self._open[number], within

    def has_samples(self, micro_batch: int) -> bool:
        """See `Feed.has_samples`."""
        return True

    def finish(self, micro_batch: int, loss: float) -> None:
        """See `Feed.finish`."""
        batch, within = self.place(micro_batch)
        if within == 0:
            self.losses.append(0.0)
        self.losses[-1] += loss * batch.rows(within) / batch.samples

    def step(self, micro_batch: int) -> None:
        """See `Feed.step`."""
        number = micro_batch // self._count
        del self._open[number]
        self._step()
        if number + 1 < self._total:
            following, _ = self.place((number + 1) * self._count)
            self._begin(following.samples)

    def end(self) -> None:
        """Take the iterator of the batches to its end, by which a loader comes to its next epoch."""
        if next(self._batches, None) is not None:
            raise ValueError(f"a stream of {self._total} batches has more than that")
